"""The testing kit: workflows under a virtual clock, with no broker and no node.

`World` runs the engine that nodes run; `MemoryServer` is the in-memory twin of the broker, for tests of whole nodes.

    async def test_a_decision_is_waited_for_three_days():
        world = World(steps={run_checks: lambda user: True})
        ada = await world.start(onboard("ada"))
        assert ada.wait == "receive approval until 2026-01-04T00:00:00+00:00"
        await world.advance("3d")
        with pytest.raises(ReceiveTimeout):
            ada.result()
"""

from sojourn.broker.memory import MemoryServer as MemoryServer

from .queues import Queued as Queued
from .rehearsal import Executed as Executed
from .rehearsal import Rehearsal as Rehearsal
from .world import World as World

__all__ = ["Executed", "MemoryServer", "Queued", "Rehearsal", "World"]
