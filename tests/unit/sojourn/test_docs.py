"""What the docs say is true: their code runs, their commands parse, their links lead somewhere, the made pages are fresh."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from sojourn.cli.app import cli

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(
    r"(?:<!-- run: (?P<name>\S+) -->\n)?^ *```(?P<language>\w+)\n(?P<text>.*?)^ *```$", re.S | re.M
)
AS_A_ROLE = re.compile(r"^(?:as [a-z]+|(?:SOJOURN_\w+=\S+(?: \w+\))? )+sojourn) ")
"""The function that the pages define, and variables before a command."""
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    page: Path
    name: str
    language: str
    text: str

    @property
    def label(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.name or self.text.strip().splitlines()[0][:30]}"


def blocks(language: str) -> list[Block]:
    found = [
        Block(page, match["name"] or "", match["language"], match["text"])
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
    ]
    return [block for block in found if block.language == language]


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.label)
def test_a_python_example_runs_as_a_module(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fragments (no `run:` above them) must at least be Python; whole programs must import, which registers what they define."""
    if not block.name:
        compile(block.text, block.label, "exec")
        return
    from sojourn.actors.registry import Registry

    fresh = Registry()  # two pages may have a workflow of one name
    for name in ("registry", "step", "workflow", "lifespan"):
        monkeypatch.setattr(importlib.import_module(f"sojourn.actors.{name}"), "default_registry", fresh)
    name = "example_" + re.sub(r"\W", "_", block.label)
    path = tmp_path / f"{name}.py"
    path.write_text(block.text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


def commands() -> Iterator[tuple[str, str]]:
    for block in blocks("console"):
        typed = (
            line.strip().removeprefix("$ ")
            for line in block.text.splitlines()
            if line.strip().startswith("$ ")
        )
        for part in (part for line in typed for part in line.split(" | ")):
            words = re.split(r" [<>] ", AS_A_ROLE.sub("sojourn ", part))[0]
            if words.startswith("sojourn "):
                yield str(block.page.relative_to(ROOT)), words


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_documented_command_parses(page: str, line: str) -> None:
    command: click.Command = cli
    words = shlex.split(line)[1:]
    context = click.Context(cli, info_name="sojourn", **cli.context_settings)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.parse_args(context, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in LINK.findall(page.read_text())
        if "://" not in target
    }
    start = {ROOT / "README.md"}
    assert [str(page.relative_to(ROOT)) for page in PAGES if page.resolve() not in linked | start] == []


def test_the_made_reference_pages_are_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/reference/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    folder = ROOT / "docs/reference"
    stale = [
        name
        for name, make in generate.PAGES.items()
        if not (folder / name).exists() or (folder / name).read_text() != make()
    ]
    assert stale == [], "run .venv/bin/python docs/reference/generate.py"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md")))
def test_a_decision_has_a_status_and_is_in_the_list(name: str) -> None:
    text = (ROOT / "docs/decisions" / name).read_text()
    status = re.search(r"^Status: (\S.*)$", text, re.M)
    assert status is not None
    assert text.startswith(f"# {name[:4]} ")
    row = next(
        line for line in (ROOT / "docs/decisions/README.md").read_text().splitlines() if f"({name})" in line
    )
    assert status[1].split(",")[0].split(" by ")[0] in row
