"""Streams and buckets of a namespace: what they must be, creating them, and noticing drift (PROTOCOL 1).

`Topology.streams()` is the whole of it as values. `apply` (admin rights) creates and changes; a node only
reads what was applied (`topology` in the cluster bucket), compares every stream field by field with what
the broker has, and does not start on a difference.

Fixed for the life of a namespace: the number of partitions (an actor's partition follows from it) and the
app it belongs to. The byte bounds of MAIL, HELD and DEAD together stay under 60 % of the account's
storage, so that a flood of mail can never keep a record or a timer from being written.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import orjson
from sojourn.broker.errors import (
    Difference,
    OutcomeUnknown,
    Refused,
    StreamNotFound,
    TopologyDrift,
    TopologyRefused,
    WrongLastSequence,
)
from sojourn.broker.seam import AccountLimits, Broker, Publish, StreamConfig
from sojourn.broker.subjects import MAX_PARTITIONS, Subjects, Token, actor_id, token

GIB = 1024**3
MIB = 1024**2
TOPOLOGY_VERSION = 1
STORAGE_SHARE = 0.6
_TOPOLOGY_KEY = Token("topology")
_HEADER_ROOM = 64 * 1024
_CONSUMERS_SPARE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the streams, in bytes and messages."""

    mail_bytes: int = GIB
    held_bytes: int = GIB
    dead_bytes: int = 256 * MIB
    per_subject: int = 10_000
    """Messages per actor and channel, in MAIL, CTL and HELD."""
    payload_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What a namespace wants of the broker."""

    namespace: str
    app: str
    partitions: int = 32
    replicas: int = 1
    history: int = 1
    """Revisions kept per record, 1 to 64 (more than one allows rewind)."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        token(self.app, "an app's name")
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise ValueError(f"expected 1 to {MAX_PARTITIONS} partitions, received {self.partitions}")
        if self.replicas not in (1, 3, 5):
            raise ValueError(f"expected 1, 3 or 5 replicas, received {self.replicas}")
        if not 1 <= self.history <= 64:
            raise ValueError(f"expected a history of 1 to 64 revisions, received {self.history}")

    @property
    def subjects(self) -> Subjects:
        """The names of this namespace."""
        return Subjects(self.namespace, self.partitions)

    def streams(self) -> tuple[StreamConfig, ...]:
        """Every stream and bucket, as the broker must have them."""
        names, root = self.subjects, f"sj.{self.namespace}"
        return (
            self._mail(names, root),
            self._ctl(names, root),
            self._wake(names, root),
            self._held(names, root),
            StreamConfig(
                names.steps_stream,
                (f"{root}.step.*",),
                retention="workqueue",
                discard="new",
                allow_ttl=True,  # a task is gone when its attempt has timed out, if no worker ever came
                replicas=self.replicas,
            ),
            StreamConfig(
                names.dead_stream,
                (f"{root}.dead.*.*.*",),
                discard="new",
                max_bytes=self.limits.dead_bytes,
                replicas=self.replicas,
            ),
            self._bucket(names.frames_bucket, self.history, (f"{root}.changed.>",)),
            self._bucket(names.cluster_bucket, 1, ()),
            StreamConfig(
                names.values_stream,
                (f"$O.{names.values_bucket}.C.>", f"$O.{names.values_bucket}.M.>"),
                discard="new",
                allow_rollup=True,
                replicas=self.replicas,
            ),
        )

    def _mail(self, names: Subjects, root: str) -> StreamConfig:
        """Open to the outside, so none of the flags that let a header act on other messages."""
        return StreamConfig(
            names.mail_stream,
            (f"{root}.mail.*.*",),
            retention="workqueue",
            discard="new",
            max_msgs_per_subject=self.limits.per_subject,
            discard_new_per_subject=True,
            max_bytes=self.limits.mail_bytes,
            max_msg_size=self.limits.payload_bytes + _HEADER_ROOM,
            max_consumers=self._consumers,
            transform=self._transform(root),
            replicas=self.replicas,
        )

    def _ctl(self, names: Subjects, root: str) -> StreamConfig:
        return StreamConfig(
            names.ctl_stream,
            (f"{root}.ctl.*.*", f"{root}.done.*.*", f"{root}.send.*.*"),
            retention="workqueue",
            discard="new",
            max_msgs_per_subject=self.limits.per_subject,
            discard_new_per_subject=True,
            max_consumers=self._consumers,
            transform=self._transform(root),
            replicas=self.replicas,
        )

    def _wake(self, names: Subjects, root: str) -> StreamConfig:
        """No bound at all: a stream with schedules discards old messages, a far timer first (tried)."""
        return StreamConfig(
            names.wake_stream,
            (f"{root}.wake.*.*.*", f"{root}.timer.*.*.*.*", f"{root}.lane.*.*"),
            retention="workqueue",
            discard="old",
            max_consumers=self._consumers,
            allow_schedules=True,
            allow_ttl=True,
            allow_rollup=True,  # schedules imply it
            replicas=self.replicas,
        )

    def _held(self, names: Subjects, root: str) -> StreamConfig:
        return StreamConfig(
            names.held_stream,
            (f"{root}.held.*.*.*.*", f"{root}.held.*.fence"),
            discard="new",
            max_msgs_per_subject=self.limits.per_subject,
            discard_new_per_subject=True,
            max_bytes=self.limits.held_bytes,
            allow_atomic=True,
            allow_rollup=True,
            replicas=self.replicas,
        )

    def _bucket(self, bucket: str, history: int, changed: tuple[str, ...]) -> StreamConfig:
        """A KV bucket as stock tools expect it (ADR-8), with TTL per message (ADR-43)."""
        keys = f"$KV.{bucket}.>"
        return StreamConfig(
            f"KV_{bucket}",
            (keys,),
            discard="new",
            max_msgs_per_subject=history,
            allow_rollup=True,
            allow_ttl=True,
            republish=(keys, changed[0]) if changed else None,
            replicas=self.replicas,
        )

    def _transform(self, root: str) -> tuple[str, str]:
        partition = f"{{{{partition({self.partitions},2)}}}}"
        wildcards = ".".join(f"{{{{wildcard({n})}}}}" for n in (1, 2, 3))
        return f"{root}.*.*.*", f"{root}.in.{partition}.{wildcards}"

    @property
    def _consumers(self) -> int:
        """Each partition's consumer of this epoch and of the last, lanes, and some room."""
        return 2 * self.partitions + _CONSUMERS_SPARE


