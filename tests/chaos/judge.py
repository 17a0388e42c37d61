"""Compares what was promised with what happened. Pure: everything it knows is in the evidence.

Each rule is a function from the evidence to findings, sentences that begin with the actor. The rules are those of the protocol:

- `ends`: every acknowledged start has a record that ended in a way its workflow can end, with the right value, sealed (I11, 6);
- `mail`: no acknowledged mail is lost, none is taken twice, each line is in order, and a dead letter has a reason (I3, I4, I9);
- `effects`: each effect of a workflow happened, under one operation; one ran again only where its process died or lost its lease (I5);
- `cleanups`: exactly one for whoever was cancelled, none for anybody else, none before it was asked for (I10);
- `commits`: each names the one before it, epochs never go back, one node per partition and epoch, the end is the end (I1);
- `orphans`: nothing is left in any stream, `sojourn check` finds nothing, the nodes' logs hold no defect.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from .evidence import Commit, Ended, Evidence, Execution, LeaseLife, Promise, Sent

SERVER_SLACK: Final = 10.0
"""Seconds after the end of a server for which a queue's consumer may give one task to two workers: what it had given out before an
election counts as not given.
"""
LEASE_SLACK: Final = 3.0
"""Seconds by which a lease may be seen to end later than it did: the witness looks once a second."""
ENDED: Final = frozenset(("completed", "rejected", "failed", "cancelled", "terminated"))


def judge(evidence: Evidence) -> dict[str, list[str]]:
    """Findings by rule; empty when nothing was lost and nothing done twice."""
    found = {
        "ends": ends(evidence),
        "mail": mail(evidence),
        "effects": effects(evidence),
        "cleanups": cleanups(evidence),
        "commits": commits(evidence),
        "orphans": orphans(evidence),
        "harness": list(evidence.trouble),
    }
    return {rule: sorted(findings) for rule, findings in found.items() if findings}


# ---- ends


def ends(evidence: Evidence) -> list[str]:
    """See the module."""
    findings: list[str] = []
    known: set[str] = set()
    for promise in evidence.promises:
        known.update((promise.actor, *promise.children))
        record = evidence.records.get(promise.actor)
        if record is None:
            if promise.started == "acked":
                findings.append(f"{promise.actor}: its start was acknowledged, and there is no record of it")
            continue
        findings.extend(_ended_well(promise, record, in_order=not evidence.full_disks))
        findings.extend(
            f"{child}: of {promise.actor}, which completed, has no record"
            for child in promise.children
            if record.status == "completed" and child not in evidence.records
        )
    for actor, record in evidence.records.items():
        if actor not in known:
            findings.append(f"{actor}: nobody started it")
        if record.status not in ENDED:
            held = f", {record.hold}: {record.reason[:200]}" if record.hold else ""
            findings.append(
                f"{actor}: has not ended: {record.status}, waits for {record.wait or 'nothing'}{held}"
            )
        elif not record.sealed:
            findings.append(f"{actor}: {record.status}, and not sealed")
    return findings


def _ended_well(promise: Promise, record: Ended, *, in_order: bool) -> Iterator[str]:
    actor = promise.actor
    if promise.run and record.run != promise.run:
        yield f"{actor}: started as run {promise.run}, its record is of run {record.run}"
    if record.status in ENDED and record.status not in _legal(promise):
        legal = " or ".join(sorted(_legal(promise)))
        yield f"{actor}: expected to end {legal}, ended {record.status} {record.reason[:200]}".rstrip()
    if promise.told is not None and record.status in ENDED and promise.told[0] != record.status:
        yield f"{actor}: its client was told {promise.told[0]}, its record says {record.status}"
    if record.status != "completed":
        return
    if promise.told is not None and promise.told[1] != record.value:
        yield f"{actor}: its client was told {promise.told[1]}, its record says {record.value}"
    if not isinstance(record.value, dict):
        yield f"{actor}: returned {record.value!r}"
        return
    if record.value["began"] != record.value["ended"]:
        yield f"{actor}: began under version {record.value['began']}, ended under {record.value['ended']}"
    expected = _expected(promise, in_order=in_order)
    received = {name: record.value.get(name) for name in expected}
    if received != expected:
        yield f"{actor}: expected {expected}, returned {received}"


def _legal(promise: Promise) -> frozenset[str]:
    match promise.kind:
        case "reject":
            return frozenset(("failed" if promise.args[0] else "rejected",))
        case "cancel" | "sleep":
            return frozenset(("terminated" if promise.verb == "terminate" else "cancelled",))
    return frozenset(("completed",))


def _expected(promise: Promise, *, in_order: bool) -> dict[str, Any]:
    """The part of the result that does not depend on what happened."""
    args = promise.args
    match promise.workflow:
        case "steps":
            return {"done": args[0], "attempt": args[2] + 1}
        case "queued":
            return {"done": args[0], "attempt": args[2] + 1, "names": ["p0", "p1", "p2"]}
        case "family":
            named = [f"rejected {child}" if n % 3 == 2 else child for n, child in enumerate(promise.children)]
            return {"children": named}
        case "gathers":
            return {"names": [*(f"g{n}" for n in range(args[0])), "beside"]}
        case "relay":
            return {"sent": args[1]}
        case "takes_relay":
            return {"taken": list(range(args[0]))}
        case "racing" if in_order:
            return {"slow": "timed out"}
    return {}


# ---- mail


def mail(evidence: Evidence) -> list[str]:
    """See the module."""
    findings: list[str] = []
    buried = Counter((actor, channel, _number(payload)) for actor, channel, _, payload in evidence.dead)
    sent = {
        (mail.actor, mail.channel, mail.line, mail.n): mail
        for promise in evidence.promises
        for mail in promise.mails
        if mail.n >= 0
    }
    for promise in evidence.promises:
        record = evidence.records.get(promise.actor)
        if record is not None and record.status == "completed" and isinstance(record.value, dict):
            if promise.kind == "mail":
                findings.extend(_lines(promise, record.value["taken"], buried))
            if promise.kind == "race":
                findings.extend(_raced(promise, record.value, buried))
    for actor, channel, reason, payload in evidence.dead:
        finding = _unexplained(evidence, sent, actor, channel, payload)
        if finding:
            findings.append(f"{actor or 'nobody'}: {channel} is a dead letter ({reason}): {finding}")
    return findings


def _lines(
    promise: Promise, taken: Sequence[Sequence[Any]], buried: Mapping[tuple[str, str, Any], int]
) -> Iterator[str]:
    by_line: dict[str, list[int]] = defaultdict(list)
    for line, n in taken:
        by_line[line].append(n)
    sent: dict[str, dict[int, Sent]] = defaultdict(dict)
    for one in promise.mails:
        if one.n >= 0:
            sent[one.line][one.n] = one
    for line in sorted(by_line.keys() | sent.keys()):
        numbers, were_sent = by_line[line], sent[line]
        acked = {n for n, one in were_sent.items() if one.answer == "acked"}
        for n, times in Counter(numbers).items():
            if times > 1:
                yield f"{promise.actor}: took mail {n} of {line} {times} times"
        for n in sorted(acked - set(numbers)):
            yield f"{promise.actor}: mail {n} of {line} was acknowledged and never taken"
        for n in sorted(set(numbers) - were_sent.keys()):
            yield f"{promise.actor}: took mail {n} of {line}, which nobody sent"
        certain = [n for n in numbers if n in acked]
        if certain != sorted(certain):
            yield f"{promise.actor}: took the mail of {line} out of order: {certain}"


def _raced(
    promise: Promise, value: Mapping[str, Any], buried: Mapping[tuple[str, str, Any], int]
) -> Iterator[str]:
    acked = [one for one in promise.mails if one.answer == "acked"]
    taken = value["which"] == "mail"
    if taken and not promise.mails:
        yield f"{promise.actor}: took mail that nobody sent"
    if acked and not taken and not buried[promise.actor, "go", acked[0].n]:
        yield f"{promise.actor}: acknowledged mail was neither taken nor is it a dead letter"
    if taken and acked and buried[promise.actor, "go", acked[0].n]:
        yield f"{promise.actor}: mail was taken, and is a dead letter too"


def _unexplained(
    evidence: Evidence,
    sent: Mapping[tuple[str, str, str, int], Sent],
    actor: str,
    channel: str,
    payload: bytes,
) -> str:
    """Why a dead letter should not be there; "" when it may."""
    try:
        content = json.loads(payload)
        line, n = content["line"], content["n"]
    except (ValueError, TypeError, KeyError):
        return f"it is no mail of a client: {payload[:80]!r}"
    if n < 0:
        return ""  # the mail that ends a line is sent until one is acknowledged
    one = sent.get((actor, channel, line, n))
    if one is None:
        return "nobody sent it"
    if one.answer == "acked" and line != "go":
        return f"mail {n} of {line} was acknowledged, its receiver was waiting for it"
    return ""


def _number(payload: bytes) -> Any:
    try:
        return json.loads(payload)["n"]
    except (ValueError, TypeError, KeyError):
        return None


# ---- effects


def effects(evidence: Evidence) -> list[str]:
    """See the module."""
    findings: list[str] = []
    operations: dict[tuple[str, str], set[str]] = defaultdict(set)
    finished: set[tuple[str, str]] = set()
    calls: dict[tuple[str, int], list[Execution]] = defaultdict(list)
    for execution in evidence.executions:
        operations[execution.actor, execution.name].add(execution.key)
        calls[execution.key, execution.attempt].append(execution)
        if execution.ended is not None:
            finished.add((execution.actor, execution.name))
    for (actor, name), keys in operations.items():
        if len(keys) > 1:
            findings.append(f"{actor}: {name} ran as {len(keys)} operations: {', '.join(sorted(keys))}")
    for promise in evidence.promises:
        record = evidence.records.get(promise.actor)
        if record is not None and record.status in ENDED:
            findings.extend(
                f"{actor}: ended {record.status}, and its effect {name!r} never happened"
                for actor, name in _required(promise, record)
                if (actor, name) not in finished
            )
    excuses = Excuses(evidence)
    for executions in calls.values():
        for former, again in pairwise(executions):
            if not excuses.may_repeat(former, again):
                findings.append(
                    f"{again.actor}: {again.name} (attempt {again.attempt}) ran again on {again.node} after "
                    f"{again.began - former.began:.2f} s, but {former.node} (pid {former.pid}) neither died nor lost its lease"
                )
    return findings


def repeated(evidence: Evidence) -> int:
    """Executions beyond the first of their attempt."""
    counts = Counter((execution.key, execution.attempt) for execution in evidence.executions)
    return sum(count - 1 for count in counts.values())


def _required(promise: Promise, record: Ended) -> Iterable[tuple[str, str]]:
    """Effects, as (actor, name), without which it cannot have ended as it did."""
    actor, args = promise.actor, promise.args
    value = record.value if isinstance(record.value, dict) else {}
    match promise.workflow:
        case "steps":
            names = [*(f"s{n}" for n in range(args[0])), "flaky"]
        case "queued":
            names = [*(f"q{n}" for n in range(args[0])), "between", "p0", "p1", "p2", "flaky"]
        case "mail":
            names = [f"m-{line}-{n}" for line, n in value.get("taken", ()) if n % 4 == 0]
        case "timers":
            names = [f"t{n}" for n in range(args[0])]
        case "family":
            yield from ((child, f"child {child}") for child in promise.children)
            yield from ((child, f"told {child}") for child in promise.children[1::3])
            names = ["joined"]
        case "racing":
            names = [f"won {value.get('which')}", "after the time-out"]
        case "rejects":
            names = ["before"]
        case "gathers":
            names = [*(f"g{n}" for n in range(args[0])), "beside"]
        case "relay":
            names = [f"sent {n}" for n in range(0, args[1], 5)]
        case "takes_relay":
            names = ["all taken"]
        case _:
            names = []
    yield from ((actor, name) for name in names)


class Excuses:
    """When a process was over, or stopped being allowed to act: only then may what it ran, run again."""

    def __init__(self, evidence: Evidence) -> None:
        self._deaths: dict[str, float] = {death.node: death.at for death in evidence.deaths}
        self._leases: dict[str, list[LeaseLife]] = defaultdict(list)
        for lease in evidence.leases:
            self._leases[lease.node].append(lease)
        self._workers = evidence.workers
        self._server_ends = evidence.server_ends

    def may_repeat(self, former: Execution, again: Execution) -> bool:
        """Whether the process of `former` died, or its lease ended, between the two; or, at a worker, a server ended: it may come back
        without acknowledgements that it has confirmed (tried), and a task whose result still waits for the actor's owner runs again.
        """
        died = self._deaths.get(former.node)
        if died is not None and former.began <= died <= again.began + LEASE_SLACK:
            return True
        if former.node in self._workers and any(
            former.began - SERVER_SLACK <= at <= again.began for at in self._server_ends
        ):
            return True
        return any(
            lease.ended is not None and former.began - LEASE_SLACK <= lease.ended <= again.began + LEASE_SLACK
            for lease in self._leases[former.node]
        )


# ---- cleanups


def cleanups(evidence: Evidence) -> list[str]:
    """See the module."""
    findings: list[str] = []
    asked: dict[str, tuple[float, str]] = {}
    for promise in evidence.promises:
        if promise.kind in ("cancel", "sleep"):
            asked[promise.actor] = promise.verb_at, promise.verb
            asked.update((child, (promise.verb_at, "cancel")) for child in promise.children)
    keys: dict[str, set[str]] = defaultdict(set)
    done: set[str] = set()
    entered: set[str] = set()
    for execution in evidence.executions:
        if execution.name == "entered":
            entered.add(execution.actor)
        if execution.name == "cleanup":
            keys[execution.actor].add(execution.key)
            if execution.ended is not None:
                done.add(execution.actor)
    for actor in sorted(asked):
        record = evidence.records.get(actor)
        if record is None or record.status not in ENDED:
            continue
        if record.status == "cancelled" and actor in entered and (len(keys[actor]) != 1 or actor not in done):
            findings.append(f"{actor}: was cancelled, and its cleanup ran as {len(keys[actor])} operations")
        if record.status == "terminated" and asked[actor][1] == "terminate" and keys[actor]:
            findings.append(f"{actor}: was terminated, and its cleanup ran all the same")
    for plain in evidence.plains:
        since, verb = asked.get(plain.actor, (0.0, ""))
        if not verb:
            findings.append(f"{plain.actor}: its cleanup code ran, and nobody had asked it to end")
        elif plain.at < since:
            findings.append(
                f"{plain.actor}: its cleanup code ran {since - plain.at:.2f} s before it was asked to end"
            )
        elif verb == "terminate":
            findings.append(f"{plain.actor}: was terminated, and its cleanup code ran all the same")
    return findings


# ---- commits


def commits(evidence: Evidence) -> list[str]:
    """See the module."""
    findings: list[str] = []
    former: dict[str, Commit] = {}
    owners: dict[tuple[int, str, int], str] = {}
    for commit in evidence.commits:
        actor = commit.actor
        before = former.get(actor)
        former[actor] = commit
        if _seen_all(evidence.unseen, before.revision if before is not None else 0, commit.revision):
            findings.extend(_follows(before, commit))
        elif before is not None and commit.epoch < before.epoch:
            findings.append(f"{actor}: revision {commit.revision} has a lower epoch than {before.revision}")
        owned = evidence.partition_of.get(actor, -1), *_ownership(before, commit)
        owner = owners.setdefault(owned, commit.node)
        if owner != commit.node:
            what = f"lane {owned[1]} of " if owned[1] else ""
            findings.append(
                f"{actor}: revision {commit.revision} is by {commit.node} under epoch {owned[2]} of {what}partition "
                f"{owned[0]}, which is {owner}'s"
            )
    return findings


def _ownership(before: Commit | None, commit: Commit) -> tuple[str, int]:
    """Under which lane's epoch ("": the partition's own) a commit was made. A lane node's may take the record off its lane."""
    if not commit.lane_epoch:
        return "", commit.epoch
    return before.lane if before is not None else commit.lane, commit.lane_epoch


