"""What lets a consumed origin go, and which events an actor may look at, on the in-memory broker."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from sojourn.actors.events import Event
from sojourn.broker.memory import MemoryServer
from sojourn.broker.seam import Delivery, Publish, Stored, StreamConfig
from sojourn.broker.subjects import ActorId, ChannelName, Mail
from sojourn.cluster.mail.floors import Floors
from sojourn.cluster.mail.mailbox import MOVE_AFTER_SECONDS, MOVE_OVER, Mailbox
from sojourn.cluster.mail.mailroom import HeldIndex, HeldRef, Item, Phase
from sojourn.codecs.record import Origin

# ---- floors


async def stream_of(messages: int) -> tuple[Any, Floors, int]:
    broker = await MemoryServer(time.time).connect()
    await broker.create_stream(StreamConfig("MAIL", ("m.>",), retention="workqueue"))
    for n in range(messages):
        await broker.publish(Publish("m.a", str(n).encode()))
    created = (await broker.stream_info("MAIL")).created
    floors = Floors(broker, {"mail": ("MAIL", "m.>")}, {"mail": created}, patience=0.05)
    return broker, floors, created


async def test_what_is_below_the_first_stored_message_is_gone() -> None:
    broker, floors, created = await stream_of(5)
    for seq in (1, 2, 4):
        await broker.delete("MAIL", seq)
    await floors.refresh()
    assert [floors.is_gone(Origin("mail", created, seq)) for seq in range(1, 6)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not await floors.stored(Origin("mail", created, 4))
    assert floors.is_gone(Origin("mail", created, 4))
    assert await floors.stored(Origin("mail", created, 5))


async def test_an_empty_stream_shows_as_gone_only_what_was_seen_before_the_read() -> None:
    broker, floors, created = await stream_of(3)
    for seq in (1, 2, 3):
        floors.saw(Origin("mail", created, seq))
        await broker.delete("MAIL", seq)
    await floors.refresh()
    assert floors.is_gone(Origin("mail", created, 3))
    assert not floors.is_gone(Origin("mail", created, 4))


async def test_a_floor_is_read_again_only_after_something_was_acknowledged() -> None:
    broker, floors, created = await stream_of(3)
    await floors.refresh()
    await broker.delete("MAIL", 1)
    await floors.refresh()
    assert not floors.is_gone(Origin("mail", created, 1))
    floors.touch("mail")
    await floors.refresh()
    assert floors.is_gone(Origin("mail", created, 1))


async def test_a_stream_made_anew_or_cut_short_is_storage_that_went_back() -> None:
    _, floors, created = await stream_of(3)
    assert await floors.storage_went_back([Origin("mail", created, 3)]) == ""
    assert "created" in await floors.storage_went_back([Origin("mail", created - 1, 1)])
    assert "ends at 3" in await floors.storage_went_back([Origin("mail", created, 4)])


# ---- mailbox


class Confirmations:
    """Takes acknowledgements and deletions; confirms them when told to."""

    def __init__(self) -> None:
        self.pending: list[tuple[str, Any]] = []

    def acknowledge(self, delivery: Delivery, confirmed: Any) -> None:
        self.pending.append((f"ack {delivery.message.seq}", confirmed))

    def delete(self, seq: int, confirmed: Any) -> None:
        self.pending.append((f"delete {seq}", confirmed))

    def confirm(self) -> list[str]:
        pending, self.pending = self.pending, []
        for _, confirmed in pending:
            confirmed()
        return [what for what, _ in pending]


class World:
    """A mailbox with everything it needs, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.acks = Confirmations()
        self.emptied = 0
        self.held = HeldIndex()
        services = SimpleNamespace(monotonic=lambda: self.now, fault=lambda *_: None)
        floors = SimpleNamespace(touch=lambda _: None, is_old=lambda _: False)
        hosts = SimpleNamespace(emptied=self._emptied)
        serving: Any = SimpleNamespace(
            services=services,
            floors=floors,
            acks=self.acks,
            hosts=hosts,
            held=self.held,
            unacknowledged=0,
            lane="",
        )
        self.serving = serving
        self.mailbox = Mailbox(serving, "a")

    def _emptied(self, actor: str) -> None:
        assert actor == "a"
        self.emptied += 1

    def deliver(self, seq: int, kind: Any = "mail", channel: str = "note") -> Item:
        origin = Origin("mail", 1, seq)
        event = Event(kind, "a", origin, 0.0, channel=channel)
        stored = Stored("MAIL", seq, "s", b"1", {}, 0.0)
        parsed = Mail(0, ActorId("a"), ChannelName(channel))
        self.mailbox.deliver(event, parsed, Delivery(stored, f"t{seq}", False, seq))
        return self.mailbox.get(origin)


