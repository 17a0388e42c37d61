"""Errors of the codecs layer, and `SojournError`, the base of every error of Sojourn.

Each says what was expected, what was received, where, and what to do. The facts are attributes, and every
error survives pickling: its arguments are its attributes. Nothing here ever holds a payload.

    SojournError
    +- CannotSuspend            a value alive across an await cannot be stored
    +- FrameTooLarge            the frame is over its size limit
    +- PinNotSatisfied          this process lacks code that the frame needs
    +- UnsupportedInterpreter   frames cannot be captured or restored on this Python at all
    +- DataTypeError            an annotation cannot cross as data
    +- PayloadError             a value does not have the shape its annotation promises
    |   +- PayloadTooLarge, PayloadTooDeep
    +- DurationError            a duration or a backoff that cannot be read
    +- KeyringError             keys are missing, unreadable or open to others
    +- RecordError              sealed bytes that are not a record, or not this one
        +- RecordTruncated, RecordTooLarge, RecordMalformed, RecordVersion
        +- UnknownKey, SealBroken, WrongActor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self


class SojournError(Exception):
    """Base of every error that Sojourn raises on purpose."""


class _Facts(SojournError):
    """An error whose constructor arguments are its facts: pickled by them, printed by `_text`."""

    def __init__(self, *facts: Any) -> None:
        self._facts = facts
        super().__init__(self._text())

    def _text(self) -> str:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._facts


class UnsupportedInterpreter(_Facts):
    """Frames cannot be captured or restored on this interpreter. Attributes: `interpreter`, `reason`."""

    def __init__(self, interpreter: str, reason: str) -> None:
        self.interpreter = interpreter
        self.reason = reason
        super().__init__(interpreter, reason)

    def _text(self) -> str:
        return (
            f"workflows cannot run on {self.interpreter}: {self.reason} "
            "(use a normal build of CPython 3.11 to 3.15; clients that only start and signal work anywhere)"
        )


class CannotSuspend(_Facts):
    """A value that is alive across an await cannot be stored.

    Attributes: `function` (qualified name), `line`, `variable` (empty for a value on the stack), `path`
    (inside the variable, such as `.client._socket`), `type_name`, `remedy`, `file`.
    """

    def __init__(
        self, function: str, line: int, variable: str, path: str, type_name: str, remedy: str, file: str = ""
    ) -> None:
        self.function = function
        self.line = line
        self.variable = variable
        self.path = path
        self.type_name = type_name
        self.remedy = remedy
        self.file = file
        super().__init__(function, line, variable, path, type_name, remedy, file)

    def _text(self) -> str:
        if not self.variable:
            what = f"a temporary value{' at ' + self.path if self.path else ''}"
        elif self.path:
            what = f"`{self.variable}{self.path}`, reached through local `{self.variable}`,"
        else:
            what = f"local `{self.variable}`"
        where = f" in `{self.function}` line {self.line}" if self.function else ""
        return (
            f"{what} (`{self.type_name}`){where} is alive across an await and cannot be stored; {self.remedy}"
        )


class FrameTooLarge(_Facts):
    """A frame is over its limit. Attributes: `size`, `limit` (bytes), `sizes` (bytes by `function.variable`,
    largest first).
    """

    def __init__(self, size: int, limit: int, sizes: Mapping[str, int]) -> None:
        self.size = size
        self.limit = limit
        self.sizes = dict(sorted(sizes.items(), key=lambda item: -item[1]))
        super().__init__(size, limit, self.sizes)

    def _text(self) -> str:
        most = ", ".join(f"`{name}` {size}" for name, size in list(self.sizes.items())[:5])
        return (
            f"the frame is {self.size} bytes, its limit is {self.limit} (largest: {most or 'unknown'}); "
            "keep large values outside (an object store, a database) and hold a reference, or drop them before the await"
        )


class ContextNotDeclared(_Facts):
    """A context variable that the actor's code has set may not move. Attributes: `variable`, `place`, `type_name`."""

    def __init__(self, variable: str, place: str, type_name: str) -> None:
        self.variable = variable
        self.place = place
        self.type_name = type_name
        super().__init__(variable, place, type_name)

    def _text(self) -> str:
        known = f" ({self.place})" if self.place else ""
        return (
            f"context variable `{self.variable}`{known}, set to a `{self.type_name}`, is not declared, so it would be "
            "lost when the workflow moves; declare it with `declare_variable`, or reset it before the await"
        )


class PinNotSatisfied(_Facts):
    """This process lacks code that a frame needs; the frame itself is unharmed.

    Attributes: `missing` (identities), `reasons` (one sentence for each: function, stored and present
    identity).
    """

    def __init__(self, missing: Sequence[str], reasons: Sequence[str]) -> None:
        self.missing = list(missing)
        self.reasons = list(reasons)
        super().__init__(self.missing, self.reasons)

    def _text(self) -> str:
        return (
            "this process cannot resume the frame: "
            + "; ".join(self.reasons)
            + " (run it on a node that has that version, or declare `moved`)"
        )


class DataTypeError(_Facts, TypeError):
    """An annotation cannot cross as data. Raised when a function or channel is registered, never for a single
    value.

    Attributes: `where` (function and parameter), `annotation` (its text), `reason` (why, and what to do).
    """

    def __init__(self, where: str, annotation: str, reason: str) -> None:
        self.where = where
        self.annotation = annotation
        self.reason = reason
        super().__init__(where, annotation, reason)

    def _text(self) -> str:
        return f"{self.where}: `{self.annotation}` cannot cross as data: {self.reason}"


