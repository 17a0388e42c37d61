"""Arguments, results and messages as data: JSON by annotation (DESIGN 3, "Data").

A `Type` converts one value, a `Signature` the arguments and the result of one function; both are built when
the function is registered, and refuse then what cannot cross. Typed values go through msgspec, strictly: no
widening, no text for numbers, no NaN. Before bytes are decoded they pass `json_guard`; after a value is
encoded it is decoded again and compared (`round_trip`), so that a mistake shows at the caller. The price is a
copy per attempt, which is what the receiver gets anyway.

What has no annotation is any JSON value. A default that was not passed is not written either: it is the
receiver's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import msgspec
from sojourn.codecs.annotations import check, decode_foreign, encode_foreign, hints_of, place, shown
from sojourn.codecs.errors import DataTypeError, PayloadError, PayloadTooDeep
from sojourn.codecs.json_guard import DEFAULT_LIMITS, Limits, check_size_and_depth, guard, malformed, member
from sojourn.codecs.round_trip import difference

_encoder: Final = msgspec.json.Encoder(enc_hook=encode_foreign)
_decode_outer: Final = msgspec.json.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]).decode

_AT: Final = re.compile(r" - at `\$(?P<path>.*)`$", re.DOTALL)
_EXPECTED_GOT: Final = re.compile(r"Expected (?P<expected>.+), got (?P<received>.+)", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field (?P<field>`.+`)", re.DOTALL)
_MAX_WORDS: Final = 200


@final
class Type:
    """Converts values of one annotation."""

    __slots__ = ("_decode", "annotation", "limits")

    def __init__(
        self, annotation: Any = Any, *, where: str = "value", limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """Raise `DataTypeError`, naming `where`, when values of `annotation` cannot cross as data."""
        check(annotation, where)
        try:
            decoder = msgspec.json.Decoder(annotation, dec_hook=decode_foreign, strict=True)
        except TypeError as error:
            raise DataTypeError(where, shown(annotation), str(error).partition("\n")[0]) from error
        self._decode = decoder.decode
        self.annotation = annotation
        self.limits = limits

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON. Raises `PayloadError` when a receiver would not get an equal value of this
        annotation back.
        """
        data = _encode(value, self.limits)
        _check_same(value, self.read(data, "$"), "$")
        return data

    def decode(self, data: bytes) -> Any:
        """Return the value. Raises `PayloadError` with a path, `PayloadTooLarge` or `PayloadTooDeep`."""
        guard(data, self.limits)
        return self.read(data, "$")

    def read(self, data: bytes | msgspec.Raw, path: str) -> Any:
        """Decode bytes that passed `guard` and lie at `path` of a larger payload. Raises `PayloadError`."""
        try:
            return self._decode(data)
        except Exception as error:  # __post_init__ of a user's class may raise anything
            raise _refused(error, bytes(data), self.annotation, path) from error

    def __repr__(self) -> str:
        return f"Type({shown(self.annotation)})"


