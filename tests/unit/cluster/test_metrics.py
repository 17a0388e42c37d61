"""Metrics: declared, bounded, readable; never an id in a label."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sojourn.cluster.metrics import MAX_SERIES, METRICS, Metrics, UndeclaredMetric

CLUSTER = Path(__file__).parents[3] / "cluster"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics({"node": "a"})


def test_a_counter_is_shown_with_its_help_type_and_labels(metrics: Metrics) -> None:
    metrics.count("resumes", workflow="onboard")
    metrics.count("resumes", 2, workflow="onboard")
    assert metrics.text().splitlines()[:3] == [
        "# HELP sojourn_resumes_total Actors whose user code ran once more",
        "# TYPE sojourn_resumes_total counter",
        'sojourn_resumes_total{node="a",workflow="onboard"} 3',
    ]


def test_a_histogram_counts_what_is_at_most_each_bound(metrics: Metrics) -> None:
    for value in (0.001, 0.002, 100.0):
        metrics.observe("commit_seconds", value)
    lines = metrics.text().splitlines()
    assert 'sojourn_commit_seconds_bucket{node="a",le="0.001"} 1' in lines
    assert 'sojourn_commit_seconds_bucket{node="a",le="0.0025"} 2' in lines
    assert 'sojourn_commit_seconds_bucket{node="a",le="+Inf"} 3' in lines
    assert 'sojourn_commit_seconds_sum{node="a"} 100.003' in lines
    assert metrics.value("commit_seconds") == 3


def test_a_gauge_shows_its_last_value(metrics: Metrics) -> None:
    metrics.gauge("partitions", 11)
    metrics.gauge("partitions", 10)
    assert 'sojourn_partitions{node="a"} 10' in metrics.text()


def test_an_undeclared_name_kind_or_label_is_an_error(metrics: Metrics) -> None:
    for wrong in (
        lambda: metrics.count("no_such_thing"),
        lambda: metrics.count("partitions"),
        lambda: metrics.count("resumes"),
        lambda: metrics.count("resumes", actor="order-42"),
    ):
        with pytest.raises(UndeclaredMetric, match=r"cluster\.metrics\.METRICS"):
            wrong()


def test_no_metric_has_an_id_among_its_labels() -> None:
    allowed = {
        "workflow",
        "kind",
        "reason",
        "why",
        "state",
        "status",
        "connection",
        "lane",
        "stream",
        "queue",
        "outcome",
    }
    assert {label for declared in METRICS.values() for label in declared.labels} <= allowed


def test_a_label_that_takes_too_many_values_ends_in_other(metrics: Metrics) -> None:
    for number in range(MAX_SERIES + 50):
        metrics.count("dead_letters", reason=f"reason {number}")
    assert metrics.value("dead_letters", reason="other") == 50


def test_label_values_from_outside_are_escaped_and_cut(metrics: Metrics) -> None:
    metrics.count("dead_letters", reason='a"b\\c\nd' + "x" * 500)
    (line,) = [line for line in metrics.text().splitlines() if line.startswith("sojourn_dead_letters_total")]
    assert r'reason="a\"b\\c\ndxxx' in line
    assert len(line) < 250


def test_what_prometheus_client_knows_follows_when_it_is_installed(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = ModuleType("prometheus_client")
    extra.generate_latest = lambda: b"users_own_metric 1\n"  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "prometheus_client", extra)
    metrics.count("evicted")
    assert metrics.text().endswith("users_own_metric 1\n")


def uses() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Every `count`, `gauge`, `observe` with a literal name in the cluster layer: (file, name, labels)."""
    for path in CLUSTER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and (
                    (isinstance(node.func, ast.Attribute) and node.func.attr in ("count", "gauge", "observe"))
                    or (isinstance(node.func, ast.Name) and node.func.id == "gauge")
                )
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                yield path.name, node.args[0].value, frozenset(word.arg or "" for word in node.keywords)


def test_every_metric_the_code_uses_is_declared_with_its_labels_and_every_declared_one_is_used() -> None:
    used = {name for _, name, _ in uses()}
    assert {(file, name) for file, name, labels in uses() if labels != set(METRICS[name].labels)} == set()
    assert used == set(METRICS)
