"""`mark.<p>`: storage that went back is noticed by whoever attaches (I8)."""

from __future__ import annotations

import pickle

import pytest
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.memory import MemoryBroker, MemoryServer
from sojourn.broker.memory_faults import Fault
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import ActorId, Subjects
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.holding.marks import Marks, Memory, StorageWentBack, accept

P = 7
SUBJECTS = Subjects("t", 32)
TOPOLOGY = Topology(namespace="t", app="tests")


@pytest.fixture
async def server() -> MemoryServer:
    server = MemoryServer(timers=False)
    await apply(await server.connect(), TOPOLOGY)
    return server


async def marks_on(server: MemoryServer) -> tuple[Marks, MemoryBroker]:
    broker = await server.connect()
    return Marks(broker, SUBJECTS, node="a", broker_now=lambda: 5.0, patience=0.05), broker


async def commit(broker: MemoryBroker, actor: str) -> int:
    return (await broker.publish(Publish(SUBJECTS.frame(ActorId(actor)), b"record"))).seq


async def test_a_partition_without_a_mark_may_be_served(server: MemoryServer) -> None:
    marks, _ = await marks_on(server)
    await marks.check(P)


async def test_i8_a_frames_stream_shorter_than_the_mark_is_storage_that_went_back(
    server: MemoryServer,
) -> None:
    marks, broker = await marks_on(server)
    revision = await commit(broker, "x")
    marks.committed(P, "x", revision + 10, 3)
    await marks.write_all()
    later, _ = await marks_on(server)
    with pytest.raises(StorageWentBack, match="sojourn restore accept") as back:
        await later.check(P)
    assert (back.value.partition, back.value.stream) == (P, "frames")


async def test_i8_a_stream_made_anew_is_storage_that_went_back(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    marks.committed(P, "x", await commit(broker, "x"), 3)
    await marks.write(P)
    await marks.check(P)
    entry = await ClusterKeys(broker, SUBJECTS).get("mark", P)
    assert entry is not None
    anew = MemoryServer(lambda: server.clock() + 1, timers=False)
    copy = await anew.connect()
    await apply(copy, TOPOLOGY)
    await ClusterKeys(copy, SUBJECTS).put("mark", P, value=entry.value)
    with pytest.raises(StorageWentBack, match="created at"):
        await Marks(copy, SUBJECTS, node="b", broker_now=lambda: 5.0, patience=0.05).check(P)


async def test_storage_that_went_on_since_the_mark_may_be_served(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    marks.committed(P, "x", await commit(broker, "x"), 3)
    await marks.write(P)
    await commit(broker, "x")
    later, _ = await marks_on(server)
    await later.check(P)


async def test_an_accepted_restore_is_served_again(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    marks.committed(P, "x", 99, 3)
    await marks.write(P)
    with pytest.raises(StorageWentBack):
        await marks.check(P)
    assert await accept(ClusterKeys(broker, SUBJECTS)) == (P,)
    later, _ = await marks_on(server)
    await later.check(P)


async def test_of_the_commits_of_a_partition_the_highest_revision_is_marked(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    first, second = await commit(broker, "x"), await commit(broker, "y")
    marks.committed(P, "y", second, 1)
    marks.committed(P, "x", first, 9)
    await marks.write(P)
    entry = await ClusterKeys(broker, SUBJECTS).get("mark", P)
    assert entry is not None
    assert b'"actor":"y"' in entry.value
    assert repr(marks) == "<Marks changed=0>"


async def test_a_mark_that_could_not_be_written_is_written_next_time(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    marks.committed(P, "x", await commit(broker, "x"), 1)
    server.faults.inject(Fault.DROP)
    await marks.write_all()
    assert repr(marks) == "<Marks changed=1>"
    await marks.write_all()
    assert repr(marks) == "<Marks changed=0>"


async def test_an_unchanged_mark_is_not_written_again(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    marks.committed(P, "x", await commit(broker, "x"), 1)
    await marks.write_all()
    keys = ClusterKeys(broker, SUBJECTS)
    before = await keys.get("mark", P)
    await marks.write_all()
    await marks.write(P)
    assert await keys.get("mark", P) == before


async def test_a_mark_of_a_foreign_hand_says_nothing(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    await ClusterKeys(broker, SUBJECTS).put("mark", P, value=b"who knows")
    await marks.check(P)


def test_the_error_survives_pickling() -> None:
    error = StorageWentBack(P, "mail", "up to 9", "it up to 3")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_writing_a_mark_of_unknown_outcome_is_told_at_a_hand_over(server: MemoryServer) -> None:
    marks, broker = await marks_on(server)
    marks.committed(P, "x", await commit(broker, "x"), 1)
    server.faults.inject(Fault.LOSE_REPLY)
    with pytest.raises(OutcomeUnknown):
        await marks.write(P)


async def test_i8_a_whole_account_that_went_back_is_told_by_who_lived_through_it(
    server: MemoryServer,
) -> None:
    """The cluster bucket is as old as everything else: no mark says anything, memory does, and writes one."""
    memory = Memory()
    broker = await server.connect()
    before = Marks(broker, SUBJECTS, node="a", broker_now=lambda: 5.0, patience=0.05, memory=memory)
    for _ in range(5):
        await commit(broker, "x")
    await before.check(P)
    old = MemoryServer(server.clock, timers=False)
    copy = await old.connect()
    await apply(copy, TOPOLOGY)
    await commit(copy, "x")
    for node in ("a", "b"):  # the second is another life of the first, or another node: the mark is there now
        later = Marks(copy, SUBJECTS, node=node, broker_now=lambda: 6.0, patience=0.05, memory=memory)
        memory = memory if node == "a" else Memory()
        with pytest.raises(StorageWentBack):
            await later.check(P)
    await ClusterKeys(copy, SUBJECTS).delete("mark", P)  # `sojourn restore accept`
    await later.check(P)


async def test_readings_that_overtake_each_other_accuse_nobody(server: MemoryServer) -> None:
    memory = Memory()
    marks = Marks(
        await server.connect(), SUBJECTS, node="a", broker_now=lambda: 5.0, patience=0.05, memory=memory
    )
    slow = memory.snapshot()
    old = dict(await marks.streams())
    broker = await server.connect()
    await commit(broker, "x")
    await marks.streams()
    memory.note(slow, old)
    assert memory.before == {}
    await marks.check(P)
