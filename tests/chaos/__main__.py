"""`python -m tests.chaos`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from pathlib import Path

from .plan import CRASH_POINTS, KINDS
from .run import Options, run


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="decides the faults and the work  [default: drawn]")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults are injected")
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=3, help="NATS servers")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--workflows", type=int, default=5_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument(
        "--settle", type=float, help="most seconds until everything has ended after the last fault"
    )
    parser.add_argument("--without", default="", help="kinds of faults to leave out, with commas")
    parser.add_argument("--only", default="", help="kinds of faults to inject, with commas")
    parser.add_argument("--points", default="", help="crash points to die at, with commas  [default: all]")
    parser.add_argument("--keep", type=Path, help="folder for logs, journal and keys, which stays")
    parser.add_argument("--verbose", action="store_true", help="print each fault as it is injected")
    given = parser.parse_args()
    unknown = set(filter(None, f"{given.only},{given.without}".split(","))) - set(KINDS)
    if unknown:
        parser.error(f"no kind of fault {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return Options(
        seed=secrets.randbelow(1_000_000) if given.seed is None else given.seed,
        seconds=given.seconds,
        replicas=given.replicas,
        nodes=given.nodes,
        workflows=given.workflows,
        partitions=given.partitions,
        settle=given.settle,
        without=tuple(filter(None, given.without.split(","))),
        only=tuple(filter(None, given.only.split(","))),
        points=tuple(filter(None, given.points.split(","))) or CRASH_POINTS,
        keep=given.keep,
        verbose=given.verbose,
    )


async def _main(options: Options) -> int:
    """A run that SIGTERM ends in order: frozen processes are continued, all are ended."""
    task = asyncio.ensure_future(run(options))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(_options())))