def unverified(evidence: Evidence) -> int:
    """Commits of which it is not known what came before them: the witness was away."""
    former: dict[str, int] = {}
    missing = 0
    for commit in evidence.commits:
        missing += not _seen_all(evidence.unseen, former.get(commit.actor, 0), commit.revision)
        former[commit.actor] = commit.revision
    return missing


def _seen_all(unseen: Sequence[int], after: int, before: int) -> bool:
    return bisect_left(unseen, before) == bisect_right(unseen, after)


def _follows(before: Commit | None, commit: Commit) -> Iterator[str]:
    where = f"{commit.actor}: revision {commit.revision} by {commit.node} (epoch {commit.epoch}, transition {commit.transition})"
    if before is None:
        if commit.previous:
            yield f"{where} is the first, and names a commit before it"
        return
    if commit.previous != before.commit:
        yield f"{where} does not follow revision {before.revision} by {before.node} (epoch {before.epoch}, transition {before.transition})"
        return
    if commit.epoch < before.epoch:
        yield f"{where} is of a lower epoch than revision {before.revision} ({before.epoch})"
    if 0 < commit.lane_epoch < before.lane_epoch and commit.lane == before.lane:
        yield f"{where} is of a lower epoch of lane {commit.lane} than revision {before.revision}"
    if commit.run != before.run:
        yield f"{where} is of another run than revision {before.revision}"
    if commit.transition != before.transition + 1:
        yield f"{where} follows transition {before.transition}"
    if before.status in ENDED and commit.status != before.status:
        yield f"{where} is {commit.status} after {before.status}"
    if before.sealed:
        yield f"{where} comes after the seal"


# ---- orphans


def orphans(evidence: Evidence) -> list[str]:
    """See the module."""
    return [
        *(f"{count} messages are left in {what}" for what, count in evidence.left.items()),
        *(f"sojourn check: {finding}" for finding in evidence.check),
        *evidence.logs,
    ]
