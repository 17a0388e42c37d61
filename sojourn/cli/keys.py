"""Where a command gets the keys that seal records. Only nodes need them, and `check`, which opens records without unpickling any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .devfile import FOLDER

if TYPE_CHECKING:
    from sojourn.codecs.keyring import Keyring

KEY_VARIABLE: Final = "SOJOURN_KEY"
KEY_FILE_VARIABLE: Final = "SOJOURN_KEY_FILE"

key_option = click.option(
    "--key-file",
    envvar=KEY_FILE_VARIABLE,
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File with the keys that seal records; mode 0600.  [default: the keys in {KEY_VARIABLE}]",
)
"""Adds --key-file to a command."""


def keyring(key_file: Path | None) -> Keyring:
    """The keys of the cluster: from the file, the environment, or the `sojourn dev` of this folder. Raises `KeyringError`, or a usage
    error when there are none.
    """
    from sojourn.codecs.keyring import Keyring

    if key_file is not None:
        return Keyring.from_file(key_file)
    if os.environ.get(KEY_VARIABLE):
        return Keyring.from_env(KEY_VARIABLE)
    beside = Path(FOLDER) / "key"
    if beside.is_file():
        return Keyring.from_file(beside)
    raise click.UsageError(
        f"this needs the key that seals records: name a file with --key-file or {KEY_FILE_VARIABLE}, or put the keys into "
        f"{KEY_VARIABLE} (`sojourn dev` makes one in ./{FOLDER})"
    )
