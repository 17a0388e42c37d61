"""Random programs, run straight and moved at every suspension, must not be told apart (`corpus`).

`SOJOURN_CORPUS=20000` runs that many of them here; the seed is printed, and `SOJOURN_CORPUS_SEED` sets it. Continuous
integration runs `corpus.py` itself, on each interpreter.
"""

from __future__ import annotations

import ast
import gc
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import corpus
import pytest
import random_programs
from hypothesis import HealthCheck, given, settings
from random_programs import Batch

PROGRAMS = int(os.environ.get("SOJOURN_CORPUS", "400"))
SEED = int(os.environ.get("SOJOURN_CORPUS_SEED", random.SystemRandom().randrange(1 << 32)))

# A random program may leave a coroutine unawaited, or await while it is closed: Python complains of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(random_programs.batches)
def test_a_random_program_cannot_tell_that_it_was_moved(batch: Batch) -> None:
    for _, error, _ in corpus.differing(batch):
        if error is not None:
            raise error


@pytest.mark.timeout(7200)
def test_a_corpus_of_random_programs_cannot_tell_that_it_was_moved() -> None:
    print(f"corpus of {PROGRAMS} programs, seed {SEED}")
    found = corpus.run(SEED, PROGRAMS)
    gc.collect()
    print(found)
    assert found.differed == 0
    assert found.suspensions > 10 * PROGRAMS == 10 * found.programs


def test_a_program_that_can_tell_is_found_and_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    telling = "async def main0(log):\n    log.append(id(log)); await tick(); return id(log)\n"
    monkeypatch.setattr(
        corpus, "each_batch", lambda seed, chunk, take, programs: take(Batch("HELP = 1\n", (telling,)))
    )
    assert corpus.run(7, 1).differed == 1
    printed = capsys.readouterr().out
    assert printed.startswith(
        "chunk 0 of seed 7\nmain0, program 1 of this run, chunk 0 of seed 7: Differs: \n"
    )
    assert "HELP = 1\n" + telling in printed


def test_a_chunk_of_a_seed_holds_the_same_programs_each_time() -> None:
    taken: list[list[Batch]] = [[], [], []]
    for times, chunk in enumerate((3, 3, 4)):
        corpus.each_batch(11, chunk, taken[times].append, 42)
    assert len(taken[0]) == 42 / random_programs.PROGRAMS
    assert taken[0] == taken[1] != taken[2]


def test_programs_suspend_in_every_statement_and_in_every_place_of_an_expression() -> None:
    taken: list[Batch] = []
    corpus.each_batch(11, 0, taken.append, 400)
    nodes: Counter[str] = Counter()
    around: Counter[str] = Counter()
    for batch in taken:
        for node in ast.walk(ast.parse(batch.source)):
            nodes[type(node).__name__] += 1
            around.update(
                type(node).__name__ for child in ast.iter_child_nodes(node) if isinstance(child, ast.Await)
            )
    assert {
        "AsyncFor", "AsyncFunctionDef", "AsyncWith", "AugAssign", "Break", "Continue", "Delete", "ExceptHandler", "For",
        "FunctionDef", "GeneratorExp", "If", "Lambda", "ListComp", "Match", "Nonlocal", "Raise", "Return", "Try", "TryStar",
        "While", "With", "Yield",
    } <= nodes.keys()  # fmt: skip
    assert {
        "Assign", "AugAssign", "BinOp", "BoolOp", "Call", "Compare", "Dict", "DictComp", "FormattedValue", "IfExp", "List",
        "NamedExpr", "Set", "Slice", "Subscript", "Tuple", "UnaryOp", "arguments", "keyword", "match_case",
    } <= around.keys()  # fmt: skip
    assert nodes["Await"] > 100 * len(taken)


def _corpus(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(corpus.__file__)), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_corpus_in_two_processes_prints_its_seed_and_every_programs_share() -> None:
    done = _corpus(
        "--programs", "1008", "--processes", "2", "--seed", "11", "--seconds", "0", "--time-may-end"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("corpus of 1008 programs, seed 11\n")
    assert done.stdout.count("seed 11: 0 programs") == 2
    assert "the time was over: 1000 of 1000 programs were not run" in done.stdout
    assert "the time was over: 8 of 8 programs were not run" in done.stdout


def test_a_corpus_whose_time_is_over_fails_and_says_so() -> None:
    done = _corpus("--programs", "20", "--seed", "11", "--seconds", "0")
    assert done.returncode == 1
    assert "the time was over: 20 of 20 programs were not run\n" in done.stdout


_ENDS_THE_PROCESS = """\
import faulthandler, resource, sys
sys.path.insert(0, {folder!r})
import corpus
from random_programs import Batch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable()
corpus.each_batch = lambda seed, chunk, take, programs: take(Batch("", ("async def main0(log): {does}",)))
corpus.run(7, 1, hanging=0.3)
"""


@pytest.mark.parametrize("does", ["import faulthandler; faulthandler._sigabrt()", "any(iter(int, 1))"])
def test_a_program_that_crashes_or_hangs_the_process_is_named(does: str) -> None:
    script = _ENDS_THE_PROCESS.format(folder=str(Path(corpus.__file__).parent), does=does)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0
    assert done.stdout == "chunk 0 of seed 7\n"
    assert 'File "main0 of batch 1 of chunk 0 of seed 7", line' in done.stderr
