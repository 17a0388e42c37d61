"""Frames stored by earlier versions of this code, on each interpreter, are read for ever or refused: never misread."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import recorded_programs
from record_frames import RECORDED, finish
from sojourn.codecs import frames
from sojourn.codecs.errors import PinNotSatisfied

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
FILES = sorted(RECORDED.glob("*/*.frame"))
EXPECTED = {
    "plain": (11, [1, 2, 1, 2]),
    "handling": ([1, 2], ("kept", 5), ["noted"]),
    "managing": ([1, 7, 5], [7, 14, 21], [3, 4], 7),
}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name == HERE], ids=lambda path: path.stem
)
def test_a_recorded_frame_resumes(path: Path) -> None:
    name, _, count = path.stem.rpartition("-")
    assert finish(frames.load(path.read_bytes()), int(count) + 1) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_program_is_recorded_at_each_of_its_suspensions(name: str) -> None:
    target = recorded_programs.PROGRAMS[name](5)
    target.send(None)
    kept = sorted((RECORDED / HERE).glob(f"{name}-*.frame"))
    assert [path.name for path in kept] == [f"{name}-{count}.frame" for count in range(len(kept))]
    for count in range(1, len(kept)):
        target.send(count)
    with pytest.raises(StopIteration) as stop:
        target.send(len(kept))
    assert stop.value.value == EXPECTED[name]


def test_frames_of_every_supported_interpreter_are_kept() -> None:
    assert {path.parent.name for path in FILES} == {"3.11", "3.12", "3.13", "3.14", "3.15"}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name != HERE and path.stem == "plain-0"], ids=str
)
def test_a_frame_of_another_python_is_refused_by_its_version(path: Path) -> None:
    with pytest.raises(PinNotSatisfied, match=f"stored by Python {path.parent.name}"):
        frames.load(path.read_bytes())


_RESTORERS = {
    "enums": ("flags_of", "member_of"),
    "functions": ("fill_class", "make_class", "partialmethod_of"),
    "globals": ("stateless_value",),
    "heirs": (
        "fill_heir", "make_heir", "make_struct", "make_value", "object_of", "set_both", "set_dictionary", "set_state",
    ),
    "iterators": ("ordered_iterator",),
    "keyed": ("fill_keyed", "fill_slotted", "make_keyed", "make_slotted"),
    "type_parameters": ("make_type_parameter", "type_parameter_of"),
}  # fmt: skip


@pytest.mark.parametrize("module", _RESTORERS)
def test_what_stored_frames_call_by_its_name_stays_where_it_is(module: str) -> None:
    """The rest goes by its place in `pickler._KNOWN`. One that moves leaves an import behind."""
    found = importlib.import_module(f"sojourn.codecs.{module}")
    assert all(callable(getattr(found, name, None)) for name in _RESTORERS[module])
