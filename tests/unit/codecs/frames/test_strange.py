"""The strangest legal Python cannot tell that it was moved: here, in a fresh process, and while tools look on."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import driving
import pytest
import strange
from sojourn.codecs import frames

ALL = sorted(strange.PROGRAMS)
HERE = Path(__file__).parent


def straight(name: str) -> Any:
    return driving.drive(strange.PROGRAMS[name], driving.straight)


@pytest.mark.parametrize("name", ALL)
def test_a_strange_program_cannot_tell_that_it_was_moved(name: str) -> None:
    stayed = straight(name)
    assert driving.normal(driving.drive(strange.PROGRAMS[name], driving.moved)) == driving.normal(stayed)
    assert stayed[2] == "returned", stayed
    assert len(stayed[0]) > 1


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # no loop finalises async generators here
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # what is held and then never awaited
@pytest.mark.parametrize("name", ALL)
def test_it_handles_alike_what_is_thrown_at_any_suspension(name: str) -> None:
    start = strange.PROGRAMS[name]
    for at in range(1, min(len(straight(name)[0]), 30)):
        stayed = driving.drive(start, driving.straight, throw_at=at)
        assert driving.normal(driving.drive(start, driving.moved, throw_at=at)) == driving.normal(stayed), at


def test_a_fresh_process_finishes_each_from_each_of_its_suspensions(tmp_path: Path) -> None:
    stored: dict[str, list[tuple[int, frames.Frame]]] = {}
    expected = {}
    for name in ALL:
        kept = stored[name] = []

        def keep(target: Any, log: list[Any], kept: Any = kept) -> Any:
            kept.append((len(kept) + 1, frames.dump((target, log))))
            return target, log

        _, *end = driving.drive(strange.PROGRAMS[name], keep)
        expected[name] = driving.normal(end)
    path = tmp_path / "frames"
    path.write_bytes(pickle.dumps(stored))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::SyntaxWarning", str(HERE / "strange.py"), str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    ends = ast.literal_eval(done.stdout)
    for name in ALL:
        for count, end in enumerate(ends[name], 1):
            assert end == expected[name], (name, count)
