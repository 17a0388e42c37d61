"""When a task that a worker gives back comes again."""

from __future__ import annotations

from sojourn.cluster.task_run import BACK_SECONDS, back_delay


def test_a_task_comes_again_later_each_time_and_within_the_bound() -> None:
    first, most = BACK_SECONDS
    for deliveries in range(1, 20):
        whole = min(most, first * 2 ** (deliveries - 1))
        for worker in ("w-1", "w-2"):
            assert whole / 4 <= back_delay(worker, 7, deliveries) <= whole


def test_tasks_that_were_given_back_together_do_not_come_again_together() -> None:
    """Free places are served in the order in which they asked: in step, two tasks would meet the two wrong workers for ever."""
    for deliveries in range(1, 10):
        delays = [back_delay(worker, seq, deliveries) for worker in ("w-1", "w-2") for seq in range(1, 6)]
        assert len(set(delays)) == len(delays)
