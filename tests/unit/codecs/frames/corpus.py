"""The corpus: random programs, run straight and moved at every suspension, must not be told apart.

    python tests/unit/codecs/frames/corpus.py --programs 20000 --processes 2 [--seed 7] [--first 4711] [--seconds 200]

Program n of a seed is the same for each interpreter and any number of processes. The seed is printed; so is the
source of each program that differed, and the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import gc
import io
import math
import random
import subprocess
import sys
import time
import warnings
from functools import partial
from typing import Any, NamedTuple

import driving
import random_programs
from sojourn.codecs import code_hash, frames, identity, liveness, slots
from sojourn.codecs.coroutines import suspended_in
from sojourn.codecs.pickler import FramePickler

SUSPENSIONS = 60


class Differs(AssertionError):
    """A program that was moved did something else than one that stayed. The message is its source."""


def program(seed: int, number: int) -> str:
    """The source of one program of the corpus."""
    return random_programs.write_program(random.Random(f"{seed}/{number}").randrange)


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
    if moved != driving.normal(stayed):
        raise Differs(source)
    return len(stayed[0])


def holding_ended(held: list[bool], target: Any, log: list[Any]) -> Any:
    """Note whether something suspended is alive only through a traceback."""
    pickler = FramePickler(io.BytesIO())
    pickler.dump(target)
    held.append({id(each) for each in suspended_in(target)} != {id(each) for each in pickler.visited})
    return target, log


class Findings(NamedTuple):
    """What a run of the corpus found."""

    programs: int
    suspensions: int
    differed: int


def run(seed: int, numbers: range, until: float = math.inf) -> Findings:
    """Compare these programs, none begun after `until` (of `time.perf_counter`). Each that differs is printed."""
    ran = bad = suspensions = 0
    for at, number in enumerate(numbers):
        if time.perf_counter() >= until:
            break
        ran += 1
        if at % _FORGET == _FORGET - 1:
            _forget()
        source = program(seed, number)
        try:
            suspensions += compare(source)
        except Exception as error:  # whatever it is, it is told with its program, and the others still run
            bad += 1
            sys.stdout.write(f"program {number} of seed {seed}: {type(error).__name__}: {error}\n{source}\n")
    return Findings(ran, suspensions, bad)


_FORGET = 200


def _forget() -> None:
    """Drop what is kept of the code of programs that are gone, or a long corpus takes gigabytes."""
    identity.forget()
    for cache in (liveness._CACHE, code_hash._identities, slots._facts, frames._lines_of_code):
        cache.clear()
    gc.collect()


def main() -> int:
    """Run a corpus, or one share of it."""
    options = argparse.ArgumentParser()
    options.add_argument("--programs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--step", type=int, default=1)
    options.add_argument("--processes", type=int, default=1)
    options.add_argument("--seconds", type=float, default=math.inf, help="begin no program after this time")
    chosen = options.parse_args()
    if chosen.processes > 1:
        return _shared(chosen)
    # Random programs leave coroutines unawaited and are closed where they await: Python complains of both.
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    gc.freeze()
    numbers = range(chosen.first, chosen.programs, chosen.step)
    start = time.perf_counter()
    found = run(chosen.seed, numbers, start + chosen.seconds)
    sys.stdout.write(
        f"CPython {sys.version.split()[0]}, seed {chosen.seed}: {found.programs} programs, {found.suspensions} suspensions,"
        f" {found.differed} differed, {time.perf_counter() - start:.0f} s\n"
    )
    if found.programs < len(numbers):
        sys.stdout.write(f"the time was over: {len(numbers) - found.programs} programs were not run\n")
    return 1 if found.differed or found.suspensions < found.programs else 0


def _shared(chosen: argparse.Namespace) -> int:
    """Run the corpus in several processes, each with every n-th program."""
    start = time.perf_counter()
    print(f"corpus of {chosen.programs} programs, seed {chosen.seed}", flush=True)
    words = [sys.executable, "-X", "faulthandler", __file__, "--seed", str(chosen.seed)]
    words += [f"--programs={chosen.programs}", f"--step={chosen.processes}", f"--seconds={chosen.seconds}"]
    shares = [
        subprocess.Popen([*words, "--first", str(chosen.first + share)]) for share in range(chosen.processes)
    ]
    codes = [share.wait() for share in shares]
    print(f"{chosen.processes} processes ended after {time.perf_counter() - start:.0f} s: exit codes {codes}")
    return max(1 if code else 0 for code in codes)


if __name__ == "__main__":
    sys.exit(main())
