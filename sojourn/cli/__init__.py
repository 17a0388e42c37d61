"""The command line, `sojourn`.

Commands live in one module per audience and are imported when they are used: `actors` (start, signal,
result and the like), `operators` (nodes, dead letters, check, topology), `node`, `dev`, `doctor` and
`demo`. All share one way to connect (`connection`), to print (`output`: tables for people, one JSON
document with `--json`) and to fail (`failures`: exit codes). The command line holds no key: it sends
control messages, reads indexes, asks owners; it never opens a frame.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the `sojourn` script."""
    from .app import cli

    cli()
