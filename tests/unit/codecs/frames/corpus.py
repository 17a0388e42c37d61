"""The corpus: random programs, run straight and moved at every suspension, must not be told apart.

    python tests/unit/codecs/frames/corpus.py --programs 20000 --processes 2 [--seed 7] [--chunk 31] [--seconds 200]

Hypothesis writes them, in batches that share helpers (`random_programs`), from a seed that is printed. Chunk n of a seed holds
the same programs for each interpreter and any number of processes. Of each program that differed the source is printed, with
its chunk, and the exit code is 1 then; also when the time was over first. Each chunk is told when it begins; one that crashes
the process, or hangs, leaves a stack on stderr, in which a file is called `main2 of batch 7 of chunk 56 of seed 9`.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import math
import random
import subprocess
import sys
import time
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
from sojourn.codecs import code_hash, exceptions, frames, identity, liveness, slots
from sojourn.codecs.discard import suspended_in

SUSPENSIONS = 50
CHUNK = 1000
"""Programs of one seed of hypothesis. The first batch of each is the simplest there is."""


HANGING = 300
"""Seconds for one batch, which takes a tenth of one."""


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


def differing(batch: Batch, place: str = "") -> Iterator[tuple[int, Exception | None, int]]:
    """Run each program of a batch both ways: its number, what was wrong with it or None, and how often it was suspended.

    What Python prints of its stack when it crashes or hangs names the program by `place`.
    """
    module = random_programs.module_of(batch.source)
    for number in range(len(batch.programs)):
        named = _called(f"main{number} of {place}")
        try:
            yield number, None, named(getattr(module, f"main{number}"), partial(batch.alone, number))
        except Exception as error:  # whatever it is, it is told with its program, and the others still run
            yield number, error, 0


def _called(place: str) -> Callable[..., int]:
    """`compare`, by the name of a program."""
    return types.FunctionType(compare.__code__.replace(co_filename=place), globals())


def compare(start: Callable[[list[Any]], Any], source: Callable[[], str]) -> int:
    """Run a program both ways, and when that differs `exactly`; the number of its suspensions."""
    stayed = _seen(start, driving.straight)
    moved = _seen(start, driving.moved)
    if moved != stayed:
        stayed, moved = exactly(start)
    if moved != stayed:
        raise Differs(source())
    return len(stayed[1][0])


def exactly(start: Callable[[list[Any]], Any]) -> tuple[Any, Any]:
    """What can be seen of a program that stayed and of one that moved, without what decides by chance or is known to differ
    (decision 0021).

    - CPython 3.11 reports an unbound variable a line early once it has joined two instructions into one, which depends on how
      often code ran: by now it has run.
    - Garbage that only the collector finds may hold the frame of a suspended function, through the traceback of an exception
      that is in a cycle, and with it the variables of that function when it has ended: so the collector runs at each
      suspension, and not between.
    - Any other traceback does so too, and a moved one has empty frames: so those of a program that stays are emptied.
    """
    gc.collect()
    known = _tracebacks()
    automatic = gc.isenabled()
    gc.disable()
    try:
        return _seen(start, partial(bared, known)), _seen(start, collected)
    finally:
        if automatic:
            gc.enable()


def _seen(start: Callable[[list[Any]], Any], between: Callable[[Any, list[Any]], Any]) -> Any:
    """What can be seen of one run. The log is emptied at each suspension: what is told already need not be moved again."""
    told: list[Any] = []

    def emptied(target: Any, log: list[Any]) -> Any:
        told.append(driving.normal(log))
        log.clear()
        return between(target, log)

    return told, driving.normal(driving.drive(start, emptied, limit=SUSPENSIONS))


def collected(target: Any, log: list[Any]) -> Any:
    """Move a program without its garbage."""
    gc.collect()
    return driving.moved(target, log)


def bared(known: list[types.TracebackType], target: Any, log: list[Any]) -> Any:
    """Do to the tracebacks of a program that stays what moving does to them: their frames are empty, and what only those held
    is dropped in silence. `known` are tracebacks of others.
    """
    gc.collect()
    told = len(log)
    held = suspended_in(target)
    others = {id(each) for each in known}
    for each in _tracebacks():
        if id(each) not in others:
            _empty(each)
    staying = {id(each) for each in suspended_in(target)}
    frames.discard(*(each for each in held if id(each) not in staying))
    del held, log[told:]
    return target, log


def _tracebacks() -> list[types.TracebackType]:
    return [each for each in gc.get_objects() if type(each) is types.TracebackType]


_FRAME_AT, _ENTRY = 24, 16
"""Where a traceback has its frame, and the bytes of that, the instruction and the line."""


def _empty(entry: types.TracebackType) -> None:
    """Give a traceback, without those it leads to, the frame that a restored one has."""
    code = entry.tb_frame.f_code
    other = exceptions.traceback_of(((code.co_filename, code.co_name, entry.tb_lineno or 0),))
    assert other is not None
    assert other.tb_frame.f_code.co_name == code.co_name
    assert ctypes.c_ssize_t.from_address(id(entry) + _FRAME_AT).value == id(entry.tb_frame)
    mine, its = ((ctypes.c_char * _ENTRY).from_address(id(each) + _FRAME_AT) for each in (entry, other))
    mine[:], its[:] = its[:], mine[:]  # and the frame goes with `other`


class Findings(NamedTuple):
    """What a run of the corpus found."""

    programs: int
    suspensions: int
    differed: int


class _Run:
    """The counts of a run so far; `over` when no more batch is begun."""

    def __init__(self, seed: int, until: float, stop: int, hanging: float) -> None:
        self.seed, self.until, self.stop, self.hanging = seed, until, stop or sys.maxsize, hanging
        self.ran = self.suspensions = self.differed = self.batches = 0
        self.left = 0
        """Programs of the present chunk that are still wanted."""
        self.begun = 0
        """Batches of it."""

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self.until or self.differed >= self.stop

    def take(self, chunk: int, batch: Batch) -> None:
        if self.over:
            return
        self.batches += 1
        if self.batches % _FORGET == 0:
            _forget()
        if self.hanging:
            faulthandler.dump_traceback_later(self.hanging, exit=True)  # instead of the one before
        self.begun += 1
        where = f"batch {self.begun} of chunk {chunk} of seed {self.seed}"
        for number, error, suspensions in differing(batch, where):
            if self.left <= 0:
                break
            self.left -= 1
            self.ran += 1
            self.suspensions += suspensions
            if error is not None:
                self.differed += 1
                place = f"main{number}, program {self.ran} of this run, chunk {chunk} of seed {self.seed}"
                why = "" if isinstance(error, Differs) else str(error)
                print(f"{place}: {type(error).__name__}: {why}\n{batch.alone(number)}", flush=True)


def run(
    seed: int,
    programs: int,
    chunks: range | None = None,
    until: float = math.inf,
    stop: int = 0,
    hanging: float = 0,
) -> Findings:
    """Compare so many programs, or those of them that are in `chunks`; no batch is begun after `until` (of
    `time.perf_counter`), or when `stop` have differed. Each that differs is printed. The process ends, and prints where it is,
    when one batch takes longer than `hanging` seconds.
    """
    counts = _Run(seed, until, stop, hanging)
    for chunk in chunks or range(math.ceil(programs / CHUNK)):
        wanted = min(CHUNK, programs - chunk * CHUNK)
        if wanted > 0 and not counts.over:
            counts.left, counts.begun = wanted, 0
            print(f"chunk {chunk} of seed {seed}", flush=True)
            each_batch(seed, chunk, partial(counts.take, chunk), wanted)
    if hanging:
        faulthandler.cancel_dump_traceback_later()
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
    faulthandler.enable()
    chunks = math.ceil(chosen.programs / CHUNK)
    own = (
        range(max(chosen.share, 0), chunks, chosen.processes)
        if chosen.chunk < 0
        else range(chosen.chunk, chosen.chunk + 1)
    )
    wanted = sum(min(CHUNK, chosen.programs - chunk * CHUNK) for chunk in own)
    start = time.perf_counter()
    found = (
        run(chosen.seed, chosen.programs, own, start + chosen.seconds, chosen.stop, HANGING)
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
