"""The corpus: random programs, run straight and moved at every suspension, must not be told apart.

    python tests/unit/codecs/frames/corpus.py --programs 20000 --processes 2 [--seed 7] [--chunk 31] [--seconds 200]

Hypothesis writes them, in batches that share helpers (`random_programs`), from a seed that is printed. Chunk n of a seed holds
the same programs for each interpreter and any number of processes. Of each program that differed the source is printed, with
its chunk, and the exit code is 1 then; also when the time was over first.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import driving
import random_programs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from random_programs import Batch
from sojourn.codecs import code_hash, coroutines, frames, identity, liveness, slots
from sojourn.codecs.coroutines import suspended_in

SUSPENSIONS = 50
CHUNK = 1000
"""Programs of one seed of hypothesis. The first batch of each is the simplest there is."""


class Differs(AssertionError):
    """A program that was moved did something else than one that stayed. The message is its source."""


def each_batch(seed: int, chunk: int, take: Callable[[Batch], None], programs: int = CHUNK) -> None:
    """Give the batches of a chunk to `take`, in order."""

    @seeded(f"{seed}/{chunk}")
    @settings(
        max_examples=math.ceil(programs / random_programs.PROGRAMS), phases=[Phase.generate], database=None,
        deadline=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(random_programs.batches)
    def give(batch: Batch) -> None:
        take(batch)

    give()


def differing(batch: Batch) -> Iterator[tuple[int, Exception | None, int]]:
    """Run each program of a batch both ways: its number, what was wrong with it or None, and how often it was suspended."""
    module = random_programs.module_of(batch.source)
    for number in range(len(batch.programs)):
        try:
            yield number, None, compare(getattr(module, f"main{number}"), partial(batch.alone, number))
        except Exception as error:  # whatever it is, it is told with its program, and the others still run
            yield number, error, 0


def compare(start: Callable[[list[Any]], Any], source: Callable[[], str]) -> int:
    """Run a program both ways; the number of its suspensions.

    Some things may differ. CPython 3.11 reports an unbound variable a line early once it has joined two instructions
    into one, which depends on how often code ran: so a program that differs is run straight once more. And a
    traceback keeps the variables of functions that have ended, which do not move: where one of them is a suspended
    generator, its cleanup is never seen, or seen earlier when the function was suspended itself, and the program is left out.
    """
    stayed = _seen(start, driving.straight)
    moved = _seen(start, driving.moved)
    if moved != stayed:
        held: list[bool] = []
        stayed = _seen(start, partial(holding_ended, held))
        if any(held):
            return 0
    if moved != stayed:
        raise Differs(source())
    return len(stayed[1][0])


def _seen(start: Callable[[list[Any]], Any], between: Callable[[Any, list[Any]], Any]) -> Any:
    """What can be seen of one run. The log is emptied at each suspension: what is told already need not be moved again."""
    told: list[Any] = []

    def emptied(target: Any, log: list[Any]) -> Any:
        told.append(driving.normal(log))
        log.clear()
        return between(target, log)

    return told, driving.normal(driving.drive(start, emptied, limit=SUSPENSIONS))


def holding_ended(held: list[bool], target: Any, log: list[Any]) -> Any:
    """Note whether something suspended is alive only through a traceback: through the frame of a function that has ended."""
    everything = len(suspended_in(target))
    ways, coroutines._ways = coroutines._ways, {**coroutines._ways, types.FrameType: coroutines._LEAF}
    try:
        held.append(len(suspended_in(target)) != everything or _told_and_holding(target))
    finally:
        coroutines._ways = ways
    return target, log


def _told_and_holding(target: Any) -> bool:
    """Whether a traceback tells a suspended function that holds something suspended: it would keep that when the function ends."""
    told: set[int] = set()
    holding: list[Any] = []
    for each in suspended_in(target):
        code = coroutines.code_object(each)
        at = slots.standing(each, code)
        inside = slots.values(each, at, at.mask)
        errors = [error for error in (*inside, slots.handled(each)) if isinstance(error, BaseException)]
        while errors and len(told) < 1000:
            error = errors.pop()
            told |= {id(frame) for frame, _ in traceback.walk_tb(error.__traceback__)}
            errors += [other for other in (error.__context__, error.__cause__) if other is not None]
        if any(type(value) in coroutines.KINDS for value in inside):
            holding.append(each)
    frames_of = (
        getattr(each, name, None) for each in holding for name in ("cr_frame", "gi_frame", "ag_frame")
    )
    return any(id(frame) in told for frame in frames_of if frame is not None)


class Findings(NamedTuple):
    """What a run of the corpus found."""

    programs: int
    suspensions: int
    differed: int


class _Run:
    """The counts of a run so far; `over` when no more batch is begun."""

    def __init__(self, seed: int, until: float, stop: int = 0) -> None:
        self.seed, self.until, self.stop = seed, until, stop or sys.maxsize
        self.ran = self.suspensions = self.differed = self.batches = 0
        self.left = 0
        """Programs of the present chunk that are still wanted."""

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self.until or self.differed >= self.stop

    def take(self, chunk: int, batch: Batch) -> None:
        if self.over:
            return
        self.batches += 1
        if self.batches % _FORGET == 0:
            _forget()
        for number, error, suspensions in differing(batch):
            if self.left <= 0:
                break
            self.left -= 1
            self.ran += 1
            self.suspensions += suspensions
            if error is not None:
                self.differed += 1
                place = f"main{number}, program {self.ran} of this run, chunk {chunk} of seed {self.seed}"
                why = "" if isinstance(error, Differs) else str(error)
                sys.stdout.write(f"{place}: {type(error).__name__}: {why}\n{batch.alone(number)}\n")


def run(
    seed: int, programs: int, chunks: range | None = None, until: float = math.inf, stop: int = 0
) -> Findings:
    """Compare so many programs, or those of them that are in `chunks`; no batch is begun after `until` (of
    `time.perf_counter`), or when `stop` have differed. Each that differs is printed.
    """
    counts = _Run(seed, until, stop)
    for chunk in chunks or range(math.ceil(programs / CHUNK)):
        wanted = min(CHUNK, programs - chunk * CHUNK)
        if wanted > 0 and not counts.over:
            counts.left = wanted
            each_batch(seed, chunk, partial(counts.take, chunk), wanted)
    return Findings(counts.ran, counts.suspensions, counts.differed)


_FORGET = 50


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
    options.add_argument("--chunk", type=int, default=-1, help="only this chunk of the seed")
    options.add_argument("--share", type=int, default=-1, help="of the processes, which one this is")
    options.add_argument("--processes", type=int, default=1)
    options.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no program after this time, and fail"
    )
    options.add_argument("--stop", type=int, default=0, help="end when so many have differed")
    options.add_argument(
        "--time-may-end", action="store_true", help="do not fail when the time was over first"
    )
    chosen = options.parse_args()
    if chosen.processes > 1 and chosen.share < 0:
        return _shared(chosen)
    quietly()
    chunks = math.ceil(chosen.programs / CHUNK)
    own = (
        range(max(chosen.share, 0), chunks, chosen.processes)
        if chosen.chunk < 0
        else range(chosen.chunk, chosen.chunk + 1)
    )
    wanted = sum(min(CHUNK, chosen.programs - chunk * CHUNK) for chunk in own)
    start = time.perf_counter()
    found = (
        run(chosen.seed, chosen.programs, own, start + chosen.seconds, chosen.stop)
        if own
        else Findings(0, 0, 0)
    )
    sys.stdout.write(
        f"CPython {sys.version.split()[0]}, seed {chosen.seed}: {found.programs} programs, {found.suspensions} suspensions,"
        f" {found.differed} differed, {time.perf_counter() - start:.0f} s ({time.process_time():.0f} s of CPU)\n"
    )
    cut = found.programs < wanted and not found.differed
    if cut:
        sys.stdout.write(f"the time was over: {wanted - found.programs} of {wanted} programs were not run\n")
    few = found.suspensions < found.programs
    return 1 if found.differed or few or (cut and not chosen.time_may_end) else 0


def quietly() -> None:
    """Random programs leave coroutines unawaited and are closed where they await: Python complains of both."""
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    gc.freeze()


def _shared(chosen: argparse.Namespace) -> int:
    """Run the corpus in several processes, each with every n-th chunk."""
    start = time.perf_counter()
    print(f"corpus of {chosen.programs} programs, seed {chosen.seed}", flush=True)
    words = [sys.executable, "-X", "faulthandler", __file__, "--seed", str(chosen.seed)]
    words += [
        f"--programs={chosen.programs}",
        f"--processes={chosen.processes}",
        f"--seconds={chosen.seconds}",
    ]
    words += [f"--stop={chosen.stop}", *(["--time-may-end"] if chosen.time_may_end else [])]
    shares = [subprocess.Popen([*words, f"--share={share}"]) for share in range(chosen.processes)]
    codes = [share.wait() for share in shares]
    print(f"{chosen.processes} processes ended after {time.perf_counter() - start:.0f} s: exit codes {codes}")
    return max(1 if code else 0 for code in codes)


if __name__ == "__main__":
    sys.exit(main())
