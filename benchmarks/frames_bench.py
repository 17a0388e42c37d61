"""What a frame costs beside plain pickle of the same values, in one run: `python benchmarks/frames_bench.py`.

A workflow with ten locals awaits a helper that awaits an intention: two frames deep, with a dataclass, a list, a dictionary and text.
Measured are capture and encode, decode and restore (with the discard of what was there, told apart), and the size. Each figure
is the best of many short repetitions, because other work on the machine only ever adds.
"""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sojourn.codecs import frames


@dataclasses.dataclass
class Profile:
    name: str
    age: int


class Wait:
    """A leaf intention, as small as those of Sojourn."""

    __slots__ = ("seconds", "started")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started = seconds, False

    def __await__(self) -> Wait:
        return self

    def __iter__(self) -> Wait:
        return self

    def __next__(self) -> Any:
        self.started = True
        return self

    def __reduce__(self) -> Any:
        return Wait, (self.seconds,)


async def helper(attempt: int, tags: list[str]) -> int:
    delay = 1.5
    await Wait(delay)
    return attempt + len(tags)


async def workflow(user: str) -> Any:
    count, ratio, done, none = 7, 0.25, False, None
    tags = ["new", "trial", "eu"]
    options = {"retry": 3, "mode": "fast"}
    profile = Profile("Ada", 36)
    when, total = "2026-11-29T20:12:00Z", 12345
    result = await helper(count, tags)
    return user, count, ratio, done, none, tags, options, profile, when, total, result


LOCALS = {
    "user": "user-42", "count": 7, "ratio": 0.25, "done": False, "none": None, "tags": ["new", "trial", "eu"],
    "options": {"retry": 3, "mode": "fast"}, "profile": Profile("Ada", 36), "when": "2026-11-29T20:12:00Z", "total": 12345,
    "helper": {"attempt": 7, "tags": ["new", "trial", "eu"], "wait": Wait(1.5)},
}  # fmt: skip


def best(action: Callable[[], Any], repeat: int = 300, number: int = 30) -> float:
    """Microseconds for one call: the best of `repeat` averages over `number` calls."""
    fastest = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            action()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest / number * 1e6


def main() -> None:
    module = sys.modules["__main__"]
    sys.modules["frames_bench"] = module
    for made in (workflow, helper, Profile, Wait):
        made.__module__ = "frames_bench"
    module.__name__ = "frames_bench"
    target: Any = workflow("user-42")
    target.send(None)
    frame = frames.dump(target)
    plain = pickle.dumps(LOCALS, 5)
    encode, encode_plain = best(lambda: frames.dump(target)), best(lambda: pickle.dumps(LOCALS, 5))
    restored = best(lambda: frames.discard(frames.load(frame.data, frame.pin)))
    discard = _discard_alone(frame)
    decode, decode_plain = restored - discard, best(lambda: pickle.loads(plain))
    print(f"CPython {sys.version.split()[0]}, 10 locals, 2 frames deep ({Path(__file__).name})")
    print(f"{'':28}{'frame':>10}{'pickle':>10}{'ratio':>8}")
    for name, ours, theirs in (
        ("capture + encode, us", encode, encode_plain),
        ("decode + restore, us", decode, decode_plain),
        ("size, bytes", float(len(frame.data)), float(len(plain))),
    ):
        print(f"{name:28}{ours:10.1f}{theirs:10.1f}{ours / theirs:8.2f}")
    print(f"{'discard, us':28}{discard:10.1f}")
    frames.discard(target)


def _discard_alone(frame: frames.Frame, repeat: int = 100, number: int = 30) -> float:
    fastest = float("inf")
    for _ in range(repeat):
        many = [frames.load(frame.data, frame.pin) for _ in range(number)]
        start = time.perf_counter()
        for each in many:
            frames.discard(each)
        fastest = min(fastest, time.perf_counter() - start)
    return fastest / number * 1e6


@pytest.mark.benchmark
def test_what_a_frame_costs() -> None:
    subprocess.run([sys.executable, __file__], check=True, timeout=120)  # its classes live in `__main__`


if __name__ == "__main__":
    main()
