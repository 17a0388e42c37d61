"""A node tells a workflow what it holds that cannot move in the words of the testing kit."""

from __future__ import annotations

import pytest
import stuck_kit

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = stuck_kit.REGISTRY


@pytest.mark.parametrize("kind", ["holds_a_socket", "reaches_a_client_of_its_module"])
async def test_a_value_that_cannot_move_is_told_at_the_await_as_in_the_testing_kit(
    owners: MakeOwner, kind: str
) -> None:
    owner = await owners()
    await owner.start("a1", kind)
    assert completed(await owner.until_ended("a1")) == stuck_kit.STUCK[kind][1]
    await owner.until_quiet()
