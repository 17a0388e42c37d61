"""A class that says how it is stored is believed, also where instances have a hash and hold what may lead back to them."""

from __future__ import annotations

import copyreg
import dataclasses
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
from sojourn.codecs import frames


class Told:
    def __init__(self, name: str) -> None:
        self.name, self.held, self.how = name, [name], "made"

    def __hash__(self) -> int:
        return hash(self.name)


class ByState(Told):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, how="told")


class ByArguments(Told):
    def __new__(cls, name: str) -> Any:
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[str]:
        object.__setattr__(self, "how", "told")  # so that it shows who was asked
        return (self.name,)


class ByRegistration(Told):
    pass


def _registered(name: str) -> ByRegistration:
    made = ByRegistration(name)
    made.how = "told"
    return made


copyreg.pickle(ByRegistration, lambda it: (_registered, (it.name,)))  # type: ignore[arg-type, return-value]  # typeshed wants a str


@dataclasses.dataclass(frozen=True, slots=True)
class SlotsByReduce:
    name: str
    held: list[Any] = dataclasses.field(default_factory=list, compare=False)
    how: str = "made"

    def __reduce__(self) -> tuple[Any, ...]:
        return SlotsByReduce, (self.name, self.held, "told")


@dataclasses.dataclass(frozen=True, slots=True)
class SlotsByState:
    name: str
    held: list[Any] = dataclasses.field(default_factory=list, compare=False)
    how: str = "made"

    def __getstate__(self) -> Any:
        return self.held

    def __setstate__(self, held: Any) -> None:
        assert not hasattr(self, "name")
        for name, value in (("name", "a"), ("held", held), ("how", "told")):
            object.__setattr__(self, name, value)


@types.coroutine
def tick() -> Any:
    return (yield)


async def keeping(make: Callable[[str], Any]) -> Any:
    value = make("a")
    await tick()
    return value


@pytest.mark.parametrize("kind", [ByState, ByArguments, ByRegistration, SlotsByReduce, SlotsByState])
def test_a_class_that_says_how_it_is_stored_is_believed(kind: Any) -> None:
    target = keeping(kind)
    target.send(None)
    frame = frames.dump(target)
    frames.discard(target)
    with pytest.raises(StopIteration) as stop:
        frames.load(frame.data, frame.pin).send(None)  # type: ignore[attr-defined]  # the coroutine
    value = stop.value.value
    assert (value.name, value.how) == ("a", "told")
    again = pickle.loads(pickle.dumps(kind("a")))
    assert (again.name, again.how) == ("a", "told")
