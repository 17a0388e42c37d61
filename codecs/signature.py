"""The arguments and the result of one function as data.

What has no annotation is any JSON value. A default that was not passed is not written either: it is the
receiver's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Never, NoReturn, final

import msgspec
from sojourn.codecs.annotations import hints_of, place
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.json_guard import DEFAULT_LIMITS, Limits, guard
from sojourn.codecs.paths import member
from sojourn.codecs.round_trip import check_same
from sojourn.codecs.value_type import Type, encode_json, not_finite, refused

_decode_outer: Final = msgspec.json.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]).decode


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
        returned = hints.get("return", Any)
        if returned in (NoReturn, Never):
            returned = None  # A workflow that only ever becomes another one has a result for nobody.
        self.result = Type(returned, where=place(function, "return"), limits=limits)
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
        try:
            return self._encoded(args, kwargs or {})
        except PayloadError as error:
            error.of(f"arguments of {self.name}")
            raise

    def _encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        call = (args, kwargs)
        try:
            data = encode_json(call, self.limits)
            back = self._read_args(data)
        except PayloadError as error:
            raise not_finite(args, "$.args") or not_finite(call[1], "$.kwargs") or _renamed(error) from None
        check_same(args, back[0], "$.args")
        check_same(call[1], back[1], "$.kwargs")
        return data

    def decode_args(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return `(args, kwargs)` that the function can be called with. Raises `PayloadError` with a path,
        such as "expected int, received str at $.args[0].age", and for arguments that do not bind.
        """
        try:
            guard(data, self.limits)
        except PayloadError as error:
            raise _renamed(error) from None
        args, kwargs = self._read_args(data)
        if kwargs or not self._binds_by_position(len(args)):
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise PayloadError(
                    f"arguments of {self.name}{self._signature}", f"others ({error})"
                ) from None
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
            raise _renamed(refused(error, data, "a JSON array [args, kwargs]", "$")) from None
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


def _renamed(error: PayloadError) -> PayloadError:
    """Return the error with a path that says args and kwargs where the JSON says [0] and [1]."""
    if type(error) is not PayloadError:
        return error
    path = error.path.replace("$[0]", "$.args", 1) if error.path.startswith("$[0]") else error.path
    path = path.replace("$[1]", "$.kwargs", 1) if path.startswith("$[1]") else path
    return PayloadError(error.expected, error.received, path)
