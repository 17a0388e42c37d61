"""When a task that a worker gives back comes again."""

from __future__ import annotations

from sojourn.cluster.task_run import BACK_GROWTH, BACK_SECONDS, back_delay


def test_a_task_comes_again_later_each_time_and_within_the_bound() -> None:
    first, most = BACK_SECONDS
    for deliveries in range(1, 100):
        whole = min(most, first * BACK_GROWTH ** (deliveries - 1))
        for worker in ("w-1", "w-2"):
            assert whole / 4 <= back_delay(worker, 7, deliveries) <= whole


def test_tasks_that_were_given_back_together_do_not_come_again_together() -> None:
    """Free places are served in the order in which they asked: in step, two tasks would meet the two wrong workers for ever."""
    for deliveries in range(1, 10):
        delays = [back_delay(worker, seq, deliveries) for worker in ("w-1", "w-2") for seq in range(1, 6)]
        assert len(set(delays)) == len(delays)


def test_a_task_that_one_worker_in_ten_can_run_is_not_kept_waiting_and_one_that_none_can_run_costs_little() -> (
    None
):
    """A ramp of a tenth: whoever asks next for a task is one of the new version with a chance of 0.1, so ten meetings are the mean."""

    def seconds(deliveries: int) -> float:
        return sum(back_delay("w-1", 7, n) for n in range(1, deliveries + 1))

    assert seconds(10) < 2
    assert seconds(30) < 120
    assert seconds(4_000) > 0.6 * 86_400, "half a minute between two of them, most of the day"
