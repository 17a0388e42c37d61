"""Local steps that have not begun when their lease ends, or whose outcome is on its way when their actor comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from sojourn.actors.current import CurrentActor
from sojourn.actors.events import StepDone
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import Subjects
from sojourn.cluster.hosting.alone import Alone
from sojourn.cluster.hosting.services import no_fault
from sojourn.cluster.steps.local_steps import LocalSteps, RunningCall
from sojourn.cluster.tenure.gate import Gate
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Outcome, PendingCall


class Begun:
    """In place of the runner of steps: writes down what begins."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.on_the_way: Callable[[], None] | None = None
        """What happens before the code of the next one begins."""

    def start(
        self,
        call: PendingCall,
        actor: CurrentActor,
        _: Any,
        *,
        still: Callable[[], bool],
        not_begun: Callable[[], None],
    ) -> None:
        if self.on_the_way is not None:
            self.on_the_way, frozen = None, self.on_the_way
            frozen()
        if still():
            self.keys.append(f"{actor.id}/{call.attempt}")
        else:
            not_begun()

    def cancel(self, key: str) -> None:
        """Nothing runs."""


def services() -> Any:
    gate = Gate(now=lambda: 0.0)
    gate.extend(1.0)
    gate.open()
    return SimpleNamespace(
        gate=gate, may_act=gate.is_open, wait_may_act=gate.wait_open, alone=Alone(), fault=no_fault, step_runner=Begun()
    )  # fmt: skip


def actor(name: str) -> CurrentActor:
    return CurrentActor(name, "r", "w", "d", 0.0)


CALL = PendingCall(1, "s", msgspec.Raw(b"[[],{}]"), attempt=2)


@pytest.mark.parametrize("lease_ends", [True, False])
async def test_an_attempt_that_waits_while_its_lease_ends_never_begins(lease_ends: bool) -> None:
    made, steps = services(), LocalSteps()
    steps.start(made, 0, actor("runs"), CALL, lambda run, done: None)
    made.gate.shut("the connection was cut")
    steps.start(made, 0, actor("waits"), CALL, lambda run, done: None)
    steps.start(made, 0, actor("backs-off"), CALL, lambda run, done: None, delay=0.01)
    await asyncio.sleep(0.02)
    steps.disown(0)
    if lease_ends:
        steps.lease_ended(made)
    made.gate.open()  # for the next life of the node
    for _ in range(5):
        await asyncio.sleep(0)
    begun = ["runs/2"] if lease_ends else ["backs-off/2", "runs/2", "waits/2"]
    assert sorted(made.step_runner.keys) == begun
    assert len(steps) == len(begun)


@pytest.mark.parametrize("lease_ends", [True, False])
async def test_an_attempt_that_is_frozen_on_its_way_begins_only_if_its_lease_still_lives(
    lease_ends: bool,
) -> None:
    made, steps = services(), LocalSteps()

    def frozen() -> None:
        made.gate.shut("time stood still")
        if lease_ends:
            steps.lease_ended(made)

    made.step_runner.on_the_way = frozen
    steps.start(made, 0, actor("runs"), CALL, lambda run, done: None)
    assert made.step_runner.keys == []
    made.gate.open()
    for _ in range(5):
        await asyncio.sleep(0)
    assert made.step_runner.keys == ([] if lease_ends else ["runs/2"])
    assert len(steps) == (0 if lease_ends else 1)


async def test_a_step_whose_outcome_is_on_its_way_is_not_started_again_when_its_actor_comes_back() -> None:
    made, steps = services(), LocalSteps()
    adopted: list[bool] = []
    stored = asyncio.Event()

    def back_again(*_: str) -> None:
        adopted.append(steps.adopt(run.key, 2, lambda run, done: None))

    async def publish(_: Publish) -> None:
        back_again()
        stored.set()

    made.fault, made.broker = back_again, SimpleNamespace(publish=publish)
    made.subjects, made.keyring = Subjects("n", 4), Keyring.ephemeral(lambda n: b"k" * n)
    run = RunningCall("comes-back/r/1", 0, actor("comes-back"), CALL, None)
    steps.hand_over(made, run, StepDone(1, 2, Outcome("value", msgspec.Raw(b"1"))))
    adopted.append(steps.adopt(run.key, 2, lambda run, done: None))
    await stored.wait()
    await steps.wait_finished(0)
    assert adopted == [True, True, True]
    assert not steps.adopt(run.key, 3, lambda run, done: None), "the next attempt is another matter"