async def apply(broker: Broker, topology: Topology) -> tuple[str, ...]:
    """Create what is missing and change what differs; the names of the streams touched. Needs admin rights.

    Raises `TopologyRefused` before any change when the app or the partitions contradict what was applied,
    or the bounds do not fit the account; `Refused` with the broker's reason when it does not allow a
    change.
    """
    stored = await read_topology(broker, topology.subjects)
    if stored is not None:
        _check_fixed(stored, topology)
    _check_share(await broker.account_limits(), topology)
    touched = []
    for wanted in topology.streams():
        present = await broker.stream_config(wanted.name)
        if present is None:
            await broker.create_stream(wanted)
        elif present != wanted:
            await broker.update_stream(wanted)
        else:
            continue
        touched.append(wanted.name)
    if stored != topology:
        await _write_topology(broker, topology)
    if not await broker.consumers(topology.subjects.ctl_stream):  # nodes at work would take the probe
        await check_partitioning(broker, topology.subjects)
    return tuple(touched)


async def check_drift(broker: Broker, namespace: str) -> Topology:
    """What was applied, after comparing it with what the broker has. A node starts on nothing else.

    Raises `StreamNotFound` when nothing was applied, `TopologyDrift` naming each field, expected and
    received.
    """
    names = Subjects(namespace, 1)
    topology = await read_topology(broker, names)
    if topology is None:
        raise StreamNotFound(names.cluster_stream)
    differences = []
    for wanted in topology.streams():
        present = await broker.stream_config(wanted.name)
        differences.extend(_differences(wanted, present))
    if differences:
        raise TopologyDrift(differences)
    _check_share(await broker.account_limits(), topology)
    return topology


@dataclass(frozen=True, slots=True)
class Sight:
    """What was applied, and how much of it this user may compare with what the broker has."""

    topology: Topology
    seen: tuple[str, ...]
    hidden: tuple[str, ...]
    """Streams about which it may not ask."""


