"""What the chart refuses, with which words; and that whatever its schema allows renders."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
import yaml
from chart_kit import CHART, refused, render_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXTERNAL, CLUSTER, TWO, WORKERS = (
    CHART / f"ci/{name}.yaml" for name in ("external", "bundled-cluster", "two-versions", "workers")
)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize(
    ("file", "sets", "words"),
    [
        (EXTERNAL, "node.replica=2", "'replica' not allowed"),
        (EXTERNAL, "nodes.replicas=2", "'nodes' not allowed"),
        (EXTERNAL, "autoscaling.kind=vpa", "must be one of"),
        (EXTERNAL, "autoscaling.minReplicas=0", "got 0, want 1"),
        (EXTERNAL, "node.replicas=two", "got string, want integer"),
        (EXTERNAL, "image.tag=latest", "a tag names one version of your code for ever"),
        (EXTERNAL, "nats.external.url=", "nats.external.url is needed"),
        (EXTERNAL, "nats.external.existingSecret=", "nats.external.existingSecret is needed"),
        (EXTERNAL, "nats.external.url=nats://me:secret@host", "does not match pattern"),
        (EXTERNAL, "autoscaling.kind=hpa,autoscaling.minReplicas=9", "minReplicas (9) is above autoscaling.maxReplicas (8)"),
        (EXTERNAL, "autoscaling.kind=hpa,autoscaling.maxReplicas=33", "above topology.partitions (32)"),
        (EXTERNAL, "autoscaling.kind=keda,autoscaling.activeActors=5", "needs autoscaling.prometheusAddress"),
        (EXTERNAL, "topology.partitions=257", "want 256"),
        (EXTERNAL, "topology.replicas=2", "must be one of"),
        (CLUSTER, "topology.replicas=5", "the bundled NATS has 3 server(s)"),
        (EXTERNAL, "node.extraVolumes[0].name=keys", 'extraVolumes: "keys" needs another name'),
        (EXTERNAL, "node.extraVolumeMounts[0].mountPath=/tmp/", "what is mounted at /tmp/ needs another place"),
        (EXTERNAL, "nats.external.nodeRole=a: b", "does not match pattern"),
        (CLUSTER, "nats.maxPayload=65MB", "does not match pattern"),
        (TWO, "versions[1].label=v1", 'the label "v1" stands there twice'),
        (TWO, "versions[1].state=draining,versions[2].state=draining", 'none has state "current"'),
        (TWO, "versions[1].weight=0,versions[2].weight=0", "weights of the current versions are all 0"),
        (TWO, "versions[1].replicas=0", 'version "v2" is current and has no replicas'),
        (TWO, "versions[0].state=old", "must be one of"),
        (EXTERNAL, "node.env[0].name=SOJOURN_SERVER", "node.env: SOJOURN_SERVER needs no entry"),
        (EXTERNAL, "node.env[0].value=x", "missing property 'name'"),
        (EXTERNAL, "commonLabels.app\\.kubernetes\\.io/name=shop", "commonLabels: app.kubernetes.io/name selects pods here"),
        (EXTERNAL, "node.podLabels.sojourn/deployment=v1", "node.podLabels: sojourn/deployment selects pods here"),
        (EXTERNAL, "autoscaling.kind=hpa,node.resources.requests.cpu=null,node.resources.limits.cpu=null", "needs a CPU request"),
        (WORKERS, "workers[0].queu=a", "'queu' not allowed"),
        (WORKERS, "workers[0].queue=a b", "does not match pattern"),
        (WORKERS, "workers[0].queue=ocr", 'queue "ocr" stands there twice for version "v1"'),
        (WORKERS, "workers[0].version=v7", 'names version "v7", which is not current nor draining here; there are: v1, v2'),
        (WORKERS, "workers[0].replicas=0", 'queue "mail" of current version "v2" has no replicas'),
        (WORKERS, "workers[1].scaling.minReplicas=9", "scaling.minReplicas (9) is above scaling.maxReplicas (4)"),
        (WORKERS, "workers[1].scaling.minReplicas=0", "minReplicas 0 needs scaling.kind keda and scaling.depth"),
        (WORKERS, "autoscaling.prometheusAddress=", "scaling.depth with keda needs autoscaling.prometheusAddress"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_a_reason(file: Any, sets: str, words: str) -> None:
    if sets.startswith("versions["):
        listed = yaml.safe_load(file.read_text())
        for number, name, value in re.findall(r"versions\[(\d)\]\.(\w+)=([^,]+)", sets):
            listed["versions"][int(number)][name] = int(value) if value.isdigit() else value
        assert words in refused(values=listed)
    else:
        assert words in refused(file, sets=sets.split(","))


def test_the_defaults_ask_for_the_one_thing_that_has_no_default() -> None:
    assert "nats.external.url is needed" in refused()


@pytest.mark.parametrize("release", ["2shop", "my.shop"])
def test_a_release_whose_name_no_service_can_have_is_told_what_to_do(release: str) -> None:
    done = render_text(CLUSTER, release=release, check=False)
    assert "cannot be that of a Service" in done.stderr
    assert "fullnameOverride is needed" in done.stderr
    assert render_text(CLUSTER, sets=["fullnameOverride=shop"], release=release).stdout
    assert render_text(EXTERNAL, release=release).stdout, "without Services any name does"


def test_an_autoscaler_by_cpu_needs_a_cpu_request() -> None:
    workers = [{"queue": "gpu", "resources": {"limits": {"nvidia.com/gpu": 1}}, "scaling": {"kind": "hpa"}}]
    words = 'queue "gpu": scaling.kind "hpa" needs resources.requests.cpu'
    assert words in refused(EXTERNAL, values={"workers": workers})


def test_every_value_is_in_the_schema_and_has_a_comment() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(path: str, given: Any, schema: Any) -> None:
        if schema.get("additionalProperties") is not False:
            return
        of_parents = {"global", "enabled"} if path == "values" else set()
        assert set(given) == set(schema["properties"]) - of_parents, path
        for name, one in given.items():
            compare(f"{path}.{name}", one, schema["properties"][name])

    compare("values", values, SCHEMA)
    lines = (CHART / "values.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"^[a-z]\w*:", line):
            assert lines[number - 1].startswith("#") or not lines[number - 1].strip() or number == 0, line


slow = settings(
    max_examples=100 if os.environ.get("CHART_SCAN") else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
PART = re.compile(r"[a-z]{1,8}", re.ASCII)


def allowed(schema: Any) -> st.SearchStrategy[Any]:
    """Values that the schema allows, as far as this schema goes. What it leaves to Kubernetes is empty."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*(allowed(one) for one in schema["anyOf"]))
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 1_000_000))
        case "number":
            return st.floats(0.001, 100, allow_nan=False)
        case "string" if "pattern" in schema:
            pattern = schema["pattern"].removeprefix("^").removesuffix("$")
            return st.from_regex(re.compile(f"(?:{pattern})", re.ASCII), fullmatch=True).filter(
                str.isprintable
            )
        case "string":
            return st.from_regex(PART, fullmatch=True)
        case "array":
            if schema["items"] == {"type": "object"}:
                return st.just([])
            return st.lists(allowed(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
    if "properties" in schema:
        needed = set(schema.get("required", ()))
        parts = {name: allowed(one) for name, one in schema["properties"].items()}
        return st.fixed_dictionaries(
            {name: one for name, one in parts.items() if name in needed},
            optional={name: one for name, one in parts.items() if name not in needed},
        )
    if "additionalProperties" in schema:
        return st.dictionaries(
            st.from_regex(PART, fullmatch=True), st.from_regex(PART, fullmatch=True), max_size=2
        )
    return st.just({})


def part(*names: str) -> st.SearchStrategy[Any]:
    """Values for some parts of the chart."""
    return st.fixed_dictionaries({}, optional={name: allowed(SCHEMA["properties"][name]) for name in names})


@slow
@given(
    part(
        "node",
        "workers",
        "autoscaling",
        "promote",
        "janitor",
        "podDisruptionBudget",
        "serviceMonitor",
        "prometheusRule",
    )
)
def test_what_the_schema_allows_for_nodes_renders_or_is_refused_in_words(values: Any) -> None:
    _renders_or_explains(values)


@slow
@given(part("image", "versions", "topology", "keys", "nats", "networkPolicy", "dashboard", "app"))
def test_what_the_schema_allows_for_versions_and_the_broker_renders_or_is_refused_in_words(
    values: Any,
) -> None:
    _renders_or_explains(values)


def _renders_or_explains(values: Any) -> None:
    done = render_text(EXTERNAL, values=values, check=False)
    if done.returncode:
        reason = done.stderr.partition(">: ")[2] or done.stderr
        assert "execution error at" in done.stderr, done.stderr  # `fail` and `required`: words of the chart
        assert re.search(
            r"is needed|is above|needs|stands there twice|current|names one version|server\(s\)", reason
        ), reason
    else:
        list(yaml.load_all(done.stdout, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
