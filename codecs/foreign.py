"""Values that msgspec does not know by itself: pydantic models, and unions it cannot tell apart.

pydantic is looked for among the modules already imported and never imported here: who has a model has
imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
from sojourn.codecs.paths import member

DECODE_AS: Final = "__sojourn_decode__"
"""Name of the static method by which a stand-in class of ours (see `unions`) decodes its values."""

MEMBERS: Final = "__sojourn_members__"
"""Name of the attribute of such a stand-in that holds the classes it stands for."""

_REFUSAL: Final = re.compile(r"(?s)expected (?P<expected>.*)\x00received (?P<received>.*)\x00at (?P<path>.*)")


class NotData(Exception):
    """Carries a value that is no data out of the encoder; never leaves the codecs."""

    def __init__(self, value: object) -> None:
        super().__init__(type(value).__qualname__)
        self.value = value


def is_pydantic_model(cls: Any) -> bool:
    """Whether `cls` is a pydantic model."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def encode_foreign(value: Any) -> Any:
    """Encode what msgspec does not know. Raises `NotData`."""
    if is_pydantic_model(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    raise NotData(value)


def decode_foreign(cls: type, value: Any) -> Any:
    """Make a `cls` of decoded JSON: pydantic validates in its strict JSON mode, stand-ins know themselves."""
    decode: Callable[[Any], Any] | None = getattr(cls, DECODE_AS, None)
    if decode is not None:
        return decode(value)
    if is_pydantic_model(cls):
        return _validated(cls, value)
    raise NotImplementedError(f"registered without a check: {cls.__qualname__}")  # `check` refuses these


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate_json(msgspec.json.encode(value), strict=True)
    except ValueError as error:
        details = getattr(error, "errors", None)
        if details is None:
            raise
        # Without its input: pydantic's own text quotes the payload.
        first = details(include_input=False, include_url=False, include_context=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else member(part) for part in first["loc"])
        raise refusal(f"a valid {model.__qualname__}", f"one refused with {first['msg']!r}", path) from None


def refusal(expected: str, received: str, path: str = "") -> ValueError:
    """Return the error by which a hook refuses a value: msgspec adds the place of the value to its text, and
    `parse_refusal` takes it apart again. `path` goes on from there.
    """
    return ValueError(f"expected {expected}\0received {received}\0at {path}")


def parse_refusal(message: str) -> tuple[str, str, str] | None:
    """Return `(expected, received, path)` of a `refusal`, or None for any other text."""
    match = _REFUSAL.fullmatch(message)
    return None if match is None else (match["expected"], match["received"], match["path"])
