"""The chaos harness in its short form: seeded faults on real processes lose nothing, and the harness notices three broken builds.

The long form is `make chaos` (docs/how-to/run-chaos.md).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


async def _chaos(place: Path, *options: str, sabotage: str = "") -> tuple[int, str]:
    """Run the harness as its users do; exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos", "--keep", str(place), *options,
        cwd=ROOT,
        env={**os.environ, "SOJOURN_CHAOS_SABOTAGE": sabotage},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(280):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()  # its nodes and servers end with it
            await process.wait()
    return process.returncode or 0, said.decode(errors="replace")


async def test_faults_of_every_short_kind_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    code, said = await _chaos(
        tmp_path, "--seed", "2026", "--seconds", "24", "--replicas", "1", "--workflows", "120"
    )
    assert code == 0, said
    assert "nothing was lost, nothing was done twice" in said


@pytest.mark.parametrize(
    ("sabotage", "faults", "notices"),
    [
        ("no-compare-and-swap", ("--only", "late-writes", "--seed", "3"), "findings about commits"),
        ("ack-before-commit", ("--only", "kill", "--seed", "3"), "findings about"),
        (
            "outbox-not-resent",
            ("--only", "crash-point", "--points", "before_flush", "--seed", "4"),
            "findings about ends",
        ),
    ],
    ids=["no compare-and-swap", "acknowledged before the commit", "outbox not sent again"],
)
async def test_the_harness_notices_a_node_that_is_broken_on_purpose(
    sabotage: str, faults: tuple[str, ...], notices: str, tmp_path: Path
) -> None:
    code, said = await _chaos(
        tmp_path,
        "--seconds",
        "18",
        "--replicas",
        "1",
        "--workflows",
        "150",
        "--settle",
        "6",
        *faults,
        sabotage=sabotage,
    )
    assert code == 1, said
    assert notices in said