class PayloadError(_Facts, ValueError):
    """A value does not have the shape that its annotation promises.

    Attributes: `expected` and `received` (types or conditions in words, never the value), `path` (from `$`,
    the whole payload), `payload` (whose: "arguments of add"; empty when that is clear from where it was raised).
    """

    payload = ""

    def __init__(self, expected: str, received: str, path: str = "$") -> None:
        self.expected = expected
        self.received = received
        self.path = path
        super().__init__(expected, received, path)

    def of(self, payload: str) -> Self:
        """This error, which says whose payload it is about."""
        self.payload = payload
        return self

    def __str__(self) -> str:
        return f"{self.payload}: {self._text()}" if self.payload else self._text()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._facts, {"payload": self.payload} if self.payload else None

    def _text(self) -> str:
        return f"expected {self.expected}, received {self.received} at {self.path}"


class PayloadTooLarge(PayloadError):
    """A payload has more bytes than the limit; nothing of it was decoded. Attributes: `size`, `limit`
    (bytes).
    """

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"at most {limit:,} bytes", f"{size:,} bytes")
        self._facts = (size, limit)

    def _text(self) -> str:
        return f"{super()._text()}; store the large value elsewhere and pass a reference to it"


class PayloadTooDeep(PayloadError):
    """A payload nests deeper than the limit; nothing of it was decoded. Attributes: `depth` (at least that
    much), `limit`.
    """

    def __init__(self, depth: int, limit: int) -> None:
        self.depth = depth
        self.limit = limit
        super().__init__(f"at most {limit} levels of nesting", f"{depth} or more")
        self._facts = (depth, limit)


class DurationError(_Facts, ValueError):
    """A duration that cannot be read. Attributes: `received` (as the caller wrote it, cut), `reason` (and
    what to write).
    """

    def __init__(self, received: str, reason: str) -> None:
        self.received = received
        self.reason = reason
        super().__init__(received, reason)

    def _text(self) -> str:
        return f"{self.received} is not a duration: {self.reason}"


class KeyringError(_Facts):
    """Keys are missing, unreadable, open to others, or of a kind this version does not know.

    Attributes: `source` (the file or environment name, never its content), `reason`.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(source, reason)

    def _text(self) -> str:
        return f"keys from {self.source}: {self.reason}"


class RecordError(_Facts):
    """Sealed bytes were refused. Unless their seal held, nothing in them was decompressed, decoded or
    unpickled.
    """


class RecordTruncated(RecordError):
    """The bytes end too early or go on after their end. Attributes: `size`, `expected` (bytes; the header's
    promise, or the least).
    """

    def __init__(self, size: int, expected: int) -> None:
        self.size = size
        self.expected = expected
        super().__init__(size, expected)

    def _text(self) -> str:
        return (
            f"expected {self.expected:,} sealed bytes, received {self.size:,}: cut, or no record of Sojourn"
        )


class RecordTooLarge(RecordError):
    """A section is over its limit, as given or as its header declares. Attributes: `section`, `size`, `limit`
    (bytes).
    """

    def __init__(self, section: str, size: int, limit: int) -> None:
        self.section = section
        self.size = size
        self.limit = limit
        super().__init__(section, size, limit)

    def _text(self) -> str:
        return f"{self.section} of a record: expected at most {self.limit:,} bytes, received {self.size:,}"


class RecordMalformed(RecordError):
    """The bytes are not a record, or a section of it does not decode. Attributes: `section`, `reason`."""

    def __init__(self, section: str, reason: str) -> None:
        self.section = section
        self.reason = reason
        super().__init__(section, reason)

    def _text(self) -> str:
        return f"{self.section} of a record is malformed: {self.reason}"


class RecordVersion(RecordError):
    """A newer Sojourn wrote this. Attributes: `what` (version or codec), `found`, `supported` (the highest
    read here).
    """

    def __init__(self, what: str, found: int, supported: int) -> None:
        self.what = what
        self.found = found
        self.supported = supported
        super().__init__(what, found, supported)

    def _text(self) -> str:
        known = f"{self.what} {self.supported} or less"
        return f"expected a record of {known}, received {self.found}: upgrade this node"


class UnknownKey(RecordError):
    """Sealed with a key that this keyring lacks. Attributes: `key_id` (as the unverified header says),
    `known` (ids here).
    """

    def __init__(self, key_id: str, known: Sequence[str]) -> None:
        self.key_id = key_id
        self.known = tuple(known)
        super().__init__(key_id, self.known)

    def _text(self) -> str:
        here = ", ".join(self.known)
        return f"sealed with key {self.key_id!r}, this node has {here}: add that key to its key file"


class SealBroken(RecordError):
    """The tag does not match: something was changed, or sealed for another namespace, actor, run, transition
    or purpose.

    Attributes: `what` (actor and transition, or purpose, as the unverified header says), `key_id`.
    """

    def __init__(self, what: str, key_id: str) -> None:
        self.what = what
        self.key_id = key_id
        super().__init__(what, key_id)

    def _text(self) -> str:
        return (
            f"the seal of {self.what} does not hold under key {self.key_id!r}: changed, or of another place"
        )


class WrongActor(RecordError):
    """The record of one actor was found where another's belongs. Attributes: `expected`, `received` (actor
    ids).
    """

    def __init__(self, expected: str, received: str) -> None:
        self.expected = expected
        self.received = received
        super().__init__(expected, received)

    def _text(self) -> str:
        return f"expected the record of actor {self.expected!r}, received that of {self.received!r}"
