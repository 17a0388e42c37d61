"""What the harness knows of leases: the judge excuses by it."""

from __future__ import annotations

import msgspec
from sojourn.broker.memory import MemoryServer
from sojourn.broker.seam import Stored
from sojourn.broker.subjects import Subjects, Token
from sojourn.cluster.tenure.ownership import Member
from sojourn.codecs.keyring import Keyring

from tests.chaos.watch import Watch

SUBJECTS = Subjects("n", 4)


def stored(seq: int, at: float, lease: str = "") -> Stored:
    """A renewal of node a's lease; the end of it without one."""
    member = Member(node="a", lease=lease, state="ready", deployment="one", started=0.0, host="", pid=7)
    payload = msgspec.json.encode(member) if lease else b""
    return Stored(SUBJECTS.cluster_stream, seq, SUBJECTS.cluster(Token("node"), Token("a")), payload, {}, at)


async def test_a_lease_is_over_when_it_was_ended_and_stays_so_whatever_a_replica_shows() -> None:
    broker = await MemoryServer(lambda: 0.0).connect()
    watch = Watch(broker, SUBJECTS, Keyring.ephemeral(lambda n: b"k" * n), [])
    watch._lease_stored(stored(1, 100.0, "first"))
    watch._lease_stored(stored(2, 101.0, "first"))
    watch._lease_stored(stored(3, 102.5))
    watch._lease_stored(stored(2, 101.0, "first"))  # seen again, by a replica that lags behind
    watch._lease_stored(stored(4, 103.0, "second"))
    assert [(life.lease, life.began, life.ended) for life in watch.leases] == [("first", 100.0, 102.5)]
    assert [life.lease for life in watch._alive.values()] == ["second"]
