"""`sojourn keys`, and where a command gets the keys that seal records. Only nodes need them, and `check`, which opens records without
unpickling any.

A key file rotates in steps, each given to every node before the next: `keys add` puts a key first in the file, where it opens but does
not seal; `keys promote` moves it to the end, where it seals; `keys usage` counts the records that still need each. A node that seals
with a key another node lacks would lock that one out, which is why one step does not do.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .connection import Connection, connection_options, reported
from .devfile import FOLDER, DevFile
from .failures import CommandFailed, Exit
from .output import Output

if TYPE_CHECKING:
    from sojourn.codecs.keyring import Keyring

KEY_VARIABLE: Final = "SOJOURN_KEY"
KEY_FILE_VARIABLE: Final = "SOJOURN_KEY_FILE"

key_option = click.option(
    "--key-file",
    envvar=KEY_FILE_VARIABLE,
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File with the keys that seal records; mode 0600.  [default: the keys in {KEY_VARIABLE}, or `sojourn dev` here]",
)
"""Adds --key-file to a command."""


def keyring(key_file: Path | None, connection: Connection) -> Keyring:
    """The keys of the cluster: from the file, the environment, or the `sojourn dev` of this folder, if that is the cluster.

    Raises `KeyringError`, or a usage error when there are none: records that are sealed with the key of another cluster could be opened
    by none of its nodes.
    """
    from sojourn.codecs.keyring import Keyring

    if key_file is not None:
        return Keyring.from_file(key_file)
    if os.environ.get(KEY_VARIABLE):
        return Keyring.from_env(KEY_VARIABLE)
    beside = Path(FOLDER) / "key"
    if beside.is_file():
        running = DevFile.read(Path.cwd())
        if running is not None and running.serves(connection.server, connection.namespace):
            return Keyring.from_file(beside)
        owner = (
            f"the `sojourn dev` at {running.server}, namespace {running.namespace}"
            if running is not None
            else "a `sojourn dev` that does not run now"
        )
        raise click.UsageError(
            f"this needs the key that seals the records of namespace {connection.namespace} at {connection.server}, and the one in "
            f"./{FOLDER} was made for {owner}: name the right one with --key-file or {KEY_FILE_VARIABLE} (if it is that one: "
            f"--key-file {beside})"
        )
    raise click.UsageError(
        f"this needs the key that seals records: name a file with --key-file or {KEY_FILE_VARIABLE}, or put the keys into "
        f"{KEY_VARIABLE} (all nodes have the same; `sojourn keys generate FILE` makes one, `sojourn dev` has its own in ./{FOLDER})"
    )


@click.group()
def keys() -> None:
    """The keys that seal records: make, rotate, count."""


_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@keys.command()
@_file
@reported
async def generate(output: Output, file: Path) -> None:
    """Write a new key FILE with one key, mode 0600. An existing file is left as it is."""
    from sojourn.codecs.keyring import Keyring

    _say(output, file, Keyring.generate(file))


@keys.command()
@_file
@reported
async def add(output: Output, file: Path) -> None:
    """Put a fresh key first in FILE: nodes that have it can open what it sealed, none seals with it yet.

    Give the file to every node before `sojourn keys promote`.
    """
    from sojourn.codecs.keyring import Keyring

    present = _lines(file)
    fresh = file.with_name(f".{file.name}.fresh")
    try:
        Keyring.generate(fresh)
        _replace(file, [*_lines(fresh), *present])
    finally:
        fresh.unlink(missing_ok=True)
    _say(output, file, Keyring.from_file(file))


@keys.command()
@_file
@click.argument("key_id", required=False)
@reported
async def promote(output: Output, file: Path, key_id: str | None) -> None:
    """Let the key KEY_ID (by default the first in FILE) seal from now on, by moving it to the end.

    Every node must have it already.
    """
    from sojourn.codecs.keyring import Keyring

    _replace(file, _moved(_lines(file), key_id, keep=True))
    _say(output, file, Keyring.from_file(file))


@keys.command()
@_file
@click.argument("key_id")
@reported
async def remove(output: Output, file: Path, key_id: str) -> None:
    """Take the key KEY_ID out of FILE. What only it can open is lost: ask `sojourn keys usage` first."""
    from sojourn.codecs.keyring import Keyring

    present = _lines(file)
    if present[-1].split()[1] == key_id:
        raise CommandFailed(
            Exit.REFUSED, f"{key_id} seals: promote another first", "`sojourn keys promote FILE`"
        )
    _replace(file, _moved(present, key_id, keep=False))
    _say(output, file, Keyring.from_file(file))


@keys.command()
@connection_options
@reported
async def usage(output: Output, connection: Connection) -> None:
    """Count the records that each key sealed. A key that sealed none can be removed.

    A record is sealed anew, with the newest key, whenever its actor moves.
    """
    from sojourn.cluster.hosting.views import list_indexes

    counts: Counter[str] = Counter()
    async with connection.broker() as broker:
        async for index in list_indexes(broker, await connection.subjects(broker)):
            counts[index.key_id] += 1
    if output.json:
        output.document(dict(counts))
    else:
        output.table(("key", "records"), sorted(counts.items()))


def _lines(file: Path) -> list[str]:
    """The lines with keys, checked. Raises `KeyringError`."""
    from sojourn.codecs.keyring import Keyring

    Keyring.from_file(file)
    return [
        line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]


def _moved(lines: list[str], key_id: str | None, *, keep: bool) -> list[str]:
    """Without that key, or with it at the end. Raises `CommandFailed`."""
    wanted = key_id or lines[0].split()[1]
    found = [line for line in lines if line.split()[1] == wanted]
    if not found:
        known = ", ".join(line.split()[1] for line in lines)
        raise CommandFailed(Exit.NOT_FOUND, f"no key {wanted!r}; the file has {known}")
    return [line for line in lines if line not in found] + (found if keep else [])


def _replace(file: Path, lines: list[str]) -> None:
    """Write whole or not at all, mode 0600."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as written:
            written.write(
                "# Sojourn keys; the last one seals. Whoever has one can write records that nodes run.\n"
            )
            written.writelines(f"{line}\n" for line in lines)
            written.flush()
            os.fsync(written.fileno())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _say(output: Output, file: Path, keyring: Keyring) -> None:
    if output.json:
        output.document({"file": str(file), "keys": list(keyring.ids), "seals": keyring.newest_id})
        return
    output.table(
        ("key", ""), ((one, "seals" if one == keyring.newest_id else "opens") for one in keyring.ids)
    )
