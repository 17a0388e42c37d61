"""What cannot move is told in one text, by the frames alone, by the engine, and by the testing kit. (A node's is in
`tests/integration/hosting/test_what_cannot_move.py`.)
"""

from __future__ import annotations

from typing import Any

import pytest
import stuck_kit
from engine_kit import Actor
from sojourn.actors.inside import entered
from sojourn.codecs import frames
from sojourn.codecs.errors import CannotSuspend
from sojourn.codecs.unwrapping import plain_function

from sojourn.testing import World

KINDS = sorted(stuck_kit.STUCK)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_cannot_move_says_which_value_where_and_what_to_do(kind: str) -> None:
    made, expected = stuck_kit.STUCK[kind]
    target = plain_function(made)()
    nobody: Any = object()  # a sleep only looks whether it is inside a workflow
    with entered(nobody):
        target.send(None)
        try:
            with pytest.raises(CannotSuspend) as caught:
                frames.dump({"branches": [target]})
        finally:
            with pytest.raises(StopIteration, match="stored"):
                target.send(None)
    assert str(caught.value) == expected


@pytest.mark.parametrize("parked", [False, True], ids=["hot", "parked"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_raises_that_error_at_the_await(kind: str, parked: bool) -> None:
    made, expected = stuck_kit.STUCK[kind]
    actor = Actor(made, parked=parked)
    actor.start(made)
    assert actor.result == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_the_testing_kit_raises_that_error_at_the_await(kind: str) -> None:
    made, expected = stuck_kit.STUCK[kind]
    rehearsal = await World(stuck_kit.REGISTRY).start(made())
    assert rehearsal.result() == expected
