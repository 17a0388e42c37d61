"""A traceback holds frames, which do not move: what they alone keep is dropped when its function ends, not when the last traceback
of it goes or the collector comes. The corpus allows for this, and for no more (decision 0021).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import corpus
import driving
import dropping_programs
import pytest
from frame_programs import Log, Program, tick
from sojourn.codecs import coroutines, exceptions

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

_NOT_EVERYWHERE = (
    dropping_programs.a_cycle_that_contextlib_leaves_holds_the_frame,
    dropping_programs.a_handled_exception_tells_what_a_holder_awaits,
)
"""CPython 3.12 and 3.13 can tell; that depends on what the frame of a function that has ended leads to."""
_MOVING = [  # the generator of the other does not move anyway
    each
    for each in dropping_programs.PROGRAMS.values()
    if each is not dropping_programs.a_handled_exception_tells_a_function_that_ended
]


@pytest.fixture(autouse=True)
def _no_collector_by_chance() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def _seen(start: Program, between: Callable[[Any, Log], Any] = driving.straight) -> Any:
    return corpus._seen(start, between)


@pytest.mark.parametrize("start", dropping_programs.PROGRAMS.values(), ids=lambda start: start.__name__)
def test_a_frame_that_only_a_traceback_or_garbage_holds_can_be_told_and_is_allowed_for(
    start: Program,
) -> None:
    assert _seen(start) != _seen(start, driving.moved) or start in _NOT_EVERYWHERE
    assert corpus.compare(start, str) >= 1


def test_a_moved_function_closes_its_generators_when_it_ends_where_garbage_would_have_held_its_frame() -> (
    None
):
    start = dropping_programs.a_cycle_of_garbage_holds_the_frame
    assert _seen(start, driving.moved)[1][1] == ["closed"]
    assert _seen(start)[1][1] == []

    def collected(target: Any, log: Log) -> Any:
        gc.collect()
        return target, log

    assert _seen(start, collected)[1][1] == ["closed"], "as when the collector came in time"


@pytest.mark.parametrize("start", _MOVING, ids=lambda start: start.__name__)
def test_a_generator_that_is_lost_by_moving_is_found_though_a_traceback_holds_its_frame(
    start: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coroutines, "_finalised", lambda target, at, dead: 0)
    stayed, moved = corpus.exactly(start)
    assert stayed != moved


async def _tells_a_line(log: Log) -> None:
    try:
        raise KeyError
    except KeyError:
        await tick()
        raise


def test_a_traceback_whose_lines_are_moved_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exceptions.traceback_entries
    assert corpus.compare(_tells_a_line, str) == 1
    monkeypatch.setattr(
        exceptions,
        "traceback_entries",
        lambda traceback: tuple((file, name, line + 1) for file, name, line in right(traceback)),
    )
    with pytest.raises(corpus.Differs):
        corpus.compare(_tells_a_line, str)