@pytest.fixture
def world() -> World:
    return World()


def test_a_redelivery_adds_nothing_and_renews_what_is_acknowledged(world: World) -> None:
    item = world.deliver(1)
    again = world.deliver(1)
    assert again is item
    assert len(world.mailbox) == 1
    assert world.serving.unacknowledged == 1


def test_an_event_leaves_memory_when_its_acknowledgement_is_confirmed(world: World) -> None:
    item = world.deliver(1)
    world.mailbox.settle(item)
    assert len(world.mailbox) == 1
    assert world.mailbox.events() == []
    assert world.acks.confirm() == ["ack 1"]
    assert len(world.mailbox) == 0
    assert world.serving.unacknowledged == 0
    assert world.emptied == 1


def test_a_consumed_event_with_two_copies_loses_both(world: World) -> None:
    world.held.add("a", Origin("mail", 1, 1), HeldRef(77, "mail", "note", 0.0))
    world.deliver(1)
    assert world.acks.confirm() == ["ack 1"]  # it was moved before: only its source was left to acknowledge
    world.mailbox.release_consumed([Origin("mail", 1, 1)])
    assert world.acks.confirm() == ["delete 77"]
    assert len(world.held) == 0


def test_while_a_move_is_unsettled_no_mail_is_looked_at(world: World) -> None:
    first = world.deliver(1)
    world.deliver(2)
    world.deliver(3, kind="cancel")
    first.phase = Phase.MOVING
    assert [event.kind for event in world.mailbox.events()] == ["cancel"]
    assert not world.mailbox.release_consumed([first.origin])
    assert world.acks.pending == []
    world.mailbox.moved(first, HeldRef(9, "mail", "note", 0.0))
    assert world.acks.confirm() == ["ack 1"]
    assert {event.origin.seq for event in world.mailbox.events()} == {2, 3}


def test_mail_moves_after_ten_seconds_or_when_there_is_much_of_it(world: World) -> None:
    waiting = [world.deliver(2), world.deliver(1)]
    assert world.mailbox.overdue(waiting, world.now, at_once=False) == []
    late = world.mailbox.overdue(waiting, world.now + MOVE_AFTER_SECONDS, at_once=False)
    assert [item.origin.seq for item in late] == [1, 2]  # in order of origin
    assert len(world.mailbox.overdue(waiting, world.now, at_once=True)) == 2
    waiting += [world.deliver(seq) for seq in range(3, MOVE_OVER + 2)]
    assert len(world.mailbox.overdue(waiting, world.now, at_once=False)) == MOVE_OVER + 1


def test_mail_that_held_has_no_room_for_is_marked_and_a_timer_is_not(world: World) -> None:
    mail, timer = world.deliver(1), world.deliver(2, kind="timer")
    mail.phase = timer.phase = Phase.MOVING
    world.mailbox.full(mail)
    world.mailbox.full(timer)
    assert mail.homeless
    assert not timer.homeless
    assert [event.origin.seq for event in world.mailbox.events()] == [1]
    world.now += 60
    assert len(world.mailbox.events()) == 2


def test_after_a_new_attach_a_late_confirmation_means_nothing(world: World) -> None:
    item = world.deliver(1)
    world.mailbox.settle(item)
    world.mailbox.clear()
    renewed = world.deliver(1)
    world.acks.confirm()
    assert world.mailbox.get(renewed.origin) is renewed
    assert renewed.delivery is not None
    assert renewed.event == item.event


def test_a_mailbox_that_is_cleared_tells_nobody_that_it_is_empty(world: World) -> None:
    """Its host would be retired, and then woken for the new attach: two loops of one actor."""
    world.deliver(1)
    world.mailbox.clear()
    assert not len(world.mailbox)
    assert world.serving.unacknowledged == 0
    assert world.emptied == 0


def test_after_a_load_all_that_has_a_held_copy_is_read_again(world: World) -> None:
    """Also what is being acknowledged: a lane node may have consumed the held copy, and forgotten it."""
    moved, _ = world.deliver(1), world.deliver(2)
    world.mailbox.moved(moved, HeldRef(7, "mail", "note", 0.0))
    world.mailbox.reread()
    assert [event.origin.seq for event in world.mailbox.events()] == [2]
    assert world.serving.unacknowledged == 1
    assert world.mailbox.has(moved.origin)


def test_parking_forgets_payloads_that_are_held_and_nothing_else(world: World) -> None:
    held, loose = world.deliver(1), world.deliver(2)
    world.mailbox.moved(held, HeldRef(5, "mail", "note", 0.0))
    held.delivery = None
    world.mailbox.park()
    assert [item.origin.seq for item in world.mailbox] == [2]
    assert loose.delivery is not None
