"""One value as data: JSON by its annotation.

Typed values go through msgspec, strictly: no widening, no text for numbers, no NaN. Before bytes are decoded
they pass `json_guard`; after a value is encoded it is decoded again and compared (`round_trip`), so that a
mistake shows at the caller. The price is a copy per attempt, which is what the receiver gets anyway.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable
from typing import Any, Final, final

import msgspec
from sojourn.codecs.annotations import check, shown
from sojourn.codecs.choices import choices
from sojourn.codecs.errors import DataTypeError, PayloadError, PayloadTooDeep
from sojourn.codecs.foreign import NotData, decode_foreign, encode_foreign, parse_refusal
from sojourn.codecs.json_guard import DEFAULT_LIMITS, Limits, check_size_and_depth, guard, malformed
from sojourn.codecs.paths import find_path
from sojourn.codecs.round_trip import check_same
from sojourn.codecs.unions import with_choices

_encoder: Final = msgspec.json.Encoder(enc_hook=encode_foreign)

_AT: Final = re.compile(r"(?s) - at `\$(?P<path>.*)`$")
_EXPECTED_GOT: Final = re.compile(r"(?s)Expected (?P<expected>.+), got (?P<received>.+)")
_MISSING: Final = re.compile(r"(?s)Object missing required field (?P<field>`.+`)")
_MAX_WORDS: Final = 200


@final
class Type:
    """Converts values of one annotation."""

    __slots__ = ("_decode", "annotation", "limits")

    def __init__(
        self, annotation: Any = Any, *, where: str = "value", limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """Raise `DataTypeError`, naming `where`, when values of `annotation` cannot cross as data."""
        decodable = with_choices(annotation)
        check(decodable, where, written=shown(annotation))
        try:
            decoder = msgspec.json.Decoder(decodable, dec_hook=decode_foreign, strict=True)
        except TypeError as error:
            raise DataTypeError(where, shown(annotation), str(error).partition("\n")[0]) from error
        self._decode = decoder.decode
        self.annotation = annotation
        self.limits = limits

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON. Raises `PayloadError` when a receiver would not get an equal value of this
        annotation back.
        """
        data = encode_json(value, self.limits)
        try:
            back = self.read(data, "$")
        except PayloadError as error:
            raise not_finite(value, "$") or error from None
        check_same(value, back, "$")
        return data

    def decode(self, data: bytes) -> Any:
        """Return the value. Raises `PayloadError` with a path, `PayloadTooLarge` or `PayloadTooDeep`."""
        guard(data, self.limits)
        return self.read(data, "$")

    def read(self, data: bytes | msgspec.Raw, path: str) -> Any:
        """Decode bytes that passed `guard` and lie at `path` of a larger payload. Raises `PayloadError`."""
        try:
            return self._decode(data)
        except BaseException as error:  # __post_init__ of a user's class may raise anything, `SystemExit` too
            # The decoder's own text quotes the payload, and a traceback shows causes.
            cause = None if isinstance(error, msgspec.MsgspecError) else error
            raise refused(error, bytes(data), self.annotation, path) from cause

    def __repr__(self) -> str:
        return f"Type({shown(self.annotation)})"


def encode_json(value: Any, limits: Limits) -> bytes:
    """Return any value as JSON, within `limits`. Raises `PayloadError` with the place of what is no data."""
    try:
        data = _encoder.encode(value)
    except NotData as error:
        culprit, name = error.value, str(error)
        path = find_path(value, lambda item: item is culprit) or "$"
        unused = ", which is to be awaited" if isinstance(culprit, Awaitable) else ""
        raise PayloadError("data", f"an object of {name}{unused}", path) from None
    except RecursionError:
        raise PayloadTooDeep(limits.depth + 1, limits.depth) from None
    except UnicodeEncodeError:
        path = find_path(value, _has_surrogate) or "$"
        raise PayloadError("text", "text with a lone surrogate, which UTF-8 does not have", path) from None
    except TypeError as error:
        path = find_path(value, _is_strange_mapping) or "$"
        raise PayloadError("data", str(error)[:_MAX_WORDS], path) from error
    except BaseException as error:  # a model's own serializer may raise anything
        raise PayloadError("data", f"an object that cannot be written ({type(error).__name__})") from error
    check_size_and_depth(data, limits)
    return data


def _has_surrogate(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def _is_strange_mapping(value: Any) -> bool:
    """Whether `value` is a mapping with keys that JSON cannot have."""
    return isinstance(value, dict) and not all(isinstance(key, (str, int, float)) for key in value)


def not_finite(value: Any, path: str) -> PayloadError | None:
    """Return the error for a NaN or an infinity somewhere in `value`, which msgspec writes as null."""
    found = find_path(value, lambda item: isinstance(item, float) and not math.isfinite(item), path)
    if found is None:
        return None
    return PayloadError("a finite number", "NaN or Infinity, which JSON does not have", found)


def refused(error: BaseException, data: bytes, annotation: Any, path: str) -> PayloadError:
    """Translate a decoder's error, without what it quotes from the payload."""
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return malformed(data, str(error))
    if not isinstance(error, msgspec.ValidationError):
        return PayloadError(shown(annotation), f"a value its class refuses ({type(error).__name__})", path)
    message = str(error)
    at = _AT.search(message)
    inside = at["path"] if at is not None else ""
    if at is not None:
        message = message[: at.start()]
    if message.startswith("Invalid enum value"):
        known = choices(annotation, inside) or "the values of its enum or Literal"
        return PayloadError(f"one of {known}", "another value", path + inside)
    return PayloadError(*_in_our_words(message, annotation, path + inside))


def _in_our_words(message: str, annotation: Any, path: str) -> tuple[str, str, str]:
    """Return expected, received, path for the text of a validation error."""
    if hook := parse_refusal(message):
        return hook[0], hook[1], path + hook[2]
    if match := _EXPECTED_GOT.fullmatch(message):
        return match["expected"].replace("`", ""), match["received"].replace("`", ""), path
    if match := _MISSING.fullmatch(message):
        return f"field {match['field']}", "an object without it", path
    if message.startswith("Expected "):
        return message.removeprefix("Expected ").replace("`", ""), "a value outside of that", path
    return shown(annotation), f"a value refused with: {message[:_MAX_WORDS]}", path
