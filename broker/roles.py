"""Roles as NATS users with least rights, for the server's configuration.

| role | account | may | |---|---|---| | admin | inside | create, change and purge the namespace's streams,
and everything a node may | | node | inside | own partitions: records, consumers, held events, timers, dead
letters; delete single held messages; answer questions | | starter | own | start and signal actors, ask owners
about them, learn of changes, read records' stream and the cluster's keys | | signaller | own | send mail on
user channels, nothing else | | reader | own | ask owners, read records' stream, dead letters, the cluster's
keys, what queues have to do; no write at all | | operator | own |
what a reader may, and control messages by verb | | worker | own | take tasks of its queues of steps and acknowledge
them, send results of steps, read records; no other queue's tasks, no consumers, no write to records |

A worker reads whole records to find out whether a task is still wanted, and uses of them what lies open, the index. What it
sends as a result is believed only with the mark that came with the task (`actors.task`), which no record holds.

**Why accounts and not permissions alone.** A server answers every message it stores to the reply subject
its sender gave, with its own authority, and permissions do not cover reply subjects. In one account a
signaller who sends a mail with the reply address `$KV.<frames>.<actor>` overwrites that actor's record
with the acknowledgement, and with `sj.<ns>.ctl.<actor>.cancel` cancels it (both tried on 2.15.1). So
whoever is not trusted with the records lives in an account without streams, and reaches single subjects as
imported services: an answer is delivered inside that account, and imports are not followed from there
(tried). The JetStream API answers locally in every account, so what a role may ask of it is imported under
`SJ.API` (`NatsOptions.api_prefix`).

A user subscribes only under its role's inbox prefix, `_INBOX_sj_<role>`. What a *header* could do is a
matter of the streams: MAIL and CTL allow no roll-up, schedules, TTL or batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import orjson
from sojourn.broker.subjects import Subjects, token


class Role(StrEnum):
    """Who a user is to a namespace."""

    ADMIN = "admin"
    NODE = "node"
    STARTER = "starter"
    SIGNALLER = "signaller"
    READER = "reader"
    OPERATOR = "operator"
    WORKER = "worker"

    @property
    def inside(self) -> bool:
        """Whether its users live in the account of the streams."""
        return self in (Role.ADMIN, Role.NODE)


OPERATOR_VERBS = ("cancel", "terminate", "pause", "resume", "release", "restart", "drain")
"""`drain` is for nodes, the others for actors."""
OUTSIDE_API = "SJ.API"
_NEXT = "CONSUMER.MSG.NEXT"
_API = "$JS.API"


@dataclass(frozen=True, slots=True)
class User:
    """A user of the server's configuration. `password` may be a bcrypt hash; it is never shown."""

    name: str
    password: str
    role: Role
    verbs: tuple[str, ...] = OPERATOR_VERBS
    """Control verbs of an operator."""
    queues: tuple[str, ...] = ()
    """Queues of steps that a worker serves."""

    def __repr__(self) -> str:
        return f"<User {self.name} role={self.role}>"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects a user may publish and subscribe to; everything else is denied."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def to_dict(self) -> dict[str, dict[str, list[str]]]:
        """As the server's configuration has it."""
        return {
            "publish": {"allow": list(self.publish)},
            "subscribe": {"allow": list(self.subscribe)},
        }


def inbox_prefix(role: Role) -> str:
    """The prefix of a role's inboxes (`NatsOptions.inbox_prefix`)."""
    return f"_INBOX_sj_{role.value}"


def api_prefix(role: Role) -> str:
    """Where a role reaches the JetStream API (`NatsOptions.api_prefix`)."""
    return _API if role.inside else OUTSIDE_API


