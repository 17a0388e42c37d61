"""What a node counts and measures, as Prometheus text (exposition format 0.0.4).

Every metric and its labels are declared here; an undeclared name or label is an error at the first use, so
that no id ever becomes a label. Written by the engine's loop, read by the guard's: a reader may see a
histogram's sum one observation ahead of its count, which no dashboard notices.

Our own hundred lines instead of `prometheus_client`: a node must be observable without the extra. With the
extra installed, what the user's code registered there, and its process metrics, follow after ours on the same
page.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES: Final = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)
MAX_SERIES: Final = 1000
"""Label combinations per metric; more are counted under the label values "other"."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: what it is called, what it means, what it may be divided by."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = SECONDS


METRICS: Final[Mapping[str, Declared]] = {
    # actors
    "resumes": Declared("counter", "Actors whose user code ran once more", ("workflow",)),
    "commits": Declared("counter", "Records stored", ("workflow",)),
    "commit_conflicts": Declared("counter", "Commits that turned out to be another's"),
    "commit_seconds": Declared("histogram", "From sending a commit to its acknowledgement"),
    "frame_bytes": Declared("histogram", "Size of stored frames", (), BYTES),
    "wake_to_resume_seconds": Declared(
        "histogram", "From the storing of an event to its consumption", ("kind",)
    ),
    "ended": Declared("counter", "Actors that ended", ("workflow", "status")),
    "quarantined": Declared("counter", "Actors quarantined", ("workflow",)),
    "pin_refused": Declared(
        "counter", "Frames not resumed here because this code lacks their pin", ("workflow",)
    ),
    "timers_armed_again": Declared("counter", "Timers that were overdue: the broker had not fired them"),
    "evicted": Declared("counter", "Hot actors parked to keep the cache in its bounds"),
    # lanes
    "lanes_begun": Declared("counter", "Actors put on a lane, for lack of their code here", ("lane",)),
    "lanes_ended": Declared("counter", "Actors taken off a lane whose deployment has no nodes", ("lane",)),
    "lane_returns": Declared("counter", "Actors that this node gave back from a lane", ("lane",)),
    "lane_nudges": Declared("counter", "Nudges sent to a lane's nodes", ("lane",)),
    "lanes_served": Declared("gauge", "Lanes owned by this node"),
    "actors_on_lanes": Declared("gauge", "Actors of this node's partitions with held events, on a lane"),
    "pins_without_node": Declared("gauge", "Actors held because no living node has their code"),
    "actors_quarantined": Declared(
        "gauge", "Actors of this node's partitions that are in quarantine now", ("workflow",)
    ),
    # events
    "events": Declared("counter", "Events delivered to this node", ("kind",)),
    "events_without_effect": Declared("counter", "Events acknowledged without effect", ("kind",)),
    "flush_refused": Declared("counter", "Outbox entries the broker refused for now", ("kind",)),
    "sends_given_up": Declared("counter", "Mails for which there was no room within their sender's time"),
    "senders_not_told": Declared("counter", "Notices of dead mail for which their sender had no room"),
    "dead_letters": Declared("counter", "Events written to the dead letters", ("reason",)),
    "dead_letters_dropped": Declared(
        "counter",
        "Mails from outside that could not be kept among the dead letters, which are full",
        ("reason",),
    ),
    "moved": Declared("counter", "Events moved to HELD"),
    # the node
    "attaches": Declared("counter", "Partitions attached", ("why",)),
    "attach_seconds": Declared("histogram", "Duration of an attach", ("why",)),
    "attach_failures": Declared("counter", "Attaches that broke off"),
    "partitions_lost": Declared("counter", "Partitions dropped because they are another's"),
    "leases_lost": Declared("counter", "Times this node's lease ended while it ran"),
    "leases_ended": Declared("counter", "Leases of dead peers that this node ended"),
    "reconnects": Declared("counter", "Connections that came back", ("connection",)),
    "partitions": Declared("gauge", "Partitions served by this node"),
    "partitions_unowned": Declared("gauge", "Partitions of the namespace that no living node holds"),
    "members": Declared("gauge", "Living nodes", ("state",)),
    "hot_actors": Declared("gauge", "Actors with live coroutines in memory"),
    "active_actors": Declared("gauge", "Actors with something in memory to do (to scale by)"),
    "waiting_events": Declared("gauge", "Events in memory, not consumed and not moved"),
    "held_events": Declared("gauge", "Events in HELD"),
    "unacknowledged": Declared(
        "gauge", "Unacknowledged deliveries (window: 10,000 per partition and stream)"
    ),
    "running_steps": Declared("gauge", "Local steps running"),
    "step_queue_depth": Declared(
        "gauge", "Tasks of a queue of steps, waiting and unacknowledged", ("queue",)
    ),
    "step_queue_running": Declared("gauge", "Tasks that this worker runs", ("queue",)),
    "step_queue_finished": Declared("counter", "Tasks that this worker is done with", ("queue", "outcome")),
    "oldest_runnable_seconds": Declared("gauge", "Age of the oldest event that could run and has not"),
    "stream_bytes": Declared("gauge", "Bytes of a stream of this namespace, one copy", ("stream",)),
    "storage_bytes": Declared("gauge", "What the broker's account stores, all copies"),
    "storage_limit_bytes": Declared("gauge", "What it may store; absent without a limit"),
    "loop_lag_seconds": Declared("gauge", "How late the engine's loop ran last"),
    "clock_offset_seconds": Declared("gauge", "Broker's clock minus this machine's"),
    "gate_open": Declared("gauge", "1 while this node may act"),
    "stalled_seconds": Declared("gauge", "For how long the engine's loop has been stuck; 0 while it runs"),
}
"""All metrics, named without their prefix `sojourn_`. Counters are shown with `_total`."""


