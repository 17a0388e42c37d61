"""Writes the reference pages that repeat the code: cli.md, api.md, errors.md, limits.md. A test compares them with what stands there.

Run it as `.venv/bin/python docs/reference/generate.py` after changing a command, a public name, an error or a limit.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
from sojourn.actors.current import Current

import sojourn
from sojourn import testing

HERE = Path(__file__).parent
MADE = "<!-- made by docs/reference/generate.py -->\n\n"
ERROR_MODULES = ("sojourn.codecs.errors", "sojourn.broker.errors", "sojourn.actors.errors")


def main() -> None:
    """Write every page that differs, and name it."""
    for name, make in PAGES.items():
        path, text = HERE / name, make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"wrote {path.name}\n")


def cli_page() -> str:
    """Every command with its help, as the command line prints it."""
    from sojourn.cli.app import cli

    parts = ["# Command line\n\n", MADE, _help(cli, "sojourn")]
    with click.Context(cli, info_name="sojourn") as context:
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            assert command is not None
            parts.append(f"\n## sojourn {name}\n\n{_help(command, f'sojourn {name}')}")
            if isinstance(command, click.Group):
                for sub, subcommand in command.commands.items():
                    parts.append(
                        f"\n### sojourn {name} {sub}\n\n{_help(subcommand, f'sojourn {name} {sub}')}"
                    )
    return "".join(parts)


def _help(command: click.Command, name: str) -> str:
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "terminal_width": 100}
    with click.Context(command, info_name=name, **settings) as context:  # type: ignore[arg-type]  # mixed values
        return f"```text\n{command.get_help(context)}\n```\n"


def api_page() -> str:
    """Every public name with its signature and the first paragraph of its docstring; classes with their methods."""
    parts = [
        "# Public names\n\n",
        MADE,
        "All are imported from `sojourn`; those of the testing kit, at the end, from `sojourn.testing`.\n",
    ]
    for name in sojourn.__all__:
        parts.extend(_entry("##", name, getattr(sojourn, name)))
    parts.append(
        "\n## sojourn.testing\n\n[Test workflows](../how-to/test-workflows.md) shows them at work.\n"
    )
    for name in testing.__all__:
        if name != "MemoryServer":  # of the broker layer, whose own tests describe it
            parts.extend(_entry("###", name, getattr(testing, name)))
    return "".join(parts)


def _entry(marks: str, name: str, value: object) -> Iterator[str]:
    is_error = inspect.isclass(value) and issubclass(value, BaseException)
    yield f"\n{marks} {name}\n\n"
    if callable(value) and not is_error:
        yield f"`{name}{_signature(value)}`\n\n"
    yield f"{_paragraph(value)}\n"
    if inspect.isclass(value) and not is_error:
        yield from _methods(value)
    elif isinstance(value, Current):
        yield from _methods(Current)


def _methods(cls: type) -> Iterator[str]:
    members = [
        (name, value)
        for name, value in vars(cls).items()
        if not name.startswith("_") and not isinstance(value, int) and _paragraph(value)
    ]
    if members:
        yield "\n"
    for name, value in members:
        inner = inspect.unwrap(getattr(value, "__func__", value))
        signature = _signature(inner) if inspect.isfunction(inner) else ""
        yield f"- `{name}{signature}`: {_paragraph(value)}\n"


class _Dots:
    """Stands for a default that has no literal."""

    def __repr__(self) -> str:
        return "..."


def _signature(value: object) -> str:
    """As it is written: without quotes around annotations, `self`, and a constructor's `-> None`."""
    assert callable(value)
    found = inspect.signature(value)
    shown = [
        p.replace(default=_Dots()) if repr(p.default).startswith("<") and p.default is not p.empty else p
        for p in found.parameters.values()
    ]
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(found.replace(parameters=shown)))
    text = text.replace("(self, ", "(").replace("(self)", "()")
    return text.removesuffix(" -> None") if inspect.isclass(value) else text


def _paragraph(value: object) -> str:
    text = inspect.cleandoc(value.__doc__ or "")
    return " ".join(text.split("\n\n")[0].split())


def errors_page() -> str:
    """Every error by layer: what it means."""
    parts = [
        "# Errors\n\n",
        MADE,
        "Each says what was expected, what was received, where, and what to do. The facts are attributes. All survive pickling.\n",
    ]
    for name in ERROR_MODULES:
        module = import_module(name)
        parts.append(f"\n## {name}\n\n| error | is a | meaning |\n|---|---|---|\n")
        parts.extend(
            f"| `{error.__name__}` | {_bases(error)} | {_paragraph(error).replace('|', '&#124;')} |\n"
            for error in _errors(module)
        )
    return "".join(parts)


def _errors(module: ModuleType) -> Iterator[type[BaseException]]:
    for name, value in vars(module).items():
        mine = (
            inspect.isclass(value)
            and issubclass(value, BaseException)
            and value.__module__ == module.__name__
        )
        if mine and not name.startswith("_"):
            yield value


def _bases(error: type[BaseException]) -> str:
    public = (base for base in error.__mro__[1:] if base is not object and not base.__name__.startswith("_"))
    return (
        ", ".join(f"`{base.__name__}`" for base in public if base not in (BaseException, Exception))
        or "`Exception`"
    )


def limits_page() -> str:
    """Every limit with its default and what happens at it, read from the source of `Limits`."""
    parts = [
        "# Limits\n\n",
        MADE,
        "Fields of `sojourn.Limits`, given to a node. Sizes are bytes, times are seconds.\n\n",
    ]
    parts.append("| limit | default | at the bound |\n|---|---|---|\n")
    body = _limits_class().body
    for field, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            default = getattr(sojourn.Limits(), field.target.id)
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = " ".join(str(after.value.value).split()) if documented else ""
            parts.append(f"| `{field.target.id}` | {default:,} | {text} |\n")
    return "".join(parts)


def _limits_class() -> ast.ClassDef:
    source = inspect.getsource(import_module("sojourn.actors.limits"))
    return next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Limits"
    )


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "api.md": api_page,
    "errors.md": errors_page,
    "limits.md": limits_page,
}

if __name__ == "__main__":
    main()