def permissions(
    role: Role,
    subjects: Subjects,
    *,
    verbs: Iterable[str] = OPERATOR_VERBS,
    queues: Iterable[str] = (),
) -> Permissions:
    """What a user of this role may do, in its own account. `verbs` are an operator's control verbs, `queues` a worker's."""
    root = f"sj.{subjects.namespace}"
    subscribe = [f"{inbox_prefix(role)}.>"]
    if role not in (Role.SIGNALLER, Role.WORKER):
        subscribe.append(f"{root}.changed.>")
    if role.inside:
        subscribe += [f"{root}.probe.>", f"{root}.node.>", f"{root}.q.*", f"{root}.members"]
        publish = _node(subjects) if role is Role.NODE else _admin(subjects)
    else:
        publish = [
            *_outside_subjects(role, subjects, verbs, queues),
            *(f"{OUTSIDE_API}.{call}" for call in _outside_calls(role, subjects, queues)),
        ]
    return Permissions(tuple(publish), tuple(subscribe))


def server_config(users: Iterable[User], subjects: Subjects) -> str:
    """The `accounts` block of a server configuration for these users.

    Admins and nodes share the account of the streams; users of another role share an account per role
    (operators per set of verbs), each with exactly the imports of that role.
    """
    inside = f"SJ_{subjects.namespace}"
    exports: dict[str, dict[str, object]] = {}
    accounts: dict[str, dict[str, list[object]]] = {inside: {"users": [], "imports": []}}
    for user in users:
        name = inside if user.role.inside else f"{inside}_{_account_suffix(user)}"
        account = accounts.setdefault(name, {"users": [], "imports": _imports(user, subjects, inside)})
        account["users"].append(_user(user, subjects))
        if not user.role.inside:
            exports.update(_exports(user, subjects))
    body = {name: dict(account) for name, account in accounts.items()}
    streams = {**body[inside], "jetstream": "enabled", "exports": list(exports.values())}
    return f"accounts: {orjson.dumps({**body, inside: streams}, option=orjson.OPT_INDENT_2).decode()}"


def _account_suffix(user: User) -> str:
    its_own = {Role.OPERATOR: user.verbs, Role.WORKER: user.queues}.get(user.role, ())
    return "_".join((user.role.value, *its_own))


def _user(user: User, subjects: Subjects) -> dict[str, object]:
    allowed = permissions(user.role, subjects, verbs=user.verbs, queues=user.queues)
    return {"user": user.name, "password": user.password, "permissions": allowed.to_dict()}


# the outside
def _outside_subjects(
    role: Role, subjects: Subjects, verbs: Iterable[str], queues: Iterable[str]
) -> list[str]:
    root = f"sj.{subjects.namespace}"
    match role:
        case Role.SIGNALLER:
            return [f"{root}.mail.*.*"]
        case Role.STARTER:
            return [f"{root}.mail.*.*", f"{root}.ctl.*.start", f"{root}.q.*"]
        case Role.OPERATOR:
            return [*(_verb(root, token(verb, "a control verb")) for verb in verbs), f"{root}.q.*"]
        case Role.READER:
            return [f"{root}.q.*"]  # questions to owners: they change nothing
        case Role.WORKER:
            acks = f"$JS.ACK.{subjects.steps_stream}"
            return [f"{root}.done.*.*", *(f"{acks}.{name}.>" for name in _consumers(subjects, queues))]
    return []


def _consumers(subjects: Subjects, queues: Iterable[str]) -> list[str]:
    return [subjects.step_consumer(token(queue, "a queue's name")) for queue in queues]


def _verb(root: str, verb: str) -> str:
    return f"{root}.node.*.drain" if verb == "drain" else f"{root}.ctl.*.{verb}"


def _outside_calls(role: Role, subjects: Subjects, queues: Iterable[str]) -> list[str]:
    streams = [subjects.frames_stream, subjects.cluster_stream]
    if role is Role.SIGNALLER:
        return []
    if role is Role.WORKER:
        pulls = (f"{_NEXT}.{subjects.steps_stream}.{name}" for name in _consumers(subjects, queues))
        clock = f"STREAM.INFO.{subjects.steps_stream}"
        return [*pulls, clock, *(f"STREAM.MSG.GET.{stream}" for stream in streams)]
    if role is Role.STARTER:
        return _reads(streams)
    return [*_reads([*streams, subjects.dead_stream]), *_queue_depths(subjects)]


