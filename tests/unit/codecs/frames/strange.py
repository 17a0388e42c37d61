"""All strange programs that this interpreter can read, and what makes a fresh process finish them.

python strange.py FRAMES     a pickle of {program: [(suspensions so far, frame)]}; prints {program: [outcome, ...]}
"""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import driving
from sojourn.codecs import frames

MODULES = {
    (
        3,
        11,
    ): "strange_classes strange_sizes strange_finally strange_heirs strange_state strange_values strange_mixtures strange_makings",
    (3, 12): "strange_312",
    (3, 14): "strange_314",
    (3, 15): "strange_315",
}

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # of 3.14, for what is tried here
    for version, names in MODULES.items():
        if sys.version_info >= version:
            for name in names.split():
                importlib.import_module(name)
PROGRAMS = importlib.import_module("strange_programs").PROGRAMS


def finished(target: Any, log: list[Any], count: int) -> Any:
    """The log and the end of a program that was restored after so many suspensions, moved at each that follows."""
    try:
        while True:
            target.send(count)
            count += 1
            target, log = driving.moved(target, log)
    except StopIteration as stop:
        return driving.normal((log, "returned", stop.value))
    except Exception as error:
        return driving.normal((log, "raised", driving.described(error)))


def main() -> None:
    stored = pickle.loads(Path(sys.argv[1]).read_bytes())
    ends = {
        name: [finished(*frames.load(frame.data, frame.pin), count) for count, frame in kept]  # type: ignore[misc]
        for name, kept in stored.items()
    }
    print(repr(ends))


if __name__ == "__main__":
    main()
