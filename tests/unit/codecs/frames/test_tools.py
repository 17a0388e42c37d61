"""While a debugger, a profiler or a monitoring tool looks on, code is rewritten in place and frames have callers: nothing of it may
get into a frame, and a program that moves is seen as one that stays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import driving
import frame_programs
import pytest
import strange
from frame_programs import tick
from sojourn.codecs import code_hash, frames

PROGRAMS = {**frame_programs.PROGRAMS, **strange.PROGRAMS}
# Those that nest 200 deep are slow under a tool, and say nothing more.
NAMES = sorted(set(PROGRAMS) - {"recursion"})


@contextlib.contextmanager
def debugger() -> Iterator[None]:
    """Every line and every instruction."""

    def trace(frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def profiler() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: None)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def monitoring() -> Iterator[None]:
    """Every event there is: all opcodes that can be are replaced by instrumented ones."""
    monitor: Any = getattr(sys, "monitoring", None)
    if monitor is None:
        pytest.skip("from CPython 3.12")
    events = monitor.events
    chosen = [
        value
        for name, value in vars(events).items()
        if name.isupper() and name not in ("NO_EVENTS", "C_RAISE", "C_RETURN")
    ]
    tool = next(number for number in (3, 4) if monitor.get_tool(number) is None)
    monitor.use_tool_id(tool, "everything")
    for event in chosen:
        monitor.register_callback(tool, event, lambda *_: None)
    monitor.set_events(tool, sum(chosen))
    try:
        yield
    finally:
        monitor.set_events(tool, 0)
        for event in chosen:
            monitor.register_callback(tool, event, None)
        monitor.free_tool_id(tool)


TOOLS: list[Callable[[], Any]] = [debugger, profiler, monitoring]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_programs_that_move_under_a_tool_do_what_they_do_without(tool: Callable[[], Any]) -> None:
    for name in NAMES:
        stayed = driving.normal(driving.drive(PROGRAMS[name], driving.straight))
        with tool():
            moved = driving.drive(PROGRAMS[name], driving.moved)
        assert driving.normal(moved) == stayed, name


@pytest.mark.parametrize(
    "name", ["managers", "methods_of_a_diamond", "generators_half_consumed", "async_generators"]
)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_a_tool_that_comes_or_goes_between_any_two_suspensions_changes_nothing(
    tool: Callable[[], Any], name: str
) -> None:
    stayed = driving.normal(driving.drive(PROGRAMS[name], driving.straight))
    for first in (0, 1):
        count = [first]
        with contextlib.ExitStack() as stack:

            def between(target: Any, log: list[Any], stack: Any = stack, count: Any = count) -> Any:
                frame = frames.dump((target, log))
                frames.discard(target)
                stack.close()
                count[0] += 1
                if count[0] % 2:
                    stack.enter_context(tool())
                return frames.load(frame.data, frame.pin)

            moved = driving.drive(PROGRAMS[name], between)
        assert driving.normal(moved) == stayed


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_the_identity_of_code_and_the_bytes_of_a_frame_are_those_without_a_tool(
    tool: Callable[[], Any],
) -> None:
    async def work(n: int) -> Any:
        total = [x async for x in frame_programs.numbers(n)]
        return total, await tick("after")

    def stored() -> tuple[str, frames.Frame]:
        code_hash._identities.clear()
        code_hash._bytes.clear()
        target: Any = frame_programs.with_everything([])
        for number in range(6):
            target.send(number or None)
        frame = frames.dump(target)
        frames.discard(target)
        return code_hash.identity(work.__code__), frame

    without = stored()
    with tool():
        work(1).close()
        assert stored() == without


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_a_frame_stored_under_a_tool_keeps_no_reference_of_it(tool: Callable[[], Any]) -> None:
    """A frame object that a tool has asked for is not stored, and lives no longer than it would."""
    with tool():
        target: Any = frame_programs.loops([])
        target.send(None)
        frame = target.cr_frame
        copy: Any = frames.load(frames.dump(target).data)
        assert frames.where(copy) == frames.where(target)
        assert frame.f_lasti >= 0
        frames.discard(target)
        del target, frame
    assert copy.send(1) == (0, 20)
    frames.discard(copy)
