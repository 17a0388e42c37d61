"""The example of an order, as whoever copies it would test it."""

from __future__ import annotations

from typing import Any

import pytest
from sojourn.examples.shop import Approval, Line, Payment, approval, order, payment, put_back

from sojourn import Rejected, WorkflowCancelled
from sojourn.testing import World

LINES = [Line("book", 2), Line("pen", 1)]


@pytest.fixture(params=[False, True], ids=["calm", "crashing"])
def shop(request: pytest.FixtureRequest) -> tuple[World, set[str]]:
    """A world, and what was put back in it."""
    back: set[str] = set()
    return World(steps={put_back: back.add}, crash=request.param), back


async def test_an_order_is_paid_in_parts_and_sent(shop: tuple[World, set[str]]) -> None:
    world, back = shop
    actor = await world.start(order(LINES, 30))
    await actor.signal(payment, Payment(20))
    assert actor.stage == "waiting for the money"
    await actor.signal(payment, Payment(10))
    assert actor.result() == ["parcel with 2 book", "parcel with 1 pen"]
    assert not back


async def test_what_is_not_paid_goes_back(shop: tuple[World, set[str]]) -> None:
    world, back = shop
    actor = await world.start(order(LINES, 30))
    await actor.signal(payment, Payment(20))
    await world.advance("8d")
    with pytest.raises(Rejected, match="not paid in time") as refused:
        actor.result()
    assert refused.value.facts == {"missing": 10}
    assert back == {"2 book", "1 pen"}


@pytest.mark.parametrize(("answer", "by"), [(Approval(False, "ada"), "ada"), (None, "nobody")])
async def test_a_large_order_needs_an_approval(shop: tuple[World, set[str]], answer: Any, by: str) -> None:
    world, back = shop
    actor = await world.start(order(LINES, 2_000))
    await actor.signal(payment, Payment(2_000))
    assert "large" in actor.record.index.tags
    if answer is not None:
        await actor.signal(approval, answer)
    await world.advance("2d")
    with pytest.raises(Rejected, match="not approved") as refused:
        actor.result()
    assert refused.value.facts == {"by": by}
    assert back == {"2 book", "1 pen"}


async def test_a_cancelled_order_gives_everything_back(shop: tuple[World, set[str]]) -> None:
    world, back = shop
    actor = await world.start(order(LINES, 30))
    await actor.cancel(reason="withdrew")
    with pytest.raises(WorkflowCancelled):
        actor.result()
    assert back == {"2 book", "1 pen"}
