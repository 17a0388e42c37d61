"""What the commands that are a process of their own share: `sojourn node` and `sojourn worker`."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import click

LEVELS: Final = ("debug", "info", "warning", "error")
F = TypeVar("F")


def process_options(command: F) -> F:
    """Add the options for health pages and logs."""
    with_options: Any = command
    for option in (
        click.option("--log", "level", type=click.Choice(LEVELS), default="info", show_default=True),
        click.option("--no-health", is_flag=True, help="Serve no health pages."),
        click.option(
            "--health-port",
            type=click.IntRange(0, 65_535),
            default=0,
            help="Their port.  [default: a free one]",
        ),
        click.option(
            "--health-host",
            default="127.0.0.1",
            show_default=True,
            help="Address of /livez, /readyz, /metrics.",
        ),
    ):
        with_options = option(with_options)
    return with_options  # type: ignore[no-any-return]  # click's options change the parameters behind the type's back
