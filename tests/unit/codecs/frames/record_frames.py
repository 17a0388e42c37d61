"""Writes the frames of `recorded_programs` on this interpreter: one file for each suspension that is not there yet."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from sojourn.codecs import frames

RECORDED = Path(__file__).parent / "recorded"


def finish(target: Any, count: int) -> Any:
    """Run a program to its end; what it is sent is a count that goes on from `count`."""
    try:
        while True:
            target.send(count)
            count += 1
    except StopIteration as stop:
        return stop.value


def programs() -> dict[str, Any]:
    """The programs, compiled under a bare file name: a path of this machine has no place in a kept frame."""
    name = "recorded_programs"
    module = types.ModuleType(name)
    sys.modules[name] = module
    source = (Path(__file__).parent / f"{name}.py").read_text()
    exec(compile(source, f"{name}.py", "exec", dont_inherit=True), module.__dict__)
    found: dict[str, Any] = module.PROGRAMS
    return found


def record() -> None:
    folder = RECORDED / f"{sys.version_info.major}.{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, function in programs().items():
        target: Any = function(5)
        count = 0
        try:
            target.send(None)
            while True:
                path = folder / f"{name}-{count}.frame"
                if not path.exists():
                    path.write_bytes(frames.dump(target).data)
                count += 1
                target.send(count)
        except StopIteration:
            pass


if __name__ == "__main__":
    record()
