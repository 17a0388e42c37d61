"""Nodes whose clocks are an hour apart, and step by hours while workflows sleep: the broker's clock is what counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit import KITS, cluster
from sojourn.broker.frames import FrameStore
from sojourn.broker.subjects import actor_id
from sojourn.cluster.hosting.views import check

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

HOUR = 3600.0
SHIFTED = """
import os, time
_time = time.time
def _shifted():
    with open(os.environ["TEST_CLOCK_OFFSET"]) as file:
        return _time() + float(file.read() or 0)
time.time = _shifted
time.time_ns = lambda: int(_shifted() * 1e9)
"""
SLEEP = 2.0


async def test_sleeps_are_as_long_as_asked_though_clocks_are_an_hour_apart_and_step(tmp_path: Path) -> None:
    (tmp_path / "shift").mkdir()
    (tmp_path / "shift" / "sitecustomize.py").write_text(SHIFTED)
    offsets = {name: tmp_path / f"offset-{name}" for name in ("fast", "slow")}
    offsets["fast"].write_text(str(HOUR))
    offsets["slow"].write_text(str(-HOUR))
    async with cluster(tmp_path, partitions=4) as made:
        for name, file in offsets.items():
            path = f"{tmp_path / 'shift'}:{KITS}"
            await made.add(name, env={"TEST_CLOCK_OFFSET": str(file), "PYTHONPATH": path})
        actors = await made.start_many("sleeps", [[SLEEP]] * 40, "s")
        begun = {actor: index.created for actor, index in (await made.indexes()).items()}
        offsets["fast"].write_text(str(-HOUR))  # two hours back, while they sleep
        offsets["slow"].write_text(str(HOUR))
        await made.results(actors, seconds=30)
        ended = {}
        for actor in actors:
            stored = await FrameStore(made.broker, made.subjects).read(actor_id(actor))
            assert stored is not None
            ended[actor] = stored.time
        lasted = [ended[actor] - begun[actor] for actor in actors]
        assert min(lasted) >= SLEEP
        assert max(lasted) < SLEEP + 60
        more = await made.start_many("sleeps", [[SLEEP]] * 20, "t")
        made.nodes["fast"].kill()
        offsets["slow"].write_text(str(-HOUR))
        await made.results(more, seconds=60)  # taken over by a node two hours away from the dead one
        assert (await check(made.broker, made.subjects, made.keyring)).findings == ()
