"""What goes to workers and comes back: one task, one result, and what is none."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from sojourn.actors.events import StepDone
from sojourn.actors.outcomes import of_exception, of_value
from sojourn.actors.task import (
    AFTER_ALL,
    Task,
    again_publish,
    parse_result,
    parse_task,
    result_publish,
    task_publish,
)
from sojourn.broker.subjects import Subjects
from sojourn.cluster.task_run import Wanted, wanted
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Index, PendingCall, QueuedCall, Status

SUBJECTS = Subjects("ns", 4)
KEYRING = Keyring.ephemeral(lambda count: b"k" * count)
INDEX = Index("order-1", "r1", "order", Status.SUSPENDED, 7, 0.0, 0.0, deployment="v1")
CALL = PendingCall(
    op=3,
    step="charge",
    args=msgspec.Raw(b'[["ada"],{}]'),
    attempt=2,
    timeout=10.5,
    queue="gpu",
    token="a" * 32,
    queue_timeout=100.0,
)


def published(call: PendingCall = CALL) -> Any:
    return task_publish(call, INDEX, subjects=SUBJECTS, keyring=KEYRING)


def task(call: PendingCall = CALL) -> Task:
    made = parse_task(published(call).payload)
    assert made is not None
    return made


def parsed(payload: bytes, *, actor: str = "order-1", op: str = "3") -> Any:
    return parse_result(payload, actor=actor, op=op, keyring=KEYRING)


def test_a_task_says_all_that_a_worker_needs() -> None:
    message, made = published(), task()

    assert message.subject == "sj.ns.step.gpu"
    assert (made.key, made.attempt, made.step, made.timeout) == ("order-1/r1/3", 2, "charge", 10.5)
    assert bytes(made.call().args) == b'[["ada"],{}]'
    assert message.ttl == 100 + 11 + AFTER_ALL


def test_the_same_attempt_is_one_message_and_another_is_another() -> None:
    later = msgspec.structs.replace(CALL, attempt=3)

    assert published().msg_id == published().msg_id
    assert published(later).msg_id != published().msg_id
    assert task(later).mark != task().mark


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[1", b'{"v":1}', b"\xff", orjson.dumps({"v": 1, "actor": 3})]
)
def test_what_is_no_task_is_none(payload: bytes) -> None:
    assert parse_task(payload) is None


@pytest.mark.parametrize("change", [{"v": 2}, {"actor": "a.b"}, {"actor": "*"}])
def test_a_task_of_a_later_version_or_of_no_actor_is_none(change: dict[str, Any]) -> None:
    assert parse_task(orjson.dumps(orjson.loads(published().payload) | change)) is None


def test_a_result_comes_back_as_it_went() -> None:
    done = StepDone(3, 2, of_value(b'"paid"'), seconds=1.23456, retry_after=None)
    message = result_publish(task(), done, subjects=SUBJECTS, worker="w1")
    found = parsed(message.payload)

    assert message.subject == "sj.ns.done.order-1.3"
    assert found["outcome"] == done.outcome
    assert (found["run"], found["op"], found["attempt"], found["token"]) == ("r1", 3, 2, "a" * 32)
    assert (found["retryable"], found["retry_after"], found["worker"]) == (True, None, "w1")


def test_a_failure_comes_back_with_its_class_and_whether_to_try_again() -> None:
    done = StepDone(3, 2, of_exception(ValueError("no")), retryable=False, retry_after=4.0)
    found = parsed(result_publish(task(), done, subjects=SUBJECTS, worker="w1").payload)

    assert found["outcome"].error.type == "builtins:ValueError"
    assert (found["retryable"], found["retry_after"]) == (False, 4.0)


def test_the_word_that_it_begins_again_has_no_outcome() -> None:
    found = parsed(again_publish(task(), subjects=SUBJECTS, worker="w1").payload)

    assert found == {"run": "r1", "op": 3, "attempt": 2, "token": "a" * 32, "again": True}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"mark": "0" * 32}, "mark"),
        ({"token": "b" * 32}, "mark"),
        ({"attempt": 1}, "mark"),
        ({"run": "r2"}, "mark"),
        ({"op": 4}, "mark"),
        ({"op": "3"}, "shape"),
        ({"retry_after": "soon"}, "shape"),
        ({"outcome": {"kind": "terminated"}}, "outcome"),
        ({"outcome": None}, "outcome"),
        ({"outcome": [[[]]]}, "outcome"),
    ],
)
def test_a_result_that_was_changed_is_none(change: dict[str, Any], wrong: str) -> None:
    done = StepDone(3, 2, of_value(b'"paid"'))
    payload = result_publish(task(), done, subjects=SUBJECTS, worker="w1").payload

    assert parsed(orjson.dumps(orjson.loads(payload) | change)) == wrong


def test_a_result_holds_for_the_actor_and_operation_of_its_subject_alone() -> None:
    payload = result_publish(task(), StepDone(3, 2, of_value(b"1")), subjects=SUBJECTS, worker="w1").payload

    assert parsed(payload, actor="order-2") == "mark"
    assert parsed(payload, op="4") == "mark"


@pytest.mark.parametrize(
    ("run", "queued", "verdict"),
    [
        ("r1", (QueuedCall(3, 2, "gpu", "charge", 0.0),), Wanted.YES),
        ("r1", (QueuedCall(1, 1, "gpu", "x", 0.0), QueuedCall(3, 3, "gpu", "charge", 0.0)), Wanted.OVERTAKEN),
        ("r1", (QueuedCall(4, 2, "gpu", "charge", 0.0),), Wanted.NO),
        ("r1", (), Wanted.NO),
        ("r2", (QueuedCall(3, 2, "gpu", "charge", 0.0),), Wanted.NO),
    ],
)
def test_a_task_is_wanted_by_the_run_that_waits_for_this_attempt(
    run: str, queued: tuple[QueuedCall, ...], verdict: Wanted
) -> None:
    assert wanted(task(), run, queued) is verdict