def _queue_depths(subjects: Subjects) -> list[str]:
    """What each queue of steps has to do (`sojourn queues`)."""
    return [
        f"CONSUMER.{call}" for call in (f"NAMES.{subjects.steps_stream}", f"INFO.{subjects.steps_stream}.*")
    ]


def _changes(role: Role, subjects: Subjects) -> list[str]:
    """What owners send to a role: news of records, and answers to what it asked for (a control message
    names where the answer goes; the owner sends it in the account of the streams).
    """
    if role in (Role.SIGNALLER, Role.WORKER):
        return []
    answers = [f"{inbox_prefix(role)}.>"] if role in (Role.STARTER, Role.OPERATOR) else []
    return [f"sj.{subjects.namespace}.changed.>", *answers]


def _imports(user: User, subjects: Subjects, inside: str) -> list[object]:
    if user.role.inside:
        return []
    return [
        *(
            {"service": {"account": inside, "subject": subject}}
            for subject in _outside_subjects(user.role, subjects, user.verbs, user.queues)
        ),
        *(
            {"service": {"account": inside, "subject": f"{_API}.{call}"}, "to": f"{OUTSIDE_API}.{call}"}
            for call in _outside_calls(user.role, subjects, user.queues)
        ),
        *({"stream": {"account": inside, "subject": subject}} for subject in _changes(user.role, subjects)),
    ]


def _exports(user: User, subjects: Subjects) -> dict[str, dict[str, object]]:
    """Exports by subject; a direct get and a request for a task answer with several messages."""
    found: dict[str, dict[str, object]] = {}
    for subject in _outside_subjects(user.role, subjects, user.verbs, user.queues):
        found[subject] = {"service": subject}
    for call in _outside_calls(user.role, subjects, user.queues):
        kind = "Stream" if call.startswith(("DIRECT", _NEXT)) else "Singleton"
        found[f"{_API}.{call}"] = {"service": f"{_API}.{call}", "response_type": kind}
    for subject in _changes(user.role, subjects):
        found[subject] = {"stream": subject}
    return found


# the inside
def _admin(subjects: Subjects) -> list[str]:
    verbs = ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE")
    return [
        *_node(subjects),
        *(f"{_API}.STREAM.{verb}.{stream}" for verb in verbs for stream in subjects.streams),
        f"{_API}.STREAM.NAMES",
        f"{_API}.STREAM.LIST",
        f"sj.{subjects.namespace}.>",
    ]


_CONSUMER_CALLS = ("NAMES.{0}", "INFO.{0}.*", "CREATE.{0}.>", "DELETE.{0}.*", "MSG.NEXT.{0}.*")
_NODE_STORES = ("ctl", "done", "send", "wake", "timer", "lane", "held", "step", "dead", "probe", "node", "q")
_SERVICE_REPLIES = "_R_.>"
"""Where the server takes the answer to a request of another account."""


def _node(subjects: Subjects) -> list[str]:
    root = f"sj.{subjects.namespace}"
    consumed = (subjects.mail_stream, subjects.ctl_stream, subjects.wake_stream, subjects.steps_stream)
    return [
        f"{_API}.INFO",
        *(f"{_API}.{call}" for call in _reads(subjects.streams)),
        *(f"{_API}.CONSUMER.{call.format(stream)}" for stream in consumed for call in _CONSUMER_CALLS),
        *(f"$JS.ACK.{stream}.>" for stream in consumed),
        f"{_API}.STREAM.MSG.DELETE.{subjects.held_stream}",
        f"$KV.{subjects.frames_bucket}.>",
        f"$KV.{subjects.cluster_bucket}.>",
        f"$O.{subjects.values_bucket}.>",
        *(f"{root}.{store}.>" for store in _NODE_STORES),
        f"{root}.members",
        *(f"{inbox_prefix(role)}.>" for role in Role),
        _SERVICE_REPLIES,
    ]


def _reads(streams: Iterable[str]) -> list[str]:
    """Leader reads, direct gets and state: calls that only read."""
    calls = ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
    return [f"{call}.{stream}" for call in calls for stream in streams]
