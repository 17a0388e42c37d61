"""The user's app: from what is written on the command line to its definitions, and what is said when it cannot be imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import CommandFailed, Exit
from .output import clean

if TYPE_CHECKING:
    from sojourn.actors.registry import Registry


class AppFailed(CommandFailed):
    """The app's own code raised while it was imported. `shown` is the traceback as its author wants it: their frames alone."""

    def __init__(self, app: str, message: str, shown: str, hint: str = "") -> None:
        super().__init__(Exit.FAILED, f"{app} cannot be imported: {message}", hint)
        self.args = (app, message, shown, hint)
        self.app = app
        self.shown = shown

    @property
    def headline(self) -> str:
        """What stands below the traceback, which has said why."""
        return f"{self.app} cannot be imported"


def load(app: str) -> Registry:
    """Import the app. Raises `CommandFailed` when there is no such module, and `AppFailed` with what its own code raised."""
    from sojourn.actors.errors import DefinitionError
    from sojourn.actors.registry import Registry
    from sojourn.codecs.errors import SojournError
    from sojourn.codecs.traceback_text import traceback_text

    module = app.partition(":")[0]
    try:
        return Registry.for_app(app)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module == missing or module.startswith(f"{missing}.")):
            hint = "Name a module that can be imported from here, or a file such as app.py."
            raise CommandFailed(Exit.USAGE, f"no module named {clean(module)!r}", hint) from None
        if isinstance(error, DefinitionError) and error.function == f"app {app!r}":
            raise  # it is the command line that names what is not there, no code of the app's
        if isinstance(
            error, SojournError
        ):  # it says all there is to say; what of ours raised it says nothing
            error.__cause__ = error.__context__ = None
        shown = traceback_text(error)
        hint = _as_module(module, missing or "")
        raise AppFailed(module, f"{type(error).__name__}: {error}", shown, hint) from None


def _as_module(module: str, missing: str) -> str:
    """What to do when a file of a package was named, and imports that package: its folder is on the path, the package's is not."""
    folder = Path(sys.path[0]).resolve()
    package = missing.partition(".")[0]
    for parent in (folder, *folder.parents):
        if parent.name == package and package:
            name = ".".join((*folder.relative_to(parent.parent).parts, module))
            return f"Name it as a module, from {clean(str(parent.parent))}: {clean(name)}"
    return ""


def importable(app: str) -> str:
    """APP as a module name: a file's folder is put on the path first, else the current folder, as `python -m` does."""
    path, colon, attribute = app.partition(":")
    if path.endswith(".py"):
        file = Path(path).resolve()
        if not file.is_file():
            raise click.BadParameter(f"no such file: {clean(path)}", param_hint="APP")
        sys.path.insert(0, str(file.parent))
        return f"{file.stem}{colon}{attribute}"
    if os.sep in path:
        raise click.BadParameter(
            f"expected a module such as shop.workflows, or a file such as app.py, received {clean(path)}",
            param_hint="APP",
        )
    sys.path.insert(0, os.getcwd())
    return app
