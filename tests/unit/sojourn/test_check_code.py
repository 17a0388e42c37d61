"""`sojourn check APP` on an app of two modules: one marked line is found, whatever else holds the same does not move."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sojourn.actors.registry import Registry

from sojourn.cli.app import cli
from sojourn.cli.failures import Exit

APP = """
import asyncio
import socket
from contextlib import contextmanager
import sojourn
import checked_helpers
from checked_helpers import Session

@sojourn.step
async def probe(host: str) -> bool:
    conn = socket.socket()
    await asyncio.sleep(1)  # a step has a loop
    conn.close()
    return True

async def never_called() -> None:
    conn = socket.socket()
    await sojourn.sleep(1)
    conn.close()

@sojourn.workflow
async def patrol(host: str) -> None:
    await probe(host)
    await checked_helpers.wait_a_little()
    await Session().renew()
    report = checked_helpers.path.read_text()
    await sojourn.sleep(5)  # finding: report large
    print(report)
"""
HELPERS = """
import asyncio, pathlib, sqlite3, threading
from asyncio import wait_for as within
import sojourn

path = pathlib.Path("report")

async def wait_a_little() -> None:
    lock = threading.Lock()
    await sojourn.sleep(1)  # finding: lock resource
    lock.acquire()

class Session:
    async def renew(self) -> None:
        with sqlite3.connect(":memory:") as database:
            await sojourn.sleep(2)  # finding: database resource
        await self.pause()

    async def pause(self) -> None:
        await asyncio.sleep(1)  # finding: - foreign
        return await within(sojourn.sleep(1), 2)  # finding: - foreign
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    fresh = Registry()
    for name in ("registry", "step", "workflow", "lifespan"):
        monkeypatch.setattr(importlib.import_module(f"sojourn.actors.{name}"), "default_registry", fresh)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_app.py").write_text(textwrap.dedent(APP))
    (tmp_path / "checked_helpers.py").write_text(textwrap.dedent(HELPERS))
    yield tmp_path / "checked_app.py"
    for name in ("checked_app", "checked_helpers"):
        sys.modules.pop(name, None)


def marked(folder: Path) -> set[tuple[str, int, str, str]]:
    found = set()
    for file in folder.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            _, mark, rest = line.partition("# finding: ")
            if mark:
                variable, kind = rest.split()
                found.add((str(file), number, variable.strip("-"), kind))
    return found


def check(*words: str) -> Result:
    return CliRunner().invoke(cli, ["check", *words], env={"COLUMNS": "200"})


@pytest.mark.parametrize("name", ["checked_app", "checked_app.py"])
def test_the_code_that_workflows_lead_to_is_checked_and_steps_are_not(app: Path, name: str) -> None:
    done = check(name, "--json")
    assert done.exit_code == Exit.FAILED, done.output
    answer = json.loads(done.stdout)
    assert {(f["file"], f["line"], f["variable"], f["kind"]) for f in answer["findings"]} == marked(
        app.parent
    )
    assert answer["workflows"] == 1


def test_a_finding_is_a_line_that_an_editor_can_jump_to(app: Path) -> None:
    done = check("checked_app")
    assert done.exit_code == Exit.FAILED
    (line,) = [line for line in done.stdout.splitlines() if "`lock`" in line]
    number = next(number for _, number, variable, _ in marked(app.parent) if variable == "lock")
    assert line.startswith(
        f"{app.parent / 'checked_helpers.py'}:{number}: `lock` (threading.Lock()) in `wait_a_little`"
    )
    assert done.stdout.splitlines()[-1].endswith("5 awaits to mend")
    said = [line.partition(": ")[2] for line in done.stdout.splitlines() if "event loop" in line]
    assert said == [
        "`asyncio.sleep(1)` in `Session.pause` needs an event loop, and a workflow has none; use sojourn.sleep",
        "`within(sojourn.sleep(1), 2)` in `Session.pause` needs an event loop, and a workflow has none; use sojourn.timeout",
    ]


def test_an_app_without_findings_is_done(app: Path) -> None:
    text = app.read_text().replace("report = checked_helpers.path.read_text()", "report = 1")
    app.write_text(text.replace("await checked_helpers", "# ").replace("await Session()", "# "))
    done = check("checked_app")
    assert done.exit_code == Exit.DONE, done.output
    assert done.stdout.rstrip().endswith("nothing found")


def test_an_app_that_is_not_there_is_a_usage_error_and_no_broker_is_asked() -> None:
    assert check("no_such_app_anywhere", "--server", "nats://127.0.0.1:1").exit_code == Exit.USAGE
