"""Values typed on the command line: JSON, with plain words allowed where they cannot be mistaken for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click
import orjson

PIPED: Final = "-"
"""Where names stand on standard input."""


def typed_or_piped(words: Iterable[str]) -> Iterator[str]:
    """Ids as they were typed, and where `-` was typed those that stand on standard input, one a line."""
    for word in words:
        if word == PIPED:
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            yield word


class JsonValue(click.ParamType[Any]):
    """JSON; a word that is not JSON and does not look like it is text.

    `42`, `true`, `{"ok": true}` and `"a b"` are JSON, `ada` is the text "ada". What begins like JSON and is
    not is refused: `{ok: true}` sent as a text would reach a workflow that expects an object.
    """

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a usage error that quotes what was received."""
        if not isinstance(value, str):
            return value
        try:
            return orjson.loads(value)
        except ValueError as error:
            if value.lstrip()[:1] in ("{", "[", '"'):
                self.fail(
                    f"expected JSON, received {value[:80]!r} ({error}); quote names and texts with double quotes",
                    param,
                    ctx,
                )
            return value


class NamedValue(click.ParamType[tuple[str, Any]]):
    """`name=value`, the value as `JsonValue`."""

    name = "name=json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Name and value."""
        if not isinstance(value, str):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"expected name=value, received {value[:80]!r}", param, ctx)
        return name, JsonValue().convert(text, param, ctx)


class DurationValue(click.ParamType[float]):
    """A duration: `30s`, `1h30m`; a plain number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        from sojourn.codecs.durations import duration
        from sojourn.codecs.errors import SojournError

        try:
            seconds = float(value)
        except (TypeError, ValueError):
            seconds = value
        try:
            return duration(seconds)
        except (SojournError, ValueError, TypeError) as error:
            self.fail(str(error), param, ctx)
