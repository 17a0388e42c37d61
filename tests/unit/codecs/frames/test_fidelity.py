from __future__ import annotations

from typing import Any

import driving
import frame_programs
import pytest
from sojourn.codecs import frames

ALL = sorted(frame_programs.PROGRAMS)


@pytest.mark.parametrize("name", ALL)
def test_a_program_moved_at_every_suspension_cannot_be_told_from_one_that_stayed(name: str) -> None:
    start = frame_programs.PROGRAMS[name]
    stayed = driving.drive(start, driving.straight)
    moved = driving.drive(start, driving.moved)
    assert driving.normal(moved) == driving.normal(stayed)
    assert stayed[2] in ("returned", "raised")
    assert stayed[0]


@pytest.mark.parametrize("name", ALL)
def test_an_exception_thrown_at_any_suspension_is_handled_alike_after_a_move(name: str) -> None:
    start = frame_programs.PROGRAMS[name]
    suspensions = len(driving.drive(start, driving.straight)[0])
    for at in range(1, min(suspensions, 12) + 1):
        stayed = driving.drive(start, driving.straight, throw_at=at)
        moved = driving.drive(start, driving.moved, throw_at=at)
        assert driving.normal(moved) == driving.normal(stayed), at


@pytest.mark.parametrize("name", ALL)
def test_capturing_disturbs_nothing(name: str) -> None:
    def captured(target: Any, log: list[Any]) -> Any:
        frames.dump((target, log))
        return target, log

    start = frame_programs.PROGRAMS[name]
    assert driving.normal(driving.drive(start, captured)) == driving.normal(
        driving.drive(start, driving.straight)
    )


@pytest.mark.parametrize("name", ALL)
def test_a_restored_frame_is_captured_to_the_same_bytes(name: str) -> None:
    def twice(target: Any, log: list[Any]) -> Any:
        frame = frames.dump((target, log))
        copy = frames.load(frame.data)
        again = frames.dump(copy)
        frames.discard(copy)
        assert again.pin == frame.pin
        assert len(again.data) == len(frame.data)
        return target, log

    driving.drive(frame_programs.PROGRAMS[name], twice)


@pytest.mark.parametrize("name", ALL)
def test_a_restored_coroutine_stands_at_the_same_lines(name: str) -> None:
    def same_place(target: Any, log: list[Any]) -> Any:
        before = frames.where(target)
        target, log = driving.moved(target, log)
        assert frames.where(target) == before
        return target, log

    driving.drive(frame_programs.PROGRAMS[name], same_place)


def test_numbers_move_by_value_so_a_nan_in_two_places_is_two_afterwards() -> None:
    stayed = driving.drive(frame_programs.a_nan_in_two_places, driving.straight)
    moved = driving.drive(frame_programs.a_nan_in_two_places, driving.moved)
    assert stayed[3] == (True, True, True)
    assert moved[3] == (False, True, True)
