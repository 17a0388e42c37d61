"""The corpus: random programs, run straight and moved at every suspension, must not be told apart.

`SOJOURN_CORPUS=20000` runs that many (they take some minutes); the seed is printed, and `SOJOURN_CORPUS_SEED`
sets it.
"""

from __future__ import annotations

import gc
import io
import os
import random
import warnings
from functools import partial
from typing import Any

import driving
import pytest
import random_programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sojourn.codecs.coroutines import suspended_in
from sojourn.codecs.pickler import FramePickler

PROGRAMS = int(os.environ.get("SOJOURN_CORPUS", "150"))
SEED = int(os.environ.get("SOJOURN_CORPUS_SEED", random.SystemRandom().randrange(1 << 32)))
SUSPENSIONS = 60


def compare(source: str) -> int:
    """Run a program both ways; the number of its suspensions.

    Two things may differ. CPython 3.11 reports an unbound variable a line early once it has joined two instructions
    into one, which depends on how often code ran: so a program that differs is run straight once more. And a
    traceback keeps the variables of functions that have ended, which do not move: where one of them is a suspended
    generator, its cleanup is never seen, and the program is left out.
    """
    module = random_programs.module_of(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a program that leaves a coroutine unawaited warns by itself
        stayed = driving.drive(module.main, driving.straight, limit=SUSPENSIONS)
        moved = driving.normal(driving.drive(module.main, driving.moved, limit=SUSPENSIONS))
        if moved != driving.normal(stayed):
            held: list[bool] = []
            stayed = driving.drive(module.main, partial(holding_ended, held), limit=SUSPENSIONS)
            if any(held):
                return 0
    assert moved == driving.normal(stayed), source
    return len(stayed[0])


def holding_ended(held: list[bool], target: Any, log: list[Any]) -> Any:
    """Note whether something suspended is alive only through a traceback."""
    pickler = FramePickler(io.BytesIO())
    pickler.dump(target)
    held.append({id(each) for each in suspended_in(target)} != {id(each) for each in pickler.visited})
    return target, log


# A random program may leave a coroutine unawaited, or await while it is closed: Python complains of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.data())
def test_a_random_program_cannot_tell_that_it_was_moved(data: st.DataObject) -> None:
    compare(random_programs.write_program(lambda n: data.draw(st.integers(0, n - 1))))


@pytest.mark.timeout(7200)
def test_a_corpus_of_random_programs_cannot_tell_that_it_was_moved() -> None:
    print(f"corpus of {PROGRAMS} programs, seed {SEED}")
    suspensions = 0
    for number in range(PROGRAMS):
        generator = random.Random(f"{SEED}/{number}")
        source = random_programs.write_program(generator.randrange)
        try:
            suspensions += compare(source)
        except BaseException:
            print(f"program {number} of seed {SEED}:\n{source}")
            raise
    gc.collect()
    print(f"{suspensions} suspensions")
    assert suspensions > PROGRAMS
