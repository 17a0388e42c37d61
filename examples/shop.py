"""An order: goods are reserved, the price is paid in parts, large orders are approved, parcels are sent, and what was reserved is given
back when any of that does not happen.

    sojourn dev examples/shop.py
    sojourn start order '[{"item": "book", "count": 2}]' 30 --id order-1
    sojourn signal order-1 payment '{"amount": 30}'
    sojourn result order-1
"""

from __future__ import annotations

from dataclasses import dataclass

from sojourn import Channel, ReceiveTimeout, Rejected, map, stage, step, tag, workflow

LARGE = 1_000
"""Price from which on somebody has to approve."""


@dataclass
class Line:
    """Some of one item."""

    item: str
    count: int


@dataclass
class Payment:
    """A part of the price, or all of it."""

    amount: int


@dataclass
class Approval:
    """Whether a large order may be sent, and who says so."""

    ok: bool
    by: str = ""


payment = Channel("payment", Payment)
approval = Channel("approval", Approval)


@step(timeout="30s")
async def reserve(line: Line) -> str:
    """Put goods aside; the name under which they lie there."""
    return f"{line.count} {line.item}"


@step(timeout="30s")
async def put_back(reserved: str) -> None:
    """Give goods back."""


@step(timeout="30s")
async def send_parcel(reserved: str) -> str:
    """Hand goods to the carrier; the number of the parcel."""
    return f"parcel with {reserved}"


@workflow(grace="5m")
async def order(lines: list[Line], price: int) -> list[str]:
    """Parcels, once everything is paid."""
    stage("reserving")
    reserved = await map(reserve, lines, limit=5)
    try:
        stage("waiting for the money")
        await paid(price)
        if price >= LARGE:
            tag("large")
            stage("waiting for an approval")
            await approved()
    except BaseException:  # a rejection, a defect, or a cancel: the goods go back
        await map(put_back, reserved, limit=5)
        raise
    stage("sending")
    return await map(send_parcel, reserved, limit=5)


async def paid(price: int) -> None:
    """Wait until the price is paid. A helper may wait as the workflow itself does."""
    missing = price
    while missing > 0:
        try:
            missing -= (await payment.receive(timeout="7d")).amount
        except ReceiveTimeout:
            raise Rejected("not paid in time", missing=missing) from None


async def approved() -> None:
    """Wait until somebody approves."""
    decision = await approval.receive(timeout="1d", default=Approval(False, "nobody"))
    if not decision.ok:
        raise Rejected("not approved", by=decision.by)
