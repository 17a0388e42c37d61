"""How an actor ends: its code is over, its branches are left, its children follow their policy, then the terminal
commit (DESIGN 6, PROTOCOL 6).

code over -> other branches cancelled -> children told -> (all ended, or the grace is over) -> terminal commit ->
flush -> seal
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from sojourn.codecs.record import Child, Ending, ErrorInfo, OutboxEntry, Outcome, Status

from .errors import Cancelled
from .events import CancelStep

if TYPE_CHECKING:
    from .draft import Draft
    from .drive import Driver

_REPLACE = msgspec.structs.replace


def code_over(draft: Draft, driver: Driver, status: Status, outcome: Outcome, grace: float) -> None:
    """The workflow function has returned or raised: cancel what else runs, then wait for branches and children."""
    if draft.ending is None:
        draft.ending = Ending(status, outcome)
    if driver.branches.table:
        driver.cancel_all(Cancelled("the workflow has ended"))
        driver.run()
    settle_end(draft, bool(driver.branches.table), grace)


def settle_end(draft: Draft, branches_left: bool, grace: float) -> None:
    """The code is over: end now, or wait for branches and cancelled children, for at most the grace period."""
    ending = draft.ending
    assert ending is not None, "only called once the code is over"
    _tell_children(draft, "cancel")
    if not branches_left and not children_awaited(draft):
        terminal(draft, ending.status, ending.outcome)
        return
    if ending.grace_timer is None and draft.cancelling is None:
        timer = draft.take_op()
        draft.arm(timer, draft.now + grace)
        draft.ending = _REPLACE(ending, grace_timer=timer)


def children_awaited(draft: Draft) -> bool:
    """Whether a child that this actor's end cancels or terminates has not ended yet."""
    return any(child.policy != "abandon" and child.status != "ended" for child in draft.children.values())


def grace_over(draft: Draft) -> None:
    """The grace period is over: end as things stand; children that still run are terminated."""
    for child in list(draft.children.values()):
        if child.policy != "abandon" and child.status != "ended":
            _tell(draft, child, "terminate", "the grace period of its parent is over")
    if draft.ending is not None:
        terminal(draft, draft.ending.status, draft.ending.outcome)
    else:
        reason = "cleanup was not over within the grace period"
        terminal(
            draft, Status.TERMINATED, Outcome("terminated", error=ErrorInfo("sojourn:Terminated", reason))
        )


def terminated(draft: Draft, reason: str) -> None:
    """End without cleanup; children follow their policy and are not waited for."""
    _tell_children(draft, "cancel")
    terminal(draft, Status.TERMINATED, Outcome("terminated", error=ErrorInfo("sojourn:Terminated", reason)))


def terminal(draft: Draft, status: Status, outcome: Outcome) -> None:
    """Make this the terminal commit: nothing is waited for any more, the parent is told."""
    for op in list(draft.waits):
        draft.settle(op)
    for call in list(draft.calls.values()):
        draft.effects.append(CancelStep(call.op))
    for timer in (
        draft.cancelling.grace_timer if draft.cancelling else None,
        draft.ending.grace_timer if draft.ending else None,
    ):
        draft.disarm(timer)
    draft.calls, draft.results = {}, {}
    draft.ending, draft.cancelling, draft.hold = None, None, None
    draft.status, draft.outcome = status, outcome
    draft.frame, draft.pin, draft.args = b"", (), msgspec.Raw(b"null")
    parent = draft.base.envelope.parent
    if parent is not None:
        body: dict[str, Any] = {"op": parent.op, "run": parent.run, "status": str(status), "outcome": outcome}
        draft.send(
            OutboxEntry(
                n=draft.take_op(),
                kind="child-done",
                target=parent.id,
                body=msgspec.Raw(msgspec.json.encode(body)),
            )
        )


def _tell_children(draft: Draft, verb: str) -> None:
    """Send each running child what its policy says, once."""
    for child in list(draft.children.values()):
        if child.policy == "abandon" or child.status in ("ended", "cancelling"):
            continue
        _tell(draft, child, "terminate" if child.policy == "terminate" else verb, "its parent has ended")


def _tell(draft: Draft, child: Child, verb: Any, reason: str) -> None:
    body = msgspec.Raw(orjson.dumps({"reason": reason, "spawn": child.op}))
    draft.send(OutboxEntry(n=draft.take_op(), kind=verb, target=child.id, body=body))
    draft.set_child(_REPLACE(child, status="cancelling"))
