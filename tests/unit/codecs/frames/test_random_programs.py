"""Random programs, run straight and moved at every suspension, must not be told apart (`corpus`).

`SOJOURN_CORPUS=20000` runs that many of them here; the seed is printed, and `SOJOURN_CORPUS_SEED` sets it. Continuous
integration runs `corpus.py` itself, on each interpreter.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from pathlib import Path

import corpus
import pytest
import random_programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PROGRAMS = int(os.environ.get("SOJOURN_CORPUS", "150"))
SEED = int(os.environ.get("SOJOURN_CORPUS_SEED", random.SystemRandom().randrange(1 << 32)))

# A random program may leave a coroutine unawaited, or await while it is closed: Python complains of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.data())
def test_a_random_program_cannot_tell_that_it_was_moved(data: st.DataObject) -> None:
    corpus.compare(random_programs.write_program(lambda n: data.draw(st.integers(0, n - 1))))


@pytest.mark.timeout(7200)
def test_a_corpus_of_random_programs_cannot_tell_that_it_was_moved() -> None:
    print(f"corpus of {PROGRAMS} programs, seed {SEED}")
    found = corpus.run(SEED, range(PROGRAMS))
    gc.collect()
    print(found)
    assert found.differed == 0
    assert found.suspensions > PROGRAMS == found.programs


def test_a_program_that_can_tell_is_found_and_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    telling = "import sys\nfrom frame_programs import tick\nasync def main(log):\n    log.append(id(log)); await tick(); return log"
    monkeypatch.setattr(corpus, "program", lambda seed, number: telling)
    assert corpus.run(7, range(1)).differed == 1
    assert f"program 0 of seed 7: Differs: {telling}" in capsys.readouterr().out


def test_a_corpus_in_two_processes_prints_its_seed_and_every_programs_share() -> None:
    words = ["--programs", "6", "--processes", "2", "--seed", "11"]
    done = subprocess.run(
        [sys.executable, str(Path(corpus.__file__)), *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("corpus of 6 programs, seed 11\n")
    assert done.stdout.count("seed 11: 3 programs") == 2


def test_no_program_is_begun_when_the_time_is_over() -> None:
    assert corpus.run(11, range(5), until=0.0) == corpus.Findings(programs=0, suspensions=0, differed=0)
