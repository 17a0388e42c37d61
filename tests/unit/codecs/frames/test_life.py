"""What must hold around a frame:

silence, reference counts, collection, a fresh process, tools that look on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import subprocess
import sys
import textwrap
import traceback
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import driving
import frame_programs
import pytest
import stuck_programs
from frame_programs import Managed, tick
from sojourn.codecs import exceptions, frames, layout

HERE = Path(__file__).parent


def advanced(target: Any, count: int) -> Any:
    for number in range(count):
        target.send(number or None)
    return target


async def with_cleanup(log: list[Any]) -> None:
    generator = frame_programs.counting(log, 5)
    next(generator)
    with frame_programs.plain_manager(log):
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(Managed(log, "stacked"))
            stack.callback(log.append, "called back")
            try:
                async for number in frame_programs.lingering(3):
                    await tick(number)
                    log.append(("kept", next(generator)))
            finally:
                log.append("finally")
                await tick("cleaning")


def test_a_discarded_coroutine_runs_no_cleanup_and_warns_of_nothing() -> None:
    log: list[Any] = []
    target = advanced(with_cleanup(log), 3)
    before = list(log)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frames.discard(target)
        del target
        gc.collect()
    assert log == before


def test_a_discarded_coroutine_is_finished() -> None:
    target = advanced(frame_programs.loops([]), 2)
    frames.discard(target)
    assert inspect.getcoroutinestate(target) == inspect.CORO_CLOSED
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        target.send(None)
    frames.discard(target)


def test_a_coroutine_that_never_started_is_discarded_without_a_warning() -> None:
    target = frame_programs.loops([])
    frames.discard(target)


def test_a_running_coroutine_is_not_discarded() -> None:
    async def suicidal() -> None:
        frames.discard(target)

    target = suicidal()
    with pytest.raises(ValueError, match="is running"):
        target.send(None)


def test_what_only_the_coroutine_held_is_freed_by_its_discard() -> None:
    class Held:
        pass

    async def holding(held: Any) -> None:
        generator = (each for each in [held])
        next(generator)
        await tick()
        str(held)
        list(generator)

    held = Held()
    alive = weakref.ref(held)
    target = advanced(holding(held), 1)
    del held
    assert alive() is not None
    frames.discard(target)
    assert alive() is None


ROUNDS = int(os.environ.get("SOJOURN_LEAK_ROUNDS", "1500"))


def _counts() -> list[int]:
    watched = (
        frame_programs.MISSING, frame_programs.Point, frame_programs.Managed, frame_programs.managers,
        frame_programs.with_everything, frame_programs.with_everything.__code__,
        frame_programs.Managed.__aexit__, frame_programs.numbers.__code__,
    )  # fmt: skip
    return [sys.getrefcount(each) for each in watched]


def test_many_round_trips_leak_nothing() -> None:
    """Reference counts of everything that a frame shares with its module, and the number of live objects,
    stay as they are.
    """

    def round_trips(count: int) -> None:
        log: list[Any] = []
        target = advanced(frame_programs.with_everything(log), 6)
        for _ in range(count):
            target, log = driving.moved(target, log)
        frames.discard(target)

    round_trips(1500)  # free lists and caches are full after these
    gc.collect()
    counts, objects = _counts(), len(gc.get_objects())
    blocks = sys.getallocatedblocks()
    round_trips(ROUNDS)
    gc.collect()
    assert _counts() == counts
    assert abs(len(gc.get_objects()) - objects) < 50
    assert abs(sys.getallocatedblocks() - blocks) < 500


def test_counts_of_values_in_a_restored_frame_are_those_of_the_original() -> None:
    async def holding(one: Any, two: Any) -> Any:
        cell = one

        def inner() -> Any:
            return cell

        await tick()
        return one, two, inner

    one, two = frame_programs.Point(1, 2), [3]
    original: list[Any] = [advanced(holding(one, two), 1), one, two]
    del one, two
    restored: Any = frames.load(frames.dump(original).data)
    counts = [[sys.getrefcount(each[1]), sys.getrefcount(each[2])] for each in (original, restored)]
    assert counts[0] == counts[1]
    frames.discard(original[0], restored[0])


def test_a_cycle_through_a_restored_frame_is_collected() -> None:
    target = advanced(frame_programs.cycle_through_itself([]), 1)
    copy: Any = frames.load(frames.dump(target).data)
    frames.discard(target)
    generator = inspect.getcoroutinelocals(copy)["generator"]
    alive = weakref.ref(generator)
    del generator
    frames.discard(copy)
    del copy
    gc.collect()
    assert alive() is None


def test_collection_at_any_moment_of_a_restore_is_harmless() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        start = frame_programs.PROGRAMS["closures"]
        moved = driving.drive(start, driving.moved)
    finally:
        gc.set_threshold(*thresholds)
    assert driving.normal(moved) == driving.normal(driving.drive(start, driving.straight))


@pytest.mark.parametrize(
    "name", ["handlers", "managers", "generated_managers", "async_generators", "local_classes", "recursion"]
)
def test_a_frame_resumes_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    """Each suspension of the program is restored by a new interpreter, which runs it one step and stores it
    again.
    """
    start = frame_programs.PROGRAMS[name]
    stayed = driving.normal(driving.drive(start, driving.straight))
    log: list[Any] = []
    target: Any = start(log)
    first = target.send(None)
    path = tmp_path / "frame"
    path.write_bytes(frames.dump((target, log)).data)
    frames.discard(target)
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        import driving, frame_programs
        from sojourn.codecs import frames
        path, count = Path(sys.argv[1]), 1
        target, log = frames.load(path.read_bytes())
        steps = int(sys.argv[2])
        labels = eval(sys.argv[3])
        def between(target, log):
            frame = frames.dump((target, log))
            frames.discard(target)
            return frames.load(frame.data)
        value = len(labels)
        try:
            while True:
                labels.append(target.send(value)); value = len(labels)
                target, log = between(target, log)
        except StopIteration as stop:
            print(repr(driving.normal((labels, log, "returned", stop.value))))
        except Exception as error:
            print(repr(driving.normal((labels, log, "raised", driving.described(error)))))
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(path), "3", repr([first])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == stayed


def test_a_restored_coroutine_takes_throw_and_close() -> None:
    log: list[Any] = []
    target = advanced(frame_programs.leaving_through_finally(log), 1)
    copy: Any = frames.load(frames.dump(target).data)
    frames.discard(target)
    assert inspect.getcoroutinestate(copy) == inspect.CORO_SUSPENDED
    assert type(copy.cr_await).__name__ in ("coroutine", "Tick")
    assert copy.throw(driving.Interruption("thrown")) == "finally"
    with pytest.raises(driving.Interruption) as caught:
        copy.send(None)
    names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert "leaving_through_finally" in names
    assert inspect.getcoroutinestate(copy) == inspect.CORO_CLOSED


def test_closing_a_restored_coroutine_runs_its_cleanup_once() -> None:
    log: list[Any] = []

    target = advanced(frame_programs.handlers(log), 2)
    copy, its_log = driving.moved(target, log)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        copy.close()  # its `finally` awaits
    frames.discard(copy)
    assert its_log == log


def test_a_tracing_tool_sees_the_lines_of_a_restored_coroutine() -> None:
    target = advanced(frame_programs.loops([]), 3)
    target, _ = driving.moved(target, [])
    lines: list[int] = []

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code is frame_programs.loops.__code__ and event == "line":
            lines.append(frame.f_lineno)
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        target.send(1)
    finally:
        sys.settrace(previous)
    frames.discard(target)
    first = frame_programs.loops.__code__.co_firstlineno
    assert lines
    assert all(first < line < first + 25 for line in lines)


def test_a_name_given_to_a_coroutine_survives() -> None:
    target = advanced(frame_programs.loops([]), 1)
    target.__qualname__, target.__name__ = "given.name", "name"
    copy, _ = driving.moved(target, [])
    assert (copy.__qualname__, copy.__name__) == ("given.name", "name")
    frames.discard(copy)


def test_a_running_coroutine_cannot_be_captured() -> None:
    seen: list[BaseException] = []

    async def selfish() -> None:
        try:
            frames.dump(target)
        except frames.CannotSuspend as error:
            seen.append(error)

    target = selfish()
    with pytest.raises(StopIteration):
        target.send(None)
    assert seen


def test_discard_reaches_no_coroutine_of_an_event_loop_that_the_workflow_held() -> None:
    """What holds the loop cannot be stored, and is dropped alone: the loop's own tasks go on."""
    loop = asyncio.SelectorEventLoop()
    try:
        done: list[str] = []

        async def of_the_node() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            done.append("went on")

        task = loop.create_task(of_the_node())
        loop.call_soon(loop.stop)
        loop.run_forever()

        async def careless() -> None:
            held = [loop, task, {"client": asyncio.Event()}]
            await tick()
            str(held)

        target = advanced(careless(), 1)
        with pytest.raises(frames.CannotSuspend):
            frames.dump(target)
        frames.discard(target)
        loop.run_until_complete(task)
        assert done == ["went on"]
    finally:
        loop.close()


