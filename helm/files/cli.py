"""`sojourn` on the command line, asked for JSON. Its exit codes are its interface: 0 done, 3 nobody answers, 4 unknown, 5 not in time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SILENT, UNKNOWN, LATE = 3, 4, 5
AGAIN = 75
"""Exit code of a job's script that may be tried again (EX_TEMPFAIL); 1 is a verdict."""


class Verdict(Exception):
    """The job's answer is no; trying again would not change it."""


class Again(Exception):
    """What may work the next time: the job is tried again."""


class Failed(Again):
    """A command failed. `code` is its exit code."""

    def __init__(self, words: tuple[str, ...], code: int, message: str) -> None:
        super().__init__(words, code, message)
        self.words = words
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"`sojourn {' '.join(self.words)}` ended with {self.code}: {self.message.strip()[:500]}"


def ask(*words: str, fine: tuple[int, ...] = (0,), seconds: float = 120.0) -> Any:
    """The JSON document a command answers with. Raises `Failed` for an exit code that is not in `fine`."""
    try:
        done = subprocess.run(
            ["sojourn", *words, "--json"], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(words, LATE, f"no answer within {seconds:g} s") from None
    if done.returncode not in fine:
        raise Failed(words, done.returncode, done.stderr or done.stdout)
    try:
        return json.loads(done.stdout) if done.stdout.strip() else None
    except ValueError:
        raise Failed(words, done.returncode, f"no JSON: {done.stdout}") from None


def tell(text: str) -> None:
    """One line of the job's log, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def pairs(text: str) -> dict[str, int]:
    """`v1=90,v2=10` as numbers by label."""
    return {label: int(number) for label, _, number in (one.partition("=") for one in text.split(",") if one)}


def end(main: Callable[[], int]) -> None:
    """Run `main` and end the process with its code; an expected failure is one line, not a traceback."""
    try:
        sys.exit(main())
    except Verdict as verdict:
        tell(f"failed: {verdict}")
        sys.exit(1)
    except (Again, OSError) as error:
        tell(f"failed for now: {error}")
        sys.exit(AGAIN)
