"""`sojourn demo`: it ends well, quickly, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


def test_the_demo_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "sojourn.cli", "demo", "--workflows", "100", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["problems"] == []
    figures = verdict["figures"]
    assert [figures[end] for end in ("completed", "rejected", "cancelled")] == [
        "80",
        "10",
        "10, with 10 children",
    ]
    assert int(figures["resumed on another node"]) > 0
    assert "Nothing was lost, nothing was done twice" in done.stderr
    assert "SIGKILL node-2" in done.stderr
    assert "node-3 has left in good order" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert _processes_naming(str(tmp_path)) == []


def _processes_naming(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found
