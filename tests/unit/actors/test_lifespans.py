"""Resources are open around a node's life and reachable in steps only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from sojourn.actors.errors import DefinitionError, NoSuchResource
from sojourn.actors.lifespan import Resources, lifespan, resource
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry

R = Registry()
events: list[str] = []


@dataclass
class Pool:
    name: str


class BigPool(Pool):
    pass


@lifespan(registry=R)
async def pool() -> AsyncIterator[Pool]:
    events.append("open pool")
    yield Pool("a")
    events.append("close pool")


@lifespan(registry=R)
async def other() -> AsyncIterator[str]:
    events.append("open other")
    try:
        yield "text"
    finally:
        events.append("close other")


async def test_lifespans_open_in_order_and_close_in_reverse() -> None:
    events.clear()
    async with Resources.open(R.lifespans) as resources:
        assert len(resources) == 2
        assert resources.get(Pool) == Pool("a")
        assert resources.get(str) == "text"
    assert events == ["open pool", "open other", "close other", "close pool"]


async def test_one_that_does_not_open_closes_those_before_it() -> None:
    events.clear()
    registry = Registry()
    registry.add(other)

    @lifespan(registry=registry)
    async def broken() -> AsyncIterator[int]:
        raise OSError("no database")
        yield 1

    with pytest.raises(OSError, match="no database"):
        async with Resources.open(registry.lifespans):
            pass
    assert events == ["open other", "close other"]


def test_a_resource_is_found_by_its_class_or_a_base_of_it() -> None:
    assert Resources([Pool("a"), BigPool("b")]).get(Pool).name == "b"
    with pytest.raises(NoSuchResource) as caught:
        Resources([Pool("a")]).get(BigPool)
    assert caught.value.known == (f"{__name__}.Pool",)


def test_outside_of_a_step_there_is_no_resource() -> None:
    with pytest.raises(NoSuchResource, match=r"opened here: none.*ask for it in steps only"):
        resource(Pool)


def test_a_lifespan_must_be_an_async_generator_without_parameters() -> None:
    untyped: Any = lifespan

    async def no_yield() -> None: ...

    async def wants(url: str) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(DefinitionError, match="write `async def` with one `yield`"):
        untyped(no_yield)
    with pytest.raises(DefinitionError, match="this one needs url"):
        untyped(registry=R)(wants)


@pytest.mark.parametrize("value", [0, -1, True, "3", float("inf")])
def test_a_limit_is_a_positive_number(value: Any) -> None:
    with pytest.raises(ValueError, match="limit branches: expected a positive number"):
        Limits(branches=value)


def test_a_warning_above_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="it would never warn"):
        Limits(frame_warn_bytes=2_000_000)
