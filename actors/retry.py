"""How often a step is tried, and how long to wait between attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sojourn.codecs.durations import Backoff, Duration

MAX_ATTEMPTS = 1_000_000
"""More would be an endless loop in disguise."""


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """`Retry(attempts=5, backoff="1s..1m")`: at most 5 attempts, waiting 1 s after the first and twice as
    long each time, up to a minute.

    `backoff` is "first..most", or one duration for a constant wait. Raises `ValueError` (`DurationError` for
    the backoff).
    """

    attempts: int
    backoff: Backoff

    def __init__(self, attempts: int = 3, backoff: Duration | Backoff = "1s..30s") -> None:
        if type(attempts) is not int or not 1 <= attempts <= MAX_ATTEMPTS:  # a bool is an int, and a mistake
            raise ValueError(
                f"Retry(attempts=...): expected a whole number from 1 (try once) to {MAX_ATTEMPTS:,}, "
                f"received {attempts!r}"
            )
        object.__setattr__(self, "attempts", attempts)
        object.__setattr__(self, "backoff", Backoff.parse(backoff))

    def delay(self, attempt: int, random: Callable[[], float] | None = None) -> float:
        """Seconds to wait after failed attempt number `attempt` (the first is 1). `random` draws from [0, 1)
        and takes up to a quarter off.
        """
        return self.backoff.delay(attempt, spread=random() if random is not None else 0.0)

    def __str__(self) -> str:
        return f"{self.attempts} attempts, {self.backoff} apart" if self.attempts > 1 else "1 attempt"

    @staticmethod
    def of(value: Retry | int) -> Retry:
        """What users may write for a retry: a `Retry`, or a number of attempts. Raises `TypeError`."""
        if isinstance(value, Retry):
            return value
        if type(value) is int:  # not bool: True is no number of attempts
            return Retry(attempts=value)
        raise TypeError(
            'expected Retry(attempts=5, backoff="1s..1m") or a number of attempts, received '
            f"{_shown(value)}; to try once: retry=1"
        )


def _shown(value: Any) -> str:
    return (
        repr(value) if isinstance(value, str | bool | float | timedelta | None) else type(value).__qualname__
    )