async def look_for_drift(broker: Broker, namespace: str) -> Sight:
    """As `check_drift`, for users of roles that may ask about some of the streams only. Raises as it does."""
    topology = await read_topology(broker, Subjects(namespace, 1))
    if topology is None:
        raise StreamNotFound(Subjects(namespace, 1).cluster_stream)
    seen: list[str] = []
    hidden: list[str] = []
    differences: list[Difference] = []
    for wanted in topology.streams():
        try:
            present = await broker.stream_config(wanted.name)
        except Refused as refused:
            if not refused.is_denied:
                raise
            hidden.append(wanted.name)
        else:
            seen.append(wanted.name)
            differences.extend(_differences(wanted, present))
    if differences:
        raise TopologyDrift(differences)
    if not hidden:
        _check_share(await broker.account_limits(), topology)
    return Sight(topology, tuple(seen), tuple(hidden))


async def read_topology(broker: Broker, subjects: Subjects) -> Topology | None:
    """What was last applied to this namespace, or None.

    Raises `TopologyRefused` when it is of a later version.
    """
    try:
        stored = await broker.read_last(subjects.cluster_stream, subjects.cluster(_TOPOLOGY_KEY))
    except StreamNotFound:
        return None
    if stored is None:
        return None
    body = orjson.loads(stored.payload)
    version = body.pop("version")
    if version != TOPOLOGY_VERSION:
        raise TopologyRefused(
            "version", str(TOPOLOGY_VERSION), str(version), "use the Sojourn that applied it"
        )
    return Topology(**{**body, "limits": Limits(**body["limits"])})


async def check_partitioning(broker: Broker, subjects: Subjects) -> None:
    """Compare our partition function with the server's, by one control message that is deleted again (admin
    rights).

    Raises `TopologyDrift`.
    """
    probe = actor_id("partition-probe")
    ack = await broker.publish(Publish(subjects.ctl(probe, Token("probe"))))
    stored = await broker.read(subjects.ctl_stream, ack.seq)
    await broker.delete(subjects.ctl_stream, ack.seq)
    expected = f"sj.{subjects.namespace}.in.{subjects.partition_of(probe)}.ctl.{probe}.probe"
    received = stored.subject if stored is not None else "nothing stored"
    if received != expected:
        raise TopologyDrift([Difference(subjects.ctl_stream, "partition of an actor", expected, received)])


async def _write_topology(broker: Broker, topology: Topology) -> None:
    body = {"version": TOPOLOGY_VERSION, **dataclasses.asdict(topology)}
    names = topology.subjects
    subject = names.cluster(_TOPOLOGY_KEY)
    last = await broker.read_last(names.cluster_stream, subject)
    message = Publish(subject, orjson.dumps(body), expect_last=last.seq if last is not None else 0)
    try:
        await broker.publish(message)
    except WrongLastSequence as error:
        raise OutcomeUnknown("topology apply", subject, "somebody else applies at the same time") from error


def _check_fixed(stored: Topology, wanted: Topology) -> None:
    if stored.partitions != wanted.partitions:
        raise TopologyRefused(
            "partitions",
            str(stored.partitions),
            str(wanted.partitions),
            "they are fixed for the life of a namespace; use another namespace",
        )
    if stored.app != wanted.app:
        raise TopologyRefused(
            "app", stored.app, wanted.app, "a namespace belongs to one app; use another namespace"
        )


def _check_share(account: AccountLimits, topology: Topology) -> None:
    if account.max_bytes < 0:
        return
    limits = topology.limits
    wanted = limits.mail_bytes + limits.held_bytes + limits.dead_bytes
    allowed = int(account.max_bytes * STORAGE_SHARE)
    if wanted > allowed:
        raise TopologyRefused(
            "mail_bytes + held_bytes + dead_bytes",
            f"at most {allowed} (60 % of the account's {account.max_bytes} bytes)",
            str(wanted),
            "lower them with `sojourn topology apply --mail-bytes ...`, or raise the account's limit",
        )


def _differences(wanted: StreamConfig, present: StreamConfig | None) -> list[Difference]:
    if present is None:
        return [Difference(wanted.name, "stream", "present", "missing")]
    return [
        Difference(wanted.name, name.name, repr(expected), repr(received))
        for name in dataclasses.fields(wanted)
        if (expected := getattr(wanted, name.name)) != (received := getattr(present, name.name))
    ]