@final
class Signature:
    """Converts the arguments and the result of one function."""

    def __init__(self, function: Callable[..., Any], limits: Limits = DEFAULT_LIMITS) -> None:
        """Use `Signature.of`."""
        self.name: str = getattr(function, "__qualname__", type(function).__qualname__)
        self.limits = limits
        self._signature = inspect.signature(function)
        hints = hints_of(function)
        parameters = self._signature.parameters.values()
        types = {
            parameter.name: Type(
                hints.get(parameter.name, Any), where=place(function, parameter.name), limits=limits
            )
            for parameter in parameters
        }
        self.result = Type(hints.get("return", Any), where=place(function, "return"), limits=limits)
        kinds = inspect.Parameter
        positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        self._positional = tuple(types[p.name] for p in positional)
        self._required = sum(p.default is kinds.empty for p in positional)
        self._named = {
            p.name: types[p.name]
            for p in parameters
            if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        }
        self._named_required = any(
            p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters
        )
        self._rest = next((types[p.name] for p in parameters if p.kind is kinds.VAR_POSITIONAL), None)
        self._named_rest = next((types[p.name] for p in parameters if p.kind is kinds.VAR_KEYWORD), None)

    @classmethod
    def of(cls, function: Callable[..., Any], *, limits: Limits = DEFAULT_LIMITS) -> Signature:
        """Return the signature of `function`. Raises `DataTypeError` naming the parameter that cannot cross
        as data, and why.
        """
        return cls(function, limits)

    def encode_args(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> bytes:
        """Return the JSON array `[args, kwargs]`, the same for every way to write one call: by position as
        far as can be.

        Raises `TypeError`, as the call itself would, when they do not bind; `PayloadError` when one is not
        what its annotation says.
        """
        if kwargs or not self._binds_by_position(len(args)):
            args, kwargs = self._bind(args, kwargs or {})
        call = (args, kwargs or {})
        data = _encode(call, self.limits)
        back = self._read_args(data)
        if back[0] != args or back[1] != call[1]:
            _check_same(args, back[0], "$.args")
            _check_same(call[1], back[1], "$.kwargs")
        return data

    def decode_args(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return `(args, kwargs)` that the function can be called with. Raises `PayloadError` with a path,
        such as "expected int, received str at $.args[0].age", and for arguments that do not bind.
        """
        guard(data, self.limits)
        args, kwargs = self._read_args(data)
        if kwargs or not self._binds_by_position(len(args)):
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise PayloadError(f"arguments of {self.name}{self._signature}", str(error)) from None
        return args, kwargs

    def encode_result(self, value: Any) -> bytes:
        """Return the result as JSON. Raises `PayloadError` when it is not what the annotation promises."""
        return self.result.encode(value)

    def decode_result(self, data: bytes) -> Any:
        """Return the result. Raises `PayloadError` with a path."""
        return self.result.decode(data)

    def _binds_by_position(self, count: int) -> bool:
        """Whether `count` positional arguments alone are a complete call: the common case, decided without
        `inspect`.
        """
        enough = self._required <= count and not self._named_required
        return enough and (count <= len(self._positional) or self._rest is not None)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        return bound.args, bound.kwargs

    def _read_args(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            args, kwargs = _decode_outer(data)
        except msgspec.MsgspecError as error:
            raise _refused(error, data, "a JSON array [args, kwargs]", "$") from error
        return (
            tuple([self._type_at(number).read(raw, f"$.args[{number}]") for number, raw in enumerate(args)]),
            {
                name: self._type_named(name).read(raw, "$.kwargs" + member(name))
                for name, raw in kwargs.items()
            },
        )

    def _type_at(self, number: int) -> Type:
        if number < len(self._positional):
            return self._positional[number]
        if self._rest is None:
            raise PayloadError(
                f"at most {len(self._positional)} arguments for {self.name}", "more", f"$.args[{number}]"
            )
        return self._rest

    def _type_named(self, name: str) -> Type:
        found = self._named.get(name, self._named_rest)
        if found is None:
            known = ", ".join(self._named) or "none"
            raise PayloadError(
                f"an argument of {self.name} ({known})", "another name", "$.kwargs" + member(name)
            )
        return found

    def __repr__(self) -> str:
        return f"<Signature {self.name}{self._signature}>"


def _encode(value: Any, limits: Limits) -> bytes:
    try:
        data = _encoder.encode(value)
    except RecursionError as error:
        raise PayloadTooDeep(limits.depth + 1, limits.depth) from error
    except Exception as error:  # a model's own serializer may raise anything
        raise PayloadError("a value that can be written as JSON", str(error)[:_MAX_WORDS]) from error
    check_size_and_depth(data, limits)
    return data


def _check_same(sent: Any, back: Any, path: str) -> None:
    found = difference(sent, back, path)
    if found is not None:
        raise PayloadError(found.expected, found.received, found.path)


def _refused(error: Exception, data: bytes, annotation: Any, path: str) -> PayloadError:
    """Translate a decoder's error, without what it quotes from the payload."""
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return malformed(data, str(error))
    if not isinstance(error, msgspec.ValidationError):
        return PayloadError(shown(annotation), f"a value its class refuses ({type(error).__name__})", path)
    message = str(error)
    at = _AT.search(message)
    if at is not None:
        path, message = path + at["path"], message[: at.start()]
    if match := _EXPECTED_GOT.fullmatch(message):
        return PayloadError(match["expected"].replace("`", ""), match["received"].replace("`", ""), path)
    if match := _MISSING.fullmatch(message):
        return PayloadError(f"field {match['field']}", "an object without it", path)
    if message.startswith("Invalid enum value"):
        return PayloadError("one of the values of its enum or Literal", "another value", path)
    if message.startswith("Expected "):
        return PayloadError(
            message.removeprefix("Expected ").replace("`", ""), "a value outside of that", path
        )
    return PayloadError(shown(annotation), message[:_MAX_WORDS], path)
