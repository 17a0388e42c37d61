"""Whether a node may act: a lease that is surely valid, and no doubt."""

from __future__ import annotations

import asyncio

from sojourn.cluster.tenure.gate import Gate


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_gate_is_shut_until_the_node_has_joined() -> None:
    gate = Gate(now=Clock())
    gate.extend(200.0)
    assert not gate.is_open()
    gate.open()
    assert gate.is_open()
    assert repr(gate) == "<Gate [open]>"


def test_the_gate_shuts_by_itself_when_the_lease_may_have_ended() -> None:
    clock = Clock()
    gate = Gate(now=clock)
    gate.extend(130.0)
    gate.open()
    clock.now = 130.0
    assert not gate.is_open()
    assert gate.why() == "the lease may have ended"
    gate.extend(160.0)
    assert gate.is_open()


def test_a_renewal_does_not_open_a_gate_that_a_doubt_has_shut() -> None:
    gate = Gate(now=Clock())
    gate.extend(130.0)
    gate.open()
    gate.shut("the connection was cut")
    gate.extend(160.0)
    assert not gate.is_open()
    assert repr(gate) == "<Gate [shut: the connection was cut]>"


async def test_whoever_waits_goes_on_when_the_gate_opens() -> None:
    gate = Gate(now=Clock())
    gate.extend(130.0)
    waiting = asyncio.create_task(gate.wait_open())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open()
    await waiting


async def test_whoever_waits_for_a_lease_that_ran_out_goes_on_when_it_is_renewed() -> None:
    clock = Clock()
    gate = Gate(now=clock)
    gate.open()
    waiting = asyncio.create_task(gate.wait_open())
    await asyncio.sleep(0)
    gate.extend(130.0)
    async with asyncio.timeout(5):
        await waiting
