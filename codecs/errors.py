"""Errors of the codecs layer, and `SojournError`, the base of every error of Sojourn.

Each says what was expected, what was received, where, and what to do. The facts are attributes, and every error survives
pickling: its arguments are its attributes. Nothing here ever holds a payload.

    SojournError
    +- CannotSuspend            a value alive across an await cannot be stored
    +- FrameTooLarge            the frame is over its size limit
    +- PinNotSatisfied          this process lacks code that the frame needs
    +- UnsupportedInterpreter   frames cannot be captured or restored on this Python at all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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

    Attributes: `function` (qualified name), `line`, `variable` (empty for a value on the stack), `path` (inside the
    variable, such as `.client._socket`), `type_name`, `remedy`, `file`.
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
        return f"{what} (`{self.type_name}`){where} is alive across an await and cannot be stored; {self.remedy}"


class FrameTooLarge(_Facts):
    """A frame is over its limit. Attributes: `size`, `limit` (bytes), `sizes` (bytes by `function.variable`, largest first)."""

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


class PinNotSatisfied(_Facts):
    """This process lacks code that a frame needs; the frame itself is unharmed.

    Attributes: `missing` (identities), `reasons` (one sentence for each: function, stored and present identity).
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