class UndeclaredMetric(LookupError):
    """A name, kind or label that `METRICS` does not declare: a bug of the caller."""


@dataclass
class _Histogram:
    counts: list[int]
    total: float = 0.0


@dataclass
class _Family:
    declared: Declared
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    histograms: dict[tuple[str, ...], _Histogram] = field(default_factory=dict)


class Metrics:
    """The values of one node. Written on the engine's loop; `text` may be called from another thread."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        """`constant`: labels that every series carries (`node`, `deployment`)."""
        self._constant = dict(constant)
        self._families = {name: _Family(declared) for name, declared in METRICS.items()}

    def __repr__(self) -> str:
        """How much there is."""
        return f"<Metrics {sum(len(f.values) + len(f.histograms) for f in self._families.values())} series>"

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        family, key = self._families.get(name), tuple(labels.values())
        # Labels of a known series, in the order in which they are declared: the usual case by far.
        if family is None or key not in family.values or tuple(labels) != family.declared.labels:
            key = self._key(name, "counter", labels)
            family = self._families[name]
        family.values[key] = family.values.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._families[name].values[self._key(name, "gauge", labels)] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one value (seconds or bytes) to a histogram."""
        family, key = self._families.get(name), tuple(labels.values())
        if family is None or key not in family.histograms or tuple(labels) != family.declared.labels:
            key = self._key(name, "histogram", labels)
            family = self._families[name]
        buckets = family.declared.buckets
        found = family.histograms.get(key)
        if found is None:
            found = family.histograms[key] = _Histogram([0] * (len(buckets) + 1))
        found.counts[bisect_left(buckets, value)] += 1
        found.total += value

    def value(self, name: str, **labels: str) -> float:
        """A counter's or gauge's value, 0.0 when there is none yet; of a histogram, how many observations."""
        key = tuple(labels[label] for label in METRICS[name].labels)
        found = self._families[name].histograms.get(key)
        return float(sum(found.counts)) if found else self._families[name].values.get(key, 0.0)

    def text(self) -> str:
        """Everything, in Prometheus' text format, with what `prometheus_client` knows when that is
        installed.
        """
        lines = [line for name in METRICS for line in self._family_text(name)]
        return "\n".join(lines) + "\n" + _of_prometheus_client()

    def _key(self, name: str, kind: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        declared = METRICS.get(name)
        if declared is None or declared.kind != kind or set(declared.labels) != set(labels):
            raise UndeclaredMetric(
                f"no {kind} {name!r} with labels {sorted(labels)} in cluster.metrics.METRICS"
            )
        key = tuple(labels[label] for label in declared.labels)
        family = self._families[name]
        known = family.histograms if kind == "histogram" else family.values
        if key in known or len(known) < MAX_SERIES:
            return key
        return ("other",) * len(key)

    def _family_text(self, name: str) -> Iterator[str]:
        declared, family = METRICS[name], self._families[name]
        if not family.values and not family.histograms:
            return
        shown = f"sojourn_{name}" + ("_total" if declared.kind == "counter" else "")
        yield f"# HELP {shown} {declared.help}"
        yield f"# TYPE {shown} {declared.kind}"
        for key, value in list(family.values.items()):
            yield f"{shown}{self._labels(declared.labels, key)} {value:g}"
        for key, histogram in list(family.histograms.items()):
            yield from self._histogram_text(shown, declared, key, histogram)

    def _histogram_text(
        self, shown: str, declared: Declared, key: tuple[str, ...], histogram: _Histogram
    ) -> Iterator[str]:
        below = 0
        for bound, count in zip((*declared.buckets, float("inf")), list(histogram.counts), strict=True):
            below += count
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f"{shown}_bucket{self._labels((*declared.labels, 'le'), (*key, le))} {below}"
        yield f"{shown}_sum{self._labels(declared.labels, key)} {histogram.total:g}"
        yield f"{shown}_count{self._labels(declared.labels, key)} {below}"

    def _labels(self, names: Iterable[str], values: Iterable[str]) -> str:
        pairs = {**self._constant, **dict(zip(names, values, strict=True))}
        return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(value: str) -> str:
    return value[:128].replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _of_prometheus_client() -> str:
    try:
        client = importlib.import_module("prometheus_client")
    except ImportError:
        return ""
    page: bytes = client.generate_latest()
    return page.decode()
