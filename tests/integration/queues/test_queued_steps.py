"""Queued steps from the call to the result: a real server, real nodes and workers."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sojourn.actors.errors import Rejected, WorkflowCancelled, WorkflowFailed
from sojourn.actors.events import StepDone
from sojourn.actors.outcomes import of_value
from sojourn.actors.registry import Registry
from sojourn.actors.task import result_publish
from sojourn.broker.absence import PATIENCE_SECONDS
from sojourn.broker.frames import FrameStore, StoredRecord
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import ActorId, actor_id, token
from sojourn.codecs.record import Status

from tests.kits.queues_kit import Shop

from . import queue_app as app

pytestmark = pytest.mark.integration
SECONDS = 20


async def happens(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, SECONDS)


async def test_a_worker_runs_it_and_the_result_has_its_type(shop: Shop) -> None:
    await shop.node()
    await shop.worker()

    handle = await shop.client.start(app.thumbnail(app.Picture("a", {"w": 64, "h": 32})))

    assert await handle.result(SECONDS) == app.Picture("a/50 mm", {"w": 16, "h": 8})
    assert list(app.ran.values()) == [1]
    await shop.until(lambda state: state.waiting + state.unacknowledged == 0)


async def test_it_waits_in_its_queue_until_there_is_a_worker(shop: Shop) -> None:
    await shop.node()
    handle = await shop.client.start(app.thumbnail(app.Picture("a", {})), id="early")
    await shop.until(lambda state: state.waiting == 1)

    description = await handle.describe()
    assert description.sentence.startswith(
        "early (thumbnail) waits for queued step resize, attempt 1 of 3, queue gpu, since "
    )
    assert description.sentence.endswith(": no worker takes from the queue, 1 task waiting.")
    await shop.worker()

    assert (await handle.result(SECONDS)).name == "a/50 mm"


@pytest.mark.parametrize(
    ("kind", "said", "tried"),
    [
        ("second time", "second time, attempt 2", [1, 2]),
        ("never", "out of film: none left", [1, 2, 3]),
        ("later", "later, attempt 2", [1, 2]),
        ("large", "failed: sojourn.codecs.errors:PayloadTooLarge", [1]),
        ("wrong type", "failed: sojourn.codecs.errors:PayloadError", [1]),
    ],
)
async def test_failures_are_those_of_a_local_step(shop: Shop, kind: str, said: str, tried: list[int]) -> None:
    await shop.node()
    await shop.worker()

    handle = await shop.client.start(app.developed(kind))

    assert await handle.result(SECONDS) == said
    assert app.attempts == tried


async def test_a_rejection_keeps_its_facts(shop: Shop) -> None:
    await shop.node()
    await shop.worker()

    handle = await shop.client.start(app.developed("rejected"))

    with pytest.raises(Rejected) as caught:
        await handle.result(SECONDS)
    assert caught.value.facts == {"number": 7}


async def test_local_and_queued_steps_take_turns(shop: Shop) -> None:
    await shop.node()
    await shop.worker("cpu")

    assert await (await shop.client.start(app.both(2))).result(SECONDS) == 6


@pytest.mark.parametrize("flow", [app.waiting, app.sleeping])
async def test_a_cancelled_workflow_tells_the_worker(shop: Shop, flow: object) -> None:
    await shop.node()
    worker = await shop.worker()
    handle = await shop.client.start(flow(1))  # type: ignore[operator]  # a workflow
    await happens(app.begun)

    await handle.cancel(reason="enough")

    with pytest.raises(WorkflowCancelled):
        await handle.result(SECONDS)
    await happens(app.told)
    await shop.until(lambda state: state.unacknowledged == 0)
    assert worker.metrics.value("step_queue_finished", queue="gpu", outcome="ok") == 0


async def test_a_heartbeat_learns_of_it_long_before_the_next_regular_look(shop: Shop) -> None:
    await shop.node()
    await shop.worker(progress_seconds=1_000.0)
    handle = await shop.client.start(app.beating(1))
    await happens(app.begun)

    await handle.cancel(reason="enough")

    await happens(app.told)
    await shop.until(lambda state: state.unacknowledged == 0)


async def test_a_task_of_a_cancelled_workflow_is_acknowledged_unrun(shop: Shop) -> None:
    await shop.node()
    handle = await shop.client.start(app.waiting(1))
    await shop.until(lambda state: state.waiting == 1)
    await handle.cancel(reason="changed my mind")
    with pytest.raises(WorkflowCancelled):
        await handle.result(SECONDS)

    worker = await shop.worker()

    await shop.until(lambda state: state.waiting + state.unacknowledged == 0)
    await shop.end(worker)
    assert app.ran["wait_for_go"] == 0
    assert worker.metrics.value("step_queue_finished", queue="gpu", outcome="unrun") == 1


async def test_a_task_of_an_earlier_run_is_acknowledged_unrun(shop: Shop) -> None:
    await shop.node()
    first = await shop.client.start(app.waiting(1), id="again")
    await shop.until(lambda state: state.waiting == 1)
    second = await shop.client.start(app.waiting(10), id="again", if_exists="restart")
    await shop.until(lambda state: state.waiting == 2)
    app.go.set()

    worker = await shop.worker()

    assert await second.result(SECONDS) == 11
    assert first.run != second.run
    await shop.end(worker)
    assert app.ran["wait_for_go"] == 1
    assert worker.metrics.value("step_queue_finished", queue="gpu", outcome="unrun") == 1


async def test_an_attempt_that_is_late_counts_while_the_next_one_runs(shop: Shop) -> None:
    await shop.node()
    handle = await shop.client.start(app.hurried(5))
    delivery, late = await shop.fetch()  # a worker that says nothing for longer than the attempt may take
    assert late.attempt == 1
    await shop.until(lambda state: state.waiting == 1)  # attempt 2

    await shop.broker.publish(
        result_publish(late, StepDone(late.op, 1, of_value(b"77")), subjects=shop.subjects, worker="late")
    )

    assert await handle.result(SECONDS) == 77
    worker = await shop.worker()
    await shop.until(lambda state: state.waiting == 0 and state.unacknowledged == 1)
    await shop.end(worker)
    assert app.attempts == []
    await shop.broker.ack(delivery)


async def test_a_worker_times_an_attempt_out_itself(shop: Shop) -> None:
    await shop.node()
    await shop.worker(concurrency=2)

    handle = await shop.client.start(app.hurried(5))

    with pytest.raises(WorkflowFailed, match="step 'short' took longer than its timeout of 400ms"):
        await handle.result(SECONDS)
    await happens(app.told)
    assert app.attempts[0] == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token": "0" * 32}, "its mark is not of this operation and attempt"),
        ({"mark": "0" * 32}, "its mark is not of this operation and attempt"),
        ({"attempt": 2}, "its mark is not of this operation and attempt"),
        ({"outcome": {"kind": "no such"}}, "its outcome is none"),
        ({"outcome": 5}, "its outcome is none"),
    ],
)
async def test_a_forged_result_is_a_dead_letter_and_nothing_else(
    shop: Shop, change: dict[str, object], reason: str
) -> None:
    import orjson

    await shop.node()
    handle = await shop.client.start(app.waiting(1), id="victim")
    delivery, task = await shop.fetch()
    real = result_publish(
        task, StepDone(task.op, 1, of_value(b"66")), subjects=shop.subjects, worker="mallory"
    )

    await shop.broker.publish(Publish(real.subject, orjson.dumps(orjson.loads(real.payload) | change)))

    async with asyncio.timeout(SECONDS):
        while not (found := await shop.dead_letters()):
            continue
    assert found == [f"result of a queued step: {reason}"]
    assert (await shop.record("victim")).index.status is Status.SUSPENDED
    await shop.broker.hand_back(delivery, 0)
    app.go.set()
    await shop.worker()
    assert await handle.result(SECONDS) == 2


async def test_what_is_no_result_at_all_is_a_dead_letter(shop: Shop) -> None:
    await shop.node()

    await shop.broker.publish(Publish(shop.subjects.done(actor_id("nobody"), token("1")), b'{"a":[[[['))

    async with asyncio.timeout(SECONDS):
        while not (found := await shop.dead_letters()):
            continue
    assert found == ["result of a queued step: expected run, op, attempt, token, mark and outcome"]


async def test_a_step_that_a_worker_lacks_is_left_to_another(shop: Shop) -> None:
    await shop.node()
    older = await shop.worker(registry=Registry([app.resize]))
    handle = await shop.client.start(app.waiting(1))
    app.go.set()
    async with asyncio.timeout(SECONDS):
        while not older.metrics.value("step_queue_finished", queue="gpu", outcome="left to others"):
            await shop.state()

    await shop.worker()

    assert await handle.result(SECONDS) == 2
    assert app.ran["wait_for_go"] == 1


async def test_a_worker_that_leaves_finishes_what_it_runs(shop: Shop) -> None:
    await shop.node()
    worker = await shop.worker()
    handle = await shop.client.start(app.waiting(1))
    await happens(app.begun)

    worker.drain()
    app.go.set()
    await shop.ended(worker)

    assert await handle.result(SECONDS) == 2
    assert worker.metrics.value("step_queue_finished", queue="gpu", outcome="ok") == 1


async def test_what_a_worker_cannot_finish_in_time_another_one_runs_as_the_same_attempt(shop: Shop) -> None:
    await shop.node()
    worker = await shop.worker(grace_seconds=0.1)
    handle = await shop.client.start(app.waiting(1))
    await happens(app.begun)

    await shop.end(worker)
    app.go.set()
    await shop.worker()

    assert await handle.result(SECONDS) == 2
    assert app.attempts == [1, 1]


async def test_a_silent_workers_task_comes_to_another_one_as_the_same_attempt(shop: Shop) -> None:
    await shop.queue("gpu", ack_wait=1.0)
    await shop.node()
    handle = await shop.client.start(app.waiting(1))
    await shop.fetch()  # and is never heard of again
    app.go.set()

    await shop.worker()

    assert await handle.result(SECONDS) == 2
    assert app.attempts == [1]


async def test_a_running_task_stays_with_its_worker_longer_than_the_brokers_patience(shop: Shop) -> None:
    await shop.queue("gpu", ack_wait=1.0)
    await shop.node()
    await shop.worker()
    other = await shop.worker()
    handle = await shop.client.start(app.waiting(1))
    await happens(app.begun)
    await asyncio.wait_for(asyncio.to_thread(app.told.wait, 2.5), SECONDS)  # longer than that patience

    app.go.set()

    assert await handle.result(SECONDS) == 2
    assert app.ran["wait_for_go"] == 1
    assert other.metrics.value("step_queue_finished", queue="gpu", outcome="ok") <= 1


async def test_500_tasks_over_three_workers_are_all_done_once(shop: Shop) -> None:
    await shop.node()
    workers = [await shop.worker("cpu", concurrency=8) for _ in range(3)]

    handles = [await shop.client.start(app.many(100 * n, 100)) for n in range(5)]

    assert sum([await handle.result(60) for handle in handles]) == sum(range(500))
    assert len(app.ran) == 500
    assert set(app.ran.values()) == {1}
    done = [one.metrics.value("step_queue_finished", queue="cpu", outcome="ok") for one in workers]
    assert sum(done) == 500
    assert all(done)


async def test_pausing_holds_the_result_until_the_workflow_resumes(shop: Shop) -> None:
    await shop.node()
    worker = await shop.worker()
    handle = await shop.client.start(app.waiting(1), id="paused")
    await happens(app.begun)
    await handle.pause(reason="look")
    app.go.set()
    await shop.until(lambda state: state.unacknowledged == 0)
    assert (await shop.record("paused")).index.status is Status.SUSPENDED

    await handle.resume()

    assert await handle.result(SECONDS) == 2
    await shop.end(worker)


async def test_partitions_move_while_steps_are_queued(shop: Shop) -> None:
    first = await shop.node()
    handles = [await shop.client.start(app.many(10 * n, 3)) for n in range(8)]
    await shop.until(lambda state: state.waiting == 24, "cpu")

    await shop.node()
    await shop.end(first)
    await shop.worker("cpu", concurrency=4)

    results = [await handle.result(SECONDS) for handle in handles]
    assert results == [3 * 10 * n + 3 for n in range(8)]
    assert set(app.ran.values()) == {1}


async def test_the_depth_of_a_queue_is_measured_by_nodes(shop: Shop) -> None:
    from sojourn.cluster.metrics import Metrics
    from sojourn.cluster.steps.queues import Queues

    await shop.node()
    await shop.client.start(app.many(0, 7))
    await shop.until(lambda state: state.waiting == 7, "cpu")
    await shop.fetch("cpu")
    metrics = Metrics({})

    await Queues(shop.broker, shop.subjects, ["cpu", "gpu"], metrics).measure()

    assert 'sojourn_step_queue_depth{queue="cpu"} 7' in metrics.text()
    assert 'sojourn_step_queue_depth{queue="gpu"} 0' in metrics.text()


def behind(monkeypatch: pytest.MonkeyPatch, *stale: int) -> list[ActorId]:
    """Of the worker's reads of records, those with these numbers are answered by a leader that has not come as far as the task's commit.
    The reads so far.
    """
    reads: list[ActorId] = []

    class Behind(FrameStore):
        async def read(self, actor: ActorId) -> StoredRecord | None:
            found = await super().read(actor)
            reads.append(actor)
            return None if len(reads) in stale else found

    monkeypatch.setattr("sojourn.cluster.worker.FrameStore", Behind)
    return reads


async def test_a_leader_that_is_behind_does_not_take_a_task_from_its_workflow(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was paused (0030). Acknowledged unrun, the task would be missed only when its attempt times out, a day later."""
    behind(monkeypatch, 1)
    await shop.node()
    await shop.worker()
    handle = await shop.client.start(app.thumbnail(app.Picture("a", {})))
    assert (await handle.result(SECONDS)).name == "a/50 mm"


async def test_a_leader_that_is_behind_does_not_cancel_a_step_that_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = behind(monkeypatch, 2)
    await shop.node()
    await shop.worker()
    handle = await shop.client.start(app.waiting(1))
    await happens(app.begun)
    async with asyncio.timeout(SECONDS):
        while len(reads) < 3:  # noqa: ASYNC110 - nobody tells when it has looked
            await asyncio.sleep(0.02)
    app.go.set()
    assert await handle.result(SECONDS) == 2


async def test_a_task_whose_record_has_expired_is_acknowledged_unrun_and_at_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has come so far: nothing newer will come."""
    behind(monkeypatch, *range(1, 100))
    await shop.node()
    worker = await shop.worker()
    await shop.client.start(app.thumbnail(app.Picture("a", {})))
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        while not worker.metrics.value("step_queue_finished", queue="gpu", outcome="unrun"):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    assert not app.ran
