"""pydantic models and attrs classes are data when their library is there; neither is a dependency."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sojourn.codecs.data import Signature, Type
from sojourn.codecs.errors import DataTypeError, PayloadError


def test_importing_the_codecs_imports_no_optional_library() -> None:
    script = "import sys, sojourn.codecs; print(sorted({'pydantic', 'attr', 'attrs'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def model() -> Any:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", count=(int, ...))
    return pydantic.create_model(
        "Outer", name=(str, pydantic.Field(alias="fullName", max_length=5)), inner=(list[inner], [])
    )


def test_a_pydantic_model_comes_back_validated(model: Any) -> None:
    value = model(fullName="n", inner=[{"count": 1}])
    kind = Type(list[model | None])
    assert kind.decode(kind.encode([value, None])) == [value, None]
    assert Type(model).encode(value) == b'{"fullName":"n","inner":[{"count":1}]}'


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'[[{"fullName":"n","inner":[{"count":"1"}]}],{}]', "$.args[0].inner[0].count"),
        (b'[[{"fullName":"n","inner":[{"count":1.0}]}],{}]', "$.args[0].inner[0].count"),
        (b'[[{"fullName":"n","inner":[{"count":true}]}],{}]', "$.args[0].inner[0].count"),
        (b'[[{"fullName":"secretsecret"}],{}]', "$.args[0].fullName"),
        (b'[["secretsecret"],{}]', "$.args[0]"),
    ],
)
def test_a_pydantic_model_is_strict_and_its_errors_have_a_path_and_no_payload(
    model: Any, data: bytes, path: str
) -> None:
    def use(value: Any) -> None: ...

    use.__annotations__["value"] = model
    with pytest.raises(PayloadError) as refused:
        Signature.of(use).decode_args(data)
    assert refused.value.path == path
    assert "secret" not in str(refused.value)


def test_a_pydantic_model_without_its_annotation_is_refused_at_the_sender(model: Any) -> None:
    with pytest.raises(PayloadError, match="expected dict, received Outer"):
        Type(Any).encode(model(fullName="n"))


def test_unions_of_pydantic_models_are_told_apart(model: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    other = pydantic.create_model("Other", number=(int, ...))
    kind = Type(model | other)
    for value in (model(fullName="n"), other(number=1)):
        assert kind.decode(kind.encode(value)) == value


def test_a_pydantic_dataclass_is_refused_since_its_validators_would_not_run() -> None:
    dataclasses = pytest.importorskip("pydantic.dataclasses")

    class Plain:
        x: int

    with pytest.raises(DataTypeError, match="BaseModel"):
        Type(dataclasses.dataclass(Plain))


def test_an_attrs_class_comes_back() -> None:
    attrs = pytest.importorskip("attrs")
    cls = attrs.make_class("Point", {"x": attrs.field(type=int), "y": attrs.field(type=float, default=0.0)})
    kind = Type(dict[str, cls])  # type: ignore[valid-type]  # made at run time
    assert kind.decode(kind.encode({"p": cls(1)})) == {"p": cls(1)}
    with pytest.raises(PayloadError, match="expected int, received bool"):
        kind.encode({"p": cls(True)})
