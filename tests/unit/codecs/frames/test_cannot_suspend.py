from __future__ import annotations

import inspect
import pickle
import socket
from typing import Any

import frame_programs
import pytest
import stuck_programs
from frame_programs import tick
from sojourn.codecs import frames
from sojourn.codecs.errors import CannotSuspend, FrameTooLarge


@pytest.mark.parametrize("name", sorted(stuck_programs.STUCK))
def test_what_cannot_move_is_named_with_its_place_and_a_remedy(name: str) -> None:
    function, variable, path, type_name, remedy = stuck_programs.STUCK[name]
    target: Any = function()
    target.send(None)
    try:
        with pytest.raises(CannotSuspend) as caught:
            frames.dump({"branches": [target]})
    finally:
        with pytest.raises(StopIteration):
            target.send(None)
    error = caught.value
    if name != "a_subclass_of_a_file":
        assert (error.variable, error.type_name) == (variable, type_name)
        assert error.path.startswith(path)
    assert remedy in error.remedy
    assert remedy in str(error)
    assert error.function in (function.__qualname__, "Client.call")
    lines, first = inspect.getsourcelines(function)
    if error.function == function.__qualname__:
        assert "tick()" in lines[error.line - first]


def test_the_error_is_picklable_and_reads_as_a_sentence() -> None:
    error = CannotSuspend(
        "onboard", 12, "conn", "", "socket.socket", "open it inside a step or after the await"
    )
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert str(error) == (
        "local `conn` (`socket.socket`) in `onboard` line 12 is alive across an await and cannot be stored; "
        "open it inside a step or after the await"
    )


def test_the_coroutine_goes_on_after_a_failed_capture() -> None:
    async def holding() -> Any:
        with socket.socket() as conn:
            got = await tick()
        return got, await tick(), conn is not None

    target: Any = holding()
    target.send(None)
    with pytest.raises(CannotSuspend):
        frames.dump(target)
    target.send(1)
    with pytest.raises(StopIteration) as stop:
        target.send(2)
    assert stop.value.value == (1, 2, True)


def test_a_value_that_is_not_read_again_need_not_move() -> None:
    async def finished_with_it() -> Any:
        conn = socket.socket()
        conn.close()
        await tick()
        return "done"

    globals()["finished_with_it"] = finished_with_it
    target: Any = finished_with_it()
    target.send(None)
    copy: Any = frames.load(frames.dump(target).data)
    frames.discard(target)
    with pytest.raises(StopIteration, match="done"):
        copy.send(None)


def test_a_frame_over_its_limit_lists_bytes_by_variable() -> None:
    async def large() -> Any:
        report, small = b"x" * 5000, "y"
        await tick()
        return report, small

    target: Any = large()
    target.send(None)
    with pytest.raises(FrameTooLarge) as caught:
        frames.dump(target, size_limit=4000)
    frames.discard(target)
    error = caught.value
    assert error.size > 5000
    assert error.limit == 4000
    name = next(iter(error.sizes))
    assert name.endswith("large.report")
    assert error.sizes[name] > 5000 > 100 > error.sizes[name.replace("report", "small")]
    assert "5" in str(error)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_sizes_name_every_suspended_function() -> None:
    target: Any = frame_programs.managers([])
    target.send(None)
    sizes = frames.variable_sizes({"it": target})
    frames.discard(target)
    assert {name.partition(".")[0] for name in sizes} >= {"managers", "Managed"}