def test_a_generator_that_only_a_traceback_keeps_alive_is_discarded_too() -> None:
    log: list[Any] = []

    def failing() -> None:
        generator = frame_programs.counting(log, 3)
        next(generator)
        raise KeyError

    async def handling() -> None:
        try:
            failing()
        except KeyError:
            await tick()

    frames.discard(advanced(handling(), 1))
    gc.collect()
    assert log == []


def test_an_event_loop_in_the_same_thread_adopts_no_restored_generator() -> None:
    """A node captures and restores inside its loop; the loop must not close the workflows' generators for them."""
    adopted: list[Any] = []

    async def node() -> None:
        target = frame_programs.async_generators([])
        with layout.no_hooks():
            target.send(None)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=adopted.append)
        try:
            copy, _ = driving.moved(target, [])
            frames.discard(copy)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    asyncio.run(node())
    assert adopted == []


async def asking() -> Any:
    try:
        await tick("asking")
        yield 1
        yield 2
    finally:
        await tick("closing")


async def breaking(log: list[Any]) -> Any:
    async for number in asking():
        await tick(number)
        break
    log.append("left")
    await tick()


def test_a_restored_async_generator_that_is_dropped_is_told_to_who_loaded_it() -> None:
    """Whether it was restored where it waits itself, or where its user does."""
    for sends in (1, 2):
        dropped: list[Any] = []
        log: list[Any] = []
        target = breaking(log)
        for number in range(sends):
            target.send(number or None)
        frame = frames.dump((target, log))
        frames.discard(target)
        counts = sys.getrefcount(dropped)
        for _ in range(3):
            target, log = frames.load(frame.data, dropped=dropped.append)  # type: ignore[misc]
            while not log:
                target.send(5)
            closing = dropped.pop().aclose()
            assert closing.send(None) is not None
            closing, _ = driving.moved(closing, [])
            with pytest.raises(StopIteration):
                closing.send(None)
            frames.discard(target)
            del target, closing
        assert dropped == []
        assert sys.getrefcount(dropped) == counts


def test_a_restored_traceback_keeps_nothing_of_those_who_restored_it_alive() -> None:
    restored = exceptions.traceback_of([("no_such_file.py", "f", 3)])
    assert restored is not None
    assert restored.tb_frame.f_back is None
    assert not restored.tb_frame.f_locals


def test_a_discard_leaves_alone_what_a_module_holds_for_all() -> None:
    numbers = stuck_programs.NUMBERS
    target: Any = stuck_programs.a_generator_of_a_module()
    target.send(None)
    before = next(numbers)
    with pytest.raises(frames.CannotSuspend):
        frames.dump(target)
    frames.discard(target)
    assert next(numbers) == before + 1
