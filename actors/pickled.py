"""Arguments and results of steps with `values="pickle"`: more than JSON can say, for local steps only.

They stay inside records, which are sealed, and are unpickled by nodes that hold the key; nothing that came
from outside is. On the wire of a record they are JSON strings, so an envelope is JSON throughout.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from typing import Any

import orjson
from sojourn.codecs.errors import PayloadError, PayloadTooLarge

from .call_site import binder


class PickledSignature:
    """Stands where a `Signature` stands, and carries any picklable value."""

    __slots__ = ("_bind", "_limit")

    def __init__(self, function: Callable[..., Any], *, limit: int = 256 * 1024) -> None:
        self._bind = binder(function)
        self._limit = limit

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Arguments as a JSON string. Raises `TypeError` if they do not bind, `PayloadError` if they do not
        pickle.
        """
        self._bind(*args, **kwargs)
        return self._dump((args, kwargs), "arguments")

    def decode_args(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inverse of `encode_args`; a copy each time."""
        args, kwargs = self._load(data)
        return args, kwargs

    def encode_result(self, value: Any) -> bytes:
        """A result as a JSON string. Raises `PayloadError` if it does not pickle, `PayloadTooLarge`."""
        return self._dump(value, "result")

    def decode_result(self, data: bytes) -> Any:
        """The inverse of `encode_result`; a copy each time."""
        return self._load(data)

    def _dump(self, value: Any, what: str) -> bytes:
        try:
            pickled = pickle.dumps(value, protocol=5)
        except Exception as error:
            raise PayloadError("values that pickle", f"{type(error).__name__}: {error}", what) from error
        text = orjson.dumps(base64.b64encode(pickled).decode())
        if len(text) > self._limit:
            raise PayloadTooLarge(len(text), self._limit)
        return text

    @staticmethod
    def _load(data: bytes) -> Any:
        text = orjson.loads(data)
        if not isinstance(text, str):
            raise PayloadError("a string of base64", type(text).__name__)
        return pickle.loads(base64.b64decode(text, validate=True))
