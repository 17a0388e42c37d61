"""What a run prints: counts, findings, and how to play it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .evidence import Evidence
from .judge import repeated, unverified

MOST = 25
"""Findings shown per rule."""


def counts(evidence: Evidence, injected: Mapping[str, int], skipped: Mapping[str, int]) -> Iterator[str]:
    """The figures, one line each."""
    yield f"faults     {sum(injected.values())}: {_listed(injected)}"
    if skipped:
        yield f"           not injected, as their target was down or refused too late: {_listed(skipped)}"
    started = Counter(promise.started for promise in evidence.promises)
    yield f"workflows  {len(evidence.promises)} started by clients ({_listed(started)}), {len(evidence.records)} records"
    for kind in dict.fromkeys(promise.kind for promise in evidence.promises):
        ended = Counter(
            record.status
            for promise in evidence.promises
            if promise.kind == kind and (record := evidence.records.get(promise.actor)) is not None
        )
        yield f"           {kind:8} {_listed(ended)}"
    mails = Counter(mail.answer for promise in evidence.promises for mail in promise.mails)
    yield f"mail       {sum(mails.values())} sent: {_listed(mails)}; {len(evidence.dead)} dead letters"
    yield (
        f"effects    {len({e.key for e in evidence.executions})} operations, {len(evidence.executions)} executions, "
        f"{repeated(evidence)} of them again after a death or a lost lease"
    )
    yield (
        f"commits    {len(evidence.commits)}, of {len({c.node for c in evidence.commits})} processes; "
        f"{unverified(evidence)} whose predecessor was rolled up unseen"
    )
    if evidence.released:
        yield f"released   {len(evidence.released)} from quarantine, whose nodes were ended by the plan's faults"
    lost = sum(1 for lease in evidence.leases if lease.ended is not None)
    yield f"processes  {len(evidence.deaths)} ended; {lost} leases ended"


def verdict(findings: Mapping[str, Sequence[str]], replay: str, kept: str) -> Iterator[str]:
    """Findings and how to replay, or that there are none."""
    if not findings:
        yield "nothing was lost, nothing was done twice"
        return
    for rule, found in findings.items():
        yield f"{len(found)} findings about {rule}:"
        yield from (f"  {finding}" for finding in found[:MOST])
        if len(found) > MOST:
            yield f"  and {len(found) - MOST} more"
    yield f"play it again: {replay}"
    yield f"logs, journal and key are in {kept}"


def _listed(counted: Mapping[Any, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items())) or "none"
