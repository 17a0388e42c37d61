"""Names: what is let in, what is built, and that the way back gives the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.broker.errors import InvalidName
from sojourn.broker.subjects import (
    ClusterKey,
    Ctl,
    Dead,
    Done,
    Fence,
    Frame,
    FramePart,
    Held,
    Lane,
    Mail,
    Send,
    Step,
    Subjects,
    Timer,
    Token,
    Wake,
    actor_id,
    channel_name,
    fnv_partition,
    namespace_name,
    token,
)

SUBJECTS = Subjects("ns", 32)
ACTOR = actor_id("order-42")
P = SUBJECTS.partition_of(ACTOR)
RUN, CHANNEL = Token("r1"), channel_name("approval")
names = st.from_regex(r"[A-Za-z0-9_=-]{1,128}", fullmatch=True)


@pytest.mark.parametrize(
    "bad",
    ["", "a.b", "a*", ">", "a b", "a\n", "ä", "a\x00", "x" * 129, "a/b", "\u202e", "a\r\nNats-Rollup: all"],
)
@pytest.mark.parametrize("check", [actor_id, channel_name, namespace_name, token])
def test_names_outside_the_alphabet_are_refused(check: object, bad: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check(bad)  # type: ignore[operator]  # each takes a text

    assert caught.value.value == bad
    assert "\n" not in str(caught.value)
    assert str(caught.value).isascii()


@given(names)
def test_names_of_the_alphabet_are_taken(name: str) -> None:
    assert actor_id(name) == name


@pytest.mark.parametrize(
    ("subject", "parsed"),
    [
        (f"sj.ns.in.{P}.mail.order-42.approval", Mail(P, ACTOR, CHANNEL)),
        (f"sj.ns.in.{P}.ctl.order-42.cancel", Ctl(P, ACTOR, Token("cancel"))),
        (f"sj.ns.in.{P}.done.order-42.r1-7", Done(P, ACTOR, Token("r1-7"))),
        (f"sj.ns.in.{P}.send.order-42.approval", Send(P, ACTOR, CHANNEL)),
        (SUBJECTS.wake(ACTOR, Token("timer")), Wake(P, ACTOR, Token("timer"))),
        (SUBJECTS.timer(ACTOR, RUN, 12), Timer(P, ACTOR, RUN, 12)),
        (SUBJECTS.lane(Token("v2"), ACTOR), Lane(Token("v2"), ACTOR)),
        (SUBJECTS.held(ACTOR, Token("mail"), CHANNEL), Held(P, ACTOR, Token("mail"), Token("approval"))),
        (SUBJECTS.held_fence(7), Fence(7)),
        (SUBJECTS.step(Token("gpu")), Step(Token("gpu"))),
        (SUBJECTS.dead(Token("mail"), 1795983865206562688, 9), Dead(Token("mail"), 1795983865206562688, 9)),
        (SUBJECTS.frame(ACTOR), Frame(ACTOR)),
        (SUBJECTS.frame_part(ACTOR, Token("map"), 3), FramePart(ACTOR, Token("map"), 3)),
        (SUBJECTS.cluster(Token("owner"), 7), ClusterKey("owner.7")),
    ],
)
def test_stored_subjects_parse_into_checked_types(subject: str, parsed: object) -> None:
    assert SUBJECTS.parse(subject) == parsed


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "sj",
        "sj.other.in.1.mail.a.c",
        "sj.ns.in.32.mail.a.c",
        "sj.ns.in.01.mail.a.c",
        "sj.ns.in.-1.mail.a.c",
        "sj.ns.in.1.mail.a",
        "sj.ns.in.1.mail.a.c.d",
        "sj.ns.in.1.mail.*.c",
        "sj.ns.in.1.mail.a.>",
        "sj.ns.in.1.mail.a.\x07",
        "sj.ns.in.1.mail.ä.c",
        "sj.ns.in.1.mail..c",
        "sj.ns.in.1.nope.a.c",
        "sj.ns.timer.1.a.r.x",
        "sj.ns.dead.mail.x.1",
        "$KV.sj_ns_frames.a.b",
        "$KV.sj_ns_frames.",
        "$KV.sj_ns_cluster.a..b",
        "$KV.sj_other_frames.a",
        "sj.ns.mail.a.c",
    ],
)
def test_what_is_not_well_formed_does_not_parse(subject: str) -> None:
    assert SUBJECTS.parse(subject) is None


@given(st.text(max_size=60))
def test_parsing_any_text_never_fails(text: str) -> None:
    SUBJECTS.parse(text)
    SUBJECTS.parse(f"sj.ns.in.{text}")


@given(names, names)
def test_held_subjects_come_back_as_they_went(actor: str, channel: str) -> None:
    subject = SUBJECTS.held(actor_id(actor), Token("send"), channel_name(channel))

    parsed = SUBJECTS.parse(subject)

    assert isinstance(parsed, Held)
    assert (parsed.actor, parsed.kind, parsed.name) == (actor, "send", channel)


def test_partitions_are_fnv_1a() -> None:
    """Values the server gave for partition(32,2) over these ids (2.15.1)."""
    found = {name: fnv_partition(name, 32) for name in ("order-42", "a", "full", "victim", "x" * 100)}

    assert found == {"order-42": 20, "a": 12, "full": 28, "victim": 21, "x" * 100: 21}


@pytest.mark.parametrize("partitions", [0, 257, -1])
def test_partitions_have_bounds(partitions: int) -> None:
    with pytest.raises(ValueError, match="1 to 256"):
        Subjects("ns", partitions)


@given(st.integers(0, 255), st.integers(0, 10**18))
def test_consumer_names_come_back_as_they_went(partition: int, epoch: int) -> None:
    assert Subjects.parse_consumer(Subjects.consumer(partition, epoch)) == (partition, epoch)


@pytest.mark.parametrize("name", ["", "p1", "p1-e", "p01-e1", "px-e1", "steps-gpu", "p1-e1-x", "lane_v2"])
def test_other_consumers_are_not_partitions(name: str) -> None:
    assert Subjects.parse_consumer(name) is None
