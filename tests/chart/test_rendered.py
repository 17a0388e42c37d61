"""What the chart renders: objects looked at by name, for every values file of `helm/ci`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from chart_kit import CHART, CI_VALUES, NAMESPACE, RELEASE, Objects, helm, render, render_text, selects

CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
EXTERNAL, CLUSTER = CHART / "ci/external.yaml", CHART / "ci/bundled-cluster.yaml"
NODE_LABELS = {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": "node"}

every_file = pytest.mark.parametrize("file", CI_VALUES, ids=lambda file: file.stem)


@every_file
def test_lint_finds_nothing(file: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--values", str(file)).stdout


def test_lint_of_the_defaults_finds_nothing() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


def test_it_is_packaged_without_its_tests_values(tmp_path: Path) -> None:
    import tarfile

    helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("sojourn-*.tgz")
    with tarfile.open(package) as tar:
        names = tar.getnames()
    assert "sojourn/values.schema.json" in names
    assert "sojourn/files/janitor.py" in names
    assert not [name for name in names if "/ci/" in name or "__pycache__" in name]


@every_file
def test_an_install_without_a_cluster_goes_through(file: Path) -> None:
    done = helm(
        "install", RELEASE, str(CHART), "--dry-run=client", "--values", str(file), "--namespace", NAMESPACE
    )
    assert "sojourn signal" in done.stdout, "the notes say how to send the first signal"


def test_the_notes_say_how_to_upgrade_and_what_an_uninstall_leaves() -> None:
    words = (
        "install",
        RELEASE,
        str(CHART),
        "--dry-run=client",
        "--values",
        str(CLUSTER),
        "--namespace",
        NAMESPACE,
    )
    notes = helm(*words).stdout.partition("NOTES:")[2]
    assert "--reset-then-reuse-values --set image.tag=NEW" in notes
    for left in ("keys", "nats-auth", "nats-tls"):
        assert f"secret/{RELEASE}-sojourn-{left}" in notes.partition("It leaves")[2]
    assert "Back up secret/rel-sojourn-keys" in notes
    assert "want three hosts" in notes


@every_file
def test_each_selector_takes_its_own_pods_and_no_others(file: Path) -> None:
    objects = render(file)
    pods = list(objects.pods())
    for owner in (one for one in objects if one["kind"] in ("Deployment", "StatefulSet")):
        taken = {pod.name for pod in pods if selects(owner["spec"]["selector"], pod.labels)}
        assert taken == {f"{owner['kind']}/{owner['metadata']['name']}"}
    for one in objects.of("PodDisruptionBudget"):
        component = one["metadata"]["labels"]["app.kubernetes.io/component"]
        taken_components = {
            pod.labels["app.kubernetes.io/component"]
            for pod in pods
            if selects(one["spec"]["selector"], pod.labels)
        }
        assert taken_components == {component}


@every_file
def test_services_and_monitors_find_ports_that_are_there(file: Path) -> None:
    objects = render(file)
    for service in objects.of("Service"):
        found = [pod for pod in objects.pods() if selects(service["spec"]["selector"], pod.labels)]
        assert found, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert all(
                any(port["targetPort"] == one["name"] for c in pod.containers for one in c.get("ports", ()))
                for pod in found
            )
    for monitor in objects.of("ServiceMonitor"):
        (service,) = [
            one
            for one in objects.of("Service")
            if selects(monitor["spec"]["selector"], one["metadata"]["labels"])
        ]
        names = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names


@every_file
def test_probes_and_ports_agree(file: Path) -> None:
    for pod in render(file).pods():
        for container in pod.containers:
            names = {port["name"] for port in container.get("ports", ())}
            probes = [
                container[one]
                for one in ("startupProbe", "livenessProbe", "readinessProbe")
                if one in container
            ]
            assert {probe["httpGet"]["port"] for probe in probes} <= names
    node = next(pod for pod in render(file).pods() if pod.labels["app.kubernetes.io/component"] == "node")
    (container,) = node.spec["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (port,) = container["ports"]
    assert f"--health-port={port['containerPort']}" in container["args"]


@every_file
def test_every_pod_is_locked_down(file: Path) -> None:
    for pod in render(file).pods():
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod.containers:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= set(container["resources"])
            assert any(mount["mountPath"] in ("/tmp", "/run/nats") for mount in container["volumeMounts"])


@every_file
def test_only_what_talks_to_the_api_server_has_a_token(file: Path) -> None:
    with_token = {
        pod.labels["app.kubernetes.io/component"]
        for pod in render(file).pods()
        if pod.spec["automountServiceAccountToken"]
    }
    with_workers = {"promote"} if render(file).workers() else set()
    assert with_token <= {"janitor", "setup", "leave", *with_workers}
    assert with_workers <= with_token
    for account in render(file).of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@every_file
def test_no_role_may_read_secrets_or_change_anything_but_what_its_job_needs(file: Path) -> None:
    for role in render(file).of("Role"):
        for rule in role["rules"]:
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"] or rule["resourceNames"]
                if "update" in rule["verbs"]:
                    assert rule["resourceNames"] == [f"{RELEASE}-sojourn-nats-auth"]
                    assert rule["verbs"] == ["update"]
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
            if "delete" in rule["verbs"]:
                assert role["metadata"]["name"].endswith(("-janitor", "-leave"))


def test_without_a_janitor_nobody_has_its_rights() -> None:
    objects = render(EXTERNAL, sets=["janitor.enabled=false"])
    assert not [one for one in objects if one["metadata"]["name"].endswith("-janitor")]


@every_file
def test_every_account_secret_and_config_map_that_is_named_exists_or_is_the_users(file: Path) -> None:
    objects = render(file)
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    # An earlier revision's pods may still need it: made with existingName too.
    assert any(kind == "ServiceAccount" and name.endswith("-node") for kind, name in made)
    by_setup = {
        f"{RELEASE}-sojourn-keys",
        f"{RELEASE}-sojourn-nats-auth",
        f"{RELEASE}-sojourn-nats-tls",
        "shop-keys",
    }
    for pod in objects.pods():
        account = pod.spec["serviceAccountName"]
        assert ("ServiceAccount", account) in made or account == "shop"
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            if "secret" in volume:
                name = volume["secret"]["secretName"]
                assert name in by_setup or name in {"shop-keys", "shop-nats", "nats-ca", "shop-certs"}
        mounted = {mount["name"] for container in pod.containers for mount in container["volumeMounts"]}
        there = {volume["name"] for volume in pod.spec["volumes"]}
        if pod.owner["kind"] == "StatefulSet":
            there |= {claim["metadata"]["name"] for claim in pod.owner["spec"]["volumeClaimTemplates"]}
        assert mounted == there, pod.name


def test_the_keys_reach_nodes_alone_as_a_file_the_node_accepts() -> None:
    for pod in render(CLUSTER).pods():
        keys = [volume for volume in pod.spec["volumes"] if volume["name"] == "keys"]
        if pod.labels["app.kubernetes.io/component"] == "node":
            (volume,) = keys
            assert volume["secret"]["defaultMode"] == 0o440
            (container,) = pod.spec["containers"]
            assert "--key-file=/etc/sojourn/keys/key" in container["args"]
        else:
            assert not keys


def test_no_secret_is_rendered() -> None:
    for file in CI_VALUES:
        assert not render(file).of("Secret")


def test_each_role_of_the_broker_is_used_by_who_needs_it() -> None:
    roles = {}
    for pod in render(CLUSTER).pods():
        for container in pod.containers:
            for one in container.get("env", ()):
                if one["name"] == "SOJOURN_ROLE":
                    roles.setdefault(pod.labels["app.kubernetes.io/component"], set()).add(one["value"])
    assert roles["node"] == roles["janitor"] == {"node"}
    assert {name for name, found in roles.items() if found == {"admin"}} == {"topology", "promote"}


# versions


def deployments(objects: Objects) -> dict[str, dict[str, Any]]:
    """Node Deployments by label."""
    return {
        one["metadata"]["labels"]["sojourn/deployment"]: one
        for one in objects.of("Deployment")
        if selects({"matchLabels": NODE_LABELS}, one["metadata"]["labels"])
    }


def test_another_tag_is_another_deployment_that_an_upgrade_leaves_beside_the_first() -> None:
    one, two = deployments(render(EXTERNAL)), deployments(render(EXTERNAL, sets=["image.tag=2.0.0"]))
    assert list(one) == ["1-4-2"]
    assert list(two) == ["2-0-0"]
    first, second = one["1-4-2"], two["2-0-0"]
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    argo = {
        name: first["metadata"]["annotations"][f"argocd.argoproj.io/{name}"]
        for name in ("sync-options", "compare-options")
    }
    assert argo == {"sync-options": "Prune=false", "compare-options": "IgnoreExtraneous"}
    assert not selects(second["spec"]["selector"], first["spec"]["template"]["metadata"]["labels"])
    assert "--deployment=2-0-0" in second["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("tag", "label"),
    [
        ("v2", "v2"),
        ("1.4.2", "1-4-2"),
        ("2026.07.01-3", "2026-07-01-3"),
        ("1.2.3_rc1", "1-2-3-rc1"),
    ],
)
def test_usual_tags_stay_readable(tag: str, label: str) -> None:
    assert list(deployments(render(EXTERNAL, sets=[f"image.tag={tag}"]))) == [label]


def test_tags_that_must_change_do_not_become_one() -> None:
    tags = ["Feature_X.42", "feature-X.42", "a" * 60, "a" * 61, "x.-", "-".join("abcdefghijklm"), "_1"]
    labels = [next(iter(deployments(render(EXTERNAL, values={"image": {"tag": tag}})))) for tag in tags]
    assert len(set(labels)) == len(tags)
    for label in labels:
        assert len(label) <= 24


def test_a_digest_names_its_version() -> None:
    assert list(deployments(render(CHART / "ci/external-creds-tls.yaml"))) == ["sha-000000000000"]


def test_listed_versions_stand_beside_each_other_each_with_what_it_says() -> None:
    objects = render(CHART / "ci/two-versions.yaml")
    found = deployments(objects)
    assert {label: one["spec"].get("replicas") for label, one in found.items()} == {
        "v1": 1,
        "v2": None,
        "v3": None,
    }
    assert {one["spec"]["scaleTargetRef"]["name"] for one in objects.of("HorizontalPodAutoscaler")} == {
        found["v2"]["metadata"]["name"],
        found["v3"]["metadata"]["name"],
    }
    (container,) = objects.one("Job", "-promote")["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["WEIGHTS"] == "v2=90,v3=10"
    (janitor,) = objects.one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in janitor["env"]}
    assert (env["WANTED"], env["LISTED"]) == ("v2,v3", "v1")


def test_a_version_that_begins_to_drain_keeps_the_size_that_its_autoscaler_gave_it() -> None:
    """Helm 4 would refuse to take it back, and Helm 3 would drain most of its nodes at once."""
    versions = [
        {"label": "v1", "image": {"tag": "v1"}, "state": "draining"},
        {"label": "v2", "image": {"tag": "v2"}},
    ]
    for kind, sized in (("", 2), ("hpa", None)):
        found = deployments(render(EXTERNAL, values={"versions": versions, "autoscaling": {"kind": kind}}))
        assert found["v1"]["spec"].get("replicas") == sized
    versions[0]["replicas"] = 3
    found = deployments(render(EXTERNAL, values={"versions": versions, "autoscaling": {"kind": "hpa"}}))
    assert found["v1"]["spec"]["replicas"] == 3


def test_a_pod_has_the_time_that_its_drain_takes() -> None:
    for seconds in (30, 300):
        (found,) = deployments(render(EXTERNAL, sets=[f"node.drainSeconds={seconds}"])).values()
        spec = found["spec"]["template"]["spec"]
        assert f"--drain={seconds}s" in spec["containers"][0]["args"]
        from sojourn.cluster.signals import LEAVE_SECONDS

        assert spec["terminationGracePeriodSeconds"] >= seconds + LEAVE_SECONDS + 5


def test_nothing_scales_to_zero() -> None:
    assert all(
        one["spec"]["minReplicas"] >= 1
        for one in render(CHART / "ci/two-versions.yaml").of("HorizontalPodAutoscaler")
    )
    scaled = render(CHART / "ci/keda.yaml").one("ScaledObject")
    assert scaled["spec"]["minReplicaCount"] >= 1
    assert {trigger["type"] for trigger in scaled["spec"]["triggers"]} == {"cpu", "prometheus"}


# the bundled NATS


def nats_annotation(objects: Objects) -> str:
    return str(objects.one("StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"])


def test_a_change_of_the_servers_configuration_rolls_them_and_nothing_else_does() -> None:
    before = nats_annotation(render(CLUSTER))
    assert nats_annotation(render(CLUSTER, sets=["nats.maxPayload=4MB"])) != before
    assert nats_annotation(render(CLUSTER, sets=["node.replicas=5"])) == before


def test_a_change_of_the_topology_rolls_the_nodes() -> None:
    def annotation(*sets: str) -> str:
        (found,) = deployments(render(EXTERNAL, sets=sets)).values()
        return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/topology"])

    assert annotation() != annotation("topology.history=5")
    assert annotation() == annotation("node.logLevel=debug")


def test_three_servers_keep_three_copies_each_write_synced_never_two_on_a_host() -> None:
    objects = render(CLUSTER)
    stateful = objects.one("StatefulSet")
    assert stateful["spec"]["replicas"] == 3
    pod = stateful["spec"]["template"]["spec"]
    assert pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert objects.one("PodDisruptionBudget", "-nats")["spec"]["maxUnavailable"] == 1
    assert "sync_interval: always" in objects.one("ConfigMap", "-nats")["data"]["nats.conf"]
    job = next(one for one in objects.of("Job") if "-topology-" in one["metadata"]["name"])
    assert "--replicas=3" in job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {"/data", "/etc/nats/tls", "/etc/nats/auth"} <= mounts


def test_a_single_server_keeps_one_copy() -> None:
    objects = render(CHART / "ci/bundled-single.yaml")
    job = next(one for one in objects.of("Job") if "-topology-" in one["metadata"]["name"])
    assert "--replicas=1" in job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert [one["metadata"]["name"] for one in objects.of("PodDisruptionBudget")] == [
        f"{RELEASE}-sojourn-node"
    ]


def test_the_topology_job_is_no_hook_so_that_wait_does_not_wait_for_itself() -> None:
    job = next(one for one in render(EXTERNAL).of("Job") if "-topology-" in one["metadata"]["name"])
    assert "helm.sh/hook" not in job["metadata"].get("annotations", {})


# hooks


def hook(one: dict[str, Any]) -> tuple[set[str], int]:
    """At which events an object is a hook, and its weight; none for a part of the release."""
    annotations = one["metadata"].get("annotations", {})
    events = {event for event in annotations.get("helm.sh/hook", "").split(",") if event}
    return events, int(annotations.get("helm.sh/hook-weight", "0"))


@every_file
def test_what_runs_before_the_release_is_there_or_when_it_may_be_in_pieces_brings_all_it_needs(
    file: Path,
) -> None:
    """A release whose install failed half-way has neither accounts nor scripts, and must be possible to uninstall."""
    objects = render(file)
    made = {(one["kind"], one["metadata"]["name"]): hook(one) for one in objects}
    for pod in objects.pods():
        events, weight = hook(pod.owner)
        early = events & {"pre-install", "pre-upgrade", "pre-delete"}
        if not early:
            continue
        needs = [("ServiceAccount", pod.spec["serviceAccountName"])]
        needs += [
            ("ConfigMap", one["configMap"]["name"]) for one in pod.spec["volumes"] if "configMap" in one
        ]
        bindings = [one for one in objects.of("RoleBinding") if one["subjects"][0]["name"] == needs[0][1]]
        needs += [("RoleBinding", one["metadata"]["name"]) for one in bindings]
        needs += [("Role", one["roleRef"]["name"]) for one in bindings]
        assert len(needs) >= 4
        for need in needs:
            assert early <= made[need][0], need
            assert made[need][1] < weight, need
        assert not [one for one in pod.spec["volumes"] if "secret" in one], "no Secret is sure to be there"


@every_file
def test_every_hook_can_run_a_second_time(file: Path) -> None:
    for one in render(file):
        if hook(one)[0]:
            policy = one["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
            assert "before-hook-creation" in policy.split(","), one["metadata"]["name"]


def test_a_job_that_is_no_hook_has_another_name_in_each_revision_since_jobs_cannot_be_changed() -> None:
    (job,) = [one for one in render(EXTERNAL).of("Job") if not hook(one)[0]]
    assert "Release.Revision" in (CHART / "templates/topology.yaml").read_text()
    assert job["spec"]["activeDeadlineSeconds"] >= 3600, "nothing starts it again while nodes wait for it"


def test_no_job_ends_for_an_image_that_takes_minutes_to_come() -> None:
    values = {"promote": {"timeoutSeconds": 240}, "workers": [{"queue": "mail", "drainSeconds": 900}]}
    for name, own in (("-setup", 0), ("-promote", 240), ("-leave", 900)):
        deadline = render(EXTERNAL, values=values).one("Job", name)["spec"]["activeDeadlineSeconds"]
        assert deadline >= own + 600, name


def test_a_shell_that_waits_as_process_1_ends_at_sigterm() -> None:
    import subprocess

    for pod in render(CLUSTER).pods():
        for container in pod.containers:
            command = container.get("command", [])
            if command[:2] != ["sh", "-c"] or "until" not in command[2]:
                continue
            script = re.sub(r"until .*?; do", "until false; do echo waits;", command[2])
            assert script != command[2]
            # In a session of its own, and asked as the kubelet asks: the shell alone, not what it started.
            process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
            assert process.stdout is not None
            assert process.stdout.readline() == b"waits\n"
            process.terminate()
            assert process.wait(10) == 143
            process.stdout.close()


def test_only_a_change_of_the_pods_own_values_restarts_them_not_that_of_the_charts_version() -> None:
    for pod in render(CLUSTER).pods():
        if pod.owner["kind"] in ("Deployment", "StatefulSet"):
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(pod.labels)


def test_helm_test_asks_whether_every_partition_is_served() -> None:
    pod = render(CLUSTER).one("Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert "sojourn doctor && sojourn nodes" in pod["spec"]["containers"][0]["command"][-1]


@pytest.mark.parametrize(("kind", "term"), [("required", "required"), ("preferred", "preferred")])
def test_three_servers_on_fewer_hosts_only_when_asked_for(kind: str, term: str) -> None:
    found = render(CLUSTER, sets=[f"nats.antiAffinity={kind}"]).one("StatefulSet")
    affinity = found["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert list(affinity) == [f"{term}DuringSchedulingIgnoredDuringExecution"]


# who may reach whom


def test_network_policies_let_in_only_scraping_and_clients_of_nats() -> None:
    objects = render(CLUSTER)
    node = objects.one("NetworkPolicy", "-node")["spec"]
    assert [port["port"] for rule in node["ingress"] for port in rule["ports"]] == [8080]
    nats = objects.one("NetworkPolicy", "-nats")["spec"]
    peers = {rule["ports"][0]["port"]: rule.get("from") for rule in nats["ingress"]}
    assert set(peers) == {4222, 6222, 8222}
    assert peers[4222]
    assert peers[6222]
    jobs = objects.one("NetworkPolicy", "-jobs")["spec"]
    assert jobs["ingress"] == []
    for pod in objects.pods():
        policies = [
            one for one in objects.of("NetworkPolicy") if selects(one["spec"]["podSelector"], pod.labels)
        ]
        assert len(policies) == 1, pod.name


def test_jobs_and_restricted_nodes_reach_the_ports_of_the_url() -> None:
    sets = [
        r"nats.external.url=nats://a:4333\,tls://[fd00::1]:4444\,nats://b",
        "nats.external.port=4555",
        "networkPolicy.restrictEgress=true",
    ]
    for name in ("-node", "-jobs"):
        rules = render(EXTERNAL, sets=sets).one("NetworkPolicy", name)["spec"]["egress"]
        assert {4222, 4333, 4444, 4555} <= {port["port"] for rule in rules for port in rule["ports"]}


def test_setup_may_reach_the_api_server_before_the_release_is_there() -> None:
    """A namespace may let nothing out by default."""
    policy = render(EXTERNAL).one("NetworkPolicy", "-setup")
    assert hook(policy) == ({"pre-install", "pre-upgrade"}, -9)
    assert {443, 6443} <= {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}


def test_restricted_nodes_reach_dns_nats_and_what_is_named() -> None:
    rules = render(CHART / "ci/external-creds-tls.yaml").one("NetworkPolicy", "-node")["spec"]["egress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [53, 53, 4222, 5432]


# what users put into it


def test_no_name_stands_twice_in_an_environment_since_server_side_apply_refuses_it() -> None:
    node = [{"name": "HOME", "value": "/data"}, {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]
    values = {"node": {"env": node}, "workers": [{"queue": "mail", "env": [{"name": "A", "value": "2"}]}]}
    for one in render(EXTERNAL, values=values).of("Deployment"):
        (found,) = one["spec"]["template"]["spec"]["containers"]
        names = [entry["name"] for entry in found["env"]]
        assert len(names) == len(set(names))
        env = {entry["name"]: entry.get("value") for entry in found["env"]}
        assert env["HOME"] == "/data"
        assert env["A"] == ("2" if found["name"] == "worker" else "1"), "a worker's own wins"
        assert names.index("A") < names.index("B"), "what refers to a name comes after it"


def test_no_label_or_annotation_stands_twice() -> None:
    values = {
        "commonLabels": {"app.kubernetes.io/part-of": "shop", "team": "a"},
        "node": {"podLabels": {"team": "b"}, "podAnnotations": {"checksum/topology": "x"}},
        "serviceMonitor": {"enabled": True, "labels": {"team": "c"}},
    }
    done = render_text(EXTERNAL, values=values)

    class Strict(yaml.SafeLoader):
        """Refuses a key that stands twice in a mapping."""

    def mapping(loader: Any, node: Any) -> Any:
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), node.start_mark
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    objects = Objects(one for one in yaml.load_all(done.stdout, Loader=Strict) if one)  # a SafeLoader
    (node,) = objects.of("Deployment")
    labels = node["spec"]["template"]["metadata"]["labels"]
    assert (labels["app.kubernetes.io/part-of"], labels["team"]) == ("shop", "b"), (
        "the closest to the pod wins"
    )
    assert objects.one("ServiceMonitor")["metadata"]["labels"]["team"] == "c"


@pytest.mark.parametrize("name", ["123", "1e3", "true", "null"])
def test_names_that_look_like_other_things_than_text_stay_text(name: str) -> None:
    values = {
        "keys": {"entry": name},
        "image": {"tag": name, "pullSecrets": [name]},
        "workers": [{"queue": name}],
    }
    with_values = render_text(EXTERNAL, values=values, release=name, namespace=name).stdout
    for one in yaml.safe_load_all(with_values):
        if one and one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, "1.37", strict=True)
            assert one["metadata"]["namespace"] == name


def test_everything_can_be_named_by_a_chart_that_has_this_one_twice(tmp_path: Path) -> None:
    """Under two aliases in one release: nothing selects the other's pods, and each one's jobs look after their own."""
    parent = tmp_path / "shop"
    (parent / "charts").mkdir(parents=True)
    aliases = [
        {"name": "sojourn", "version": "*", "alias": one, "condition": f"{one}.enabled"}
        for one in ("orders", "mails")
    ]
    (parent / "Chart.yaml").write_text(
        json.dumps({"apiVersion": "v2", "name": "shop", "version": "1.0.0", "dependencies": aliases})
    )
    shutil.copytree(CHART, parent / "charts/sojourn")
    own = {**yaml.safe_load(EXTERNAL.read_text()), "enabled": True, "workers": [{"queue": "mail"}]}
    (parent / "values.yaml").write_text(json.dumps({"orders": own, "mails": own}))
    objects = Objects(one for one in yaml.safe_load_all(helm("template", RELEASE, str(parent)).stdout) if one)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    owners = [
        one
        for one in objects
        if "selector" in (one.get("spec") or {}) or "podSelector" in (one.get("spec") or {})
    ]
    assert len(owners) > 10
    for owner in owners:
        selector = owner["spec"].get("selector") or owner["spec"]["podSelector"]
        alias = owner["metadata"]["labels"]["app.kubernetes.io/name"]
        taken = [pod for pod in objects.pods() if selects(selector, pod.labels)]
        assert taken
        assert {pod.labels["app.kubernetes.io/name"] for pod in taken} == {alias}
    for pod in objects.pods():
        env = {
            entry["name"]: entry.get("value") for container in pod.containers for entry in container["env"]
        }
        if "INSTANCE" in env:
            assert env["NAME"] == pod.labels["app.kubernetes.io/name"]


def test_the_user_of_pods_can_be_left_to_the_cluster() -> None:
    for pod in render(CLUSTER, sets=["runAsUser=0"]).pods():
        for context in (pod.spec["securityContext"], *(one["securityContext"] for one in pod.containers)):
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context)
            assert context["runAsNonRoot"] is True


def test_objects_of_the_users_are_rendered_as_templates() -> None:
    mine = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{{{{ .Release.Name }}}}-{one}"}} for one in "ab"
    ]  # fmt: skip
    objects = render(EXTERNAL, values={"extraObjects": mine})
    assert {"rel-a", "rel-b"} <= {one["metadata"]["name"] for one in objects.of("ConfigMap")}


def test_a_monitor_relabels_as_asked() -> None:
    drop = [{"action": "drop", "sourceLabels": ["__name__"], "regex": "sojourn_step_seconds_bucket"}]
    values = {"serviceMonitor": {"enabled": True, "metricRelabelings": drop}}
    (endpoint,) = render(EXTERNAL, values=values).one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["metricRelabelings"] == drop
    assert "relabelings" not in endpoint


def test_every_job_takes_the_annotations_that_keep_a_mesh_out() -> None:
    values = {"jobs": {"podAnnotations": {"sidecar.istio.io/inject": "false"}, "podLabels": {"mesh": "none"}}}
    jobs = [
        pod for pod in render(CLUSTER, values=values).pods() if pod.owner["kind"] in ("Job", "CronJob", "Pod")
    ]
    assert len(jobs) == 6
    for pod in jobs:
        assert pod.template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        assert pod.labels["mesh"] == "none"


def test_first_containers_of_the_users_run_last_before_nodes_and_workers() -> None:
    values = {
        "node": {"extraInitContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}]},
        "workers": [{"queue": "mail"}],
    }
    for one in render(EXTERNAL, values=values).of("Deployment"):
        assert [first["name"] for first in one["spec"]["template"]["spec"]["initContainers"]] == [
            "topology",
            "proxy",
        ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": {"digest": f"sha256:{'0' * 64}"}}, "--set image.digest=sha256:NEW"),
        ({"versions": [{"label": "v1", "image": {"tag": "v1"}}]}, "one more line in `versions`"),
        ({"promote": {"enabled": False}}, "sojourn versions set-current 1-4-2"),
        ({"topology": {"apply": False}}, "sojourn topology apply --namespace default --app=app --partitions=32"),
        ({"workers": [{"queue": "mail", "drainSeconds": 600}]}, "give it --timeout 750s"),
        ({"keys": {"existingSecret": "mine"}}, "It leaves nothing behind."),
    ],
)  # fmt: skip
def test_the_notes_say_what_is_so_with_these_values(
    values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    done = helm(
        "install",
        RELEASE,
        str(CHART),
        "--dry-run=client",
        "--values",
        str(EXTERNAL),
        "--values",
        str(tmp_path / "values.yaml"),
    )
    assert words in done.stdout.partition("NOTES:")[2]
