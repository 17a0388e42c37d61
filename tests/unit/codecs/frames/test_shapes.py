"""A frame that holds an instance of a data class is refused where that class has other fields, whatever library made it."""

from __future__ import annotations

import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import pytest
from frame_programs import tick
from sojourn.codecs import frames, identity
from sojourn.codecs.errors import PinNotSatisfied

NAME = "module_with_a_data_class"
KINDS = {
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass Held:",
    "frozen dataclass with slots": "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass Held:",
    "msgspec": "import msgspec\nclass Held(msgspec.Struct):",
    "pydantic": "import pydantic\nclass Held(pydantic.BaseModel):",
    "attrs": "import attrs\n@attrs.define\nclass Held:",
    "attrs without slots": "import attrs\n@attrs.define(slots=False)\nclass Held:",
    "attrs of old": "import attr\n@attr.s(auto_attribs=True)\nclass Held:",
    "named tuple": "from typing import NamedTuple\nclass Held(NamedTuple):",
}
SLOTS = """
class Held:
    __slots__ = ("amount", "currency")
    def __init__(self, amount, currency="EUR"):
        self.amount, self.currency = amount, currency
"""
CHANGES = {
    "a field's type": ("amount: int", "amount: float"),
    "a field's name": ("currency", "unit"),
    "one field less": ('    currency: str = "EUR"\n', ""),
    "one field more": ('= "EUR"\n', '= "EUR"\n    note: str = ""\n'),
}
USE = """
async def work():
    held = Held(amount=3)
    await tick()
    return held.amount, getattr(held, "currency", None)
"""


def body(kind: str) -> str:
    return f'{KINDS[kind]}\n    amount: int\n    currency: str = "EUR"\n'


def module(source: str) -> types.ModuleType:
    made = types.ModuleType(NAME)
    made.tick = tick  # type: ignore[attr-defined]
    sys.modules[NAME] = made
    exec(compile(textwrap.dedent(source) + USE, f"{NAME}.py", "exec", dont_inherit=True), made.__dict__)
    return made


def stored(source: str) -> frames.Frame:
    target = module(source).work()
    target.send(None)
    frame = frames.dump(target)
    frames.discard(target)
    return frame


def result(frame: frames.Frame) -> Any:
    target: Any = frames.load(frame.data, frame.pin)
    with pytest.raises(StopIteration) as stop:
        target.send(None)
    return stop.value.value


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    sys.modules.pop(NAME, None)
    identity.forget()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    for library in ("pydantic", "attrs", "msgspec"):
        if request.param.startswith(library):
            pytest.importorskip(library)
    return str(request.param)


def must_refuse(frame: frames.Frame) -> None:
    with pytest.raises(PinNotSatisfied) as caught:
        frames.load(frame.data, frame.pin)
    assert len(caught.value.missing) == 1
    assert f"the fields of `{NAME}:Held` have changed" in caught.value.reasons[0]


def test_an_instance_moves_and_its_shape_is_in_the_pin(kind: str) -> None:
    frame = stored(body(kind))
    assert [part.partition("~")[0] for part in frame.pin if "~" in part] == [f"{NAME}:Held"]
    module(body(kind))
    assert result(frame) == (3, "EUR")


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_field_is_refused(kind: str, change: str) -> None:
    frame = stored(body(kind))
    changed = body(kind).replace(*CHANGES[change])
    assert changed != body(kind)
    module(changed)
    must_refuse(frame)
    module(body(kind))
    assert result(frame) == (3, "EUR")


def test_fields_in_another_order_are_refused(kind: str) -> None:
    frame = stored(body(kind))
    module(f'{KINDS[kind]}\n    currency: str = "EUR"\n    amount: int = 0\n')
    must_refuse(frame)


def test_a_new_default_or_method_is_accepted(kind: str) -> None:
    frame = stored(body(kind))
    module(body(kind).replace('"EUR"', '"USD"') + "    def doubled(self):\n        return 2 * self.amount\n")
    assert result(frame) == (3, "EUR")


@pytest.mark.parametrize(
    ("old", "new"), [('"currency")', '"unit")'), ('"currency")', '"currency", "note")'), ('"amount", ', "")]
)
def test_other_slots_of_a_plain_class_are_refused(old: str, new: str) -> None:
    frame = stored(SLOTS)
    module(SLOTS.replace(old, new, 1))
    must_refuse(frame)
    module(SLOTS)
    assert result(frame) == (3, "EUR")


def test_the_shape_of_a_base_class_counts_too(kind: str) -> None:
    heir = "class Heir(Held):\n    pass\nBase, Held = Held, Heir\n"
    if kind == "named tuple":
        pytest.skip("its heirs have its fields, but a dictionary besides")
    frame = stored(body(kind) + heir)
    module(body(kind).replace("amount: int", "amount: float") + heir)
    with pytest.raises(PinNotSatisfied, match="fields of"):
        frames.load(frame.data, frame.pin)


ANNOTATED = {
    "a function": "check",
    "a lambda": "lambda value: value",
    "an object": "object()",
    "a validator": "pydantic.AfterValidator(check)",
    "a set": "{0, 8}",
    "a set of another order": "frozenset({8, 0})",
}


@pytest.mark.parametrize("what", ANNOTATED)
@pytest.mark.parametrize("kind", ["dataclass", "msgspec", "pydantic", "attrs", "named tuple"])
def test_what_an_annotation_is_annotated_with_has_no_address_in_the_shape(kind: str, what: str) -> None:
    """Else no other process could resume the frame: functions and objects lie elsewhere there, and sets have another order."""
    pytest.importorskip("pydantic")
    pytest.importorskip("attrs")
    if kind == "msgspec" and "pydantic" in ANNOTATED[what]:
        pytest.skip("each library reads its own")
    source = "import pydantic\nfrom typing import Annotated\ndef check(value): return value\n" + body(kind)
    source = source.replace("amount: int", f"amount: Annotated[int, {ANNOTATED[what]}]")
    frame = stored(source)
    kept = sys.modules[NAME]
    module(source.replace("{0, 8}", "{8, 0}").replace("{8, 0})", "{0, 8})"))
    assert kept.check is not sys.modules[NAME].check
    assert result(frame) == (3, "EUR")
    module(source.replace("Annotated[int", "Annotated[float"))
    must_refuse(frame)


@pytest.mark.parametrize("kind", ["dataclass", "attrs"])
def test_an_exception_with_fields_is_pinned_by_them(kind: str) -> None:
    pytest.importorskip("attrs")
    source = body(kind).replace("class Held:", "class Held(Exception):")
    frame = stored(source)
    module(source.replace("amount: int", "amount: float"))
    must_refuse(frame)
    module(source)
    assert result(frame) == (3, "EUR")
