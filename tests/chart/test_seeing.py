"""Alerts and dashboard ask for metrics that nodes have, in queries that parse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
from chart_kit import CHART, render
from sojourn.cluster.metrics import METRICS

CLUSTER = CHART / "ci/bundled-cluster.yaml"
NAME = re.compile(r"\bsojourn_[a-z_]+")


def queries() -> Iterator[tuple[str, str]]:
    for file in (CLUSTER, CHART / "ci/external.yaml"):
        objects = render(file, sets=["prometheusRule.enabled=true", "dashboard.enabled=true"])
        for group in objects.one("PrometheusRule")["spec"]["groups"]:
            for rule in group["rules"]:
                yield rule["alert"], rule["expr"]
    board: Any = json.loads(objects.one("ConfigMap", "-dashboard")["data"]["sojourn.json"])
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$namespace", "apps")


def names(kind: str, name: str) -> set[str]:
    shown = f"sojourn_{name}"
    return {"counter": {f"{shown}_total"}, "gauge": {shown}}.get(kind) or {
        f"{shown}_{end}" for end in ("bucket", "sum", "count")
    }


def test_queries_parse() -> None:
    for title, query in queries():
        try:
            promql_parser.parse(query)
        except ValueError as error:
            raise AssertionError(f"{title}: {query}: {error}") from error


def test_queries_ask_for_metrics_and_labels_that_nodes_have() -> None:
    known = {shown: one for name, one in METRICS.items() for shown in names(one.kind, name)}
    around = {"namespace", "service", "pod", "node", "deployment", "le"}
    for title, query in queries():
        found = NAME.findall(query)
        assert found, title
        for name in found:
            assert name in known, f"{title} asks for {name}"
        labels = set(re.findall(r"(\w+)=", query)) | {
            label.strip() for part in re.findall(r"by \(([^)]*)\)", query) for label in part.split(",")
        }
        declared = {label for name in found for label in known[name].labels}
        assert labels <= declared | around, title


def test_the_alerts_that_an_operator_wants_are_there() -> None:
    alerts = {title for title, _ in queries() if title.startswith("Sojourn")}
    assert {
        "SojournPinWithoutNode",
        "SojournQuarantined",
        "SojournDrainStuck",
        "SojournOldestRunnable",
        "SojournStorage",
        "SojournNoNodes",
        "SojournPartitionsWithoutOwner",
        "SojournQueueWithoutWorker",
    } <= alerts


def test_every_alert_says_what_to_do() -> None:
    objects = render(CLUSTER)
    for group in objects.one("PrometheusRule")["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]
            assert "%" not in rule["expr"]


def test_a_release_that_is_down_is_noticed_beside_another_in_its_namespace() -> None:
    """By the Service of the chart's monitor, which Prometheus puts on what it scrapes there."""
    for enabled, scope in (
        ("true", 'namespace="apps",service="rel-sojourn-metrics"'),
        ("false", 'namespace="apps"'),
    ):
        sets = ["prometheusRule.enabled=true", f"serviceMonitor.enabled={enabled}"]
        objects = render(CHART / "ci/external.yaml", sets=sets)
        (alert,) = [
            rule["expr"]
            for group in objects.one("PrometheusRule")["spec"]["groups"]
            for rule in group["rules"]
            if rule["alert"] == "SojournNoNodes"
        ]
        assert alert == f"absent(sojourn_partitions{{{scope}}})"


def test_keda_and_the_autoscaler_ask_for_a_metric_that_nodes_have() -> None:
    assert METRICS["active_actors"].kind == "gauge"
    hpa = render(CHART / "ci/two-versions.yaml").of("HorizontalPodAutoscaler")[0]
    asked = [one["pods"]["metric"]["name"] for one in hpa["spec"]["metrics"] if one["type"] == "Pods"]
    assert asked == ["sojourn_active_actors"]
