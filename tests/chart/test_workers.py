"""Workers of step queues: one Deployment for each queue and version, each as a NATS user of that queue, never without the old version's."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from chart_kit import CHART, CI_VALUES, RELEASE, Objects, render, render_text, selects
from sojourn.cluster.metrics import METRICS

WORKERS, EXTERNAL = CHART / "ci/workers.yaml", CHART / "ci/external.yaml"
GPU = "gpu-large-1c2f20"
"""GPU_large as a part of a name."""


def by_name(objects: Objects) -> dict[str, dict[str, Any]]:
    start = f"{RELEASE}-sojourn-worker-"
    return {one["metadata"]["name"].removeprefix(start): one for one in objects.workers()}


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_each_queue_has_workers_of_each_version_that_is_there_or_of_the_one_that_is_named() -> None:
    assert sorted(by_name(render(WORKERS))) == [f"{GPU}-v2", "mail-v1", "mail-v2", "ocr-v1", "ocr-v2"]


def test_one_line_is_enough_for_a_queue_of_a_single_version() -> None:
    (found,) = by_name(render(EXTERNAL, sets=["workers[0].queue=mail"])).values()
    assert found["metadata"]["labels"]["sojourn/deployment"] == "1-4-2"
    assert found["spec"]["replicas"] == 1


def test_an_upgrade_leaves_the_old_versions_workers_beside_the_new_ones() -> None:
    names = [
        set(by_name(render(EXTERNAL, sets=["workers[0].queue=mail", f"image.tag={tag}"])))
        for tag in ("v1", "v2")
    ]
    assert names == [{"mail-v1"}, {"mail-v2"}]
    for one in render(WORKERS).workers():
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert one["metadata"]["annotations"]["argocd.argoproj.io/sync-options"] == "Prune=false"


def test_its_command_line_is_one_that_sojourn_worker_takes() -> None:
    from sojourn.cli.worker import worker

    for one in render(WORKERS).workers():
        found = container(one)
        assert found["command"][:2] == ["sojourn", "worker"]
        words = [*found["command"][2:], *found["args"]]
        context = worker.make_context("worker", words)
        assert context.params["queues"] == (one["metadata"]["annotations"]["sojourn/queue"],)
        assert context.params["app"] == "shop.workflows"
        seconds = context.params["drain"]
        assert one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= seconds + 20
    gpu = container(by_name(render(WORKERS))[f"{GPU}-v2"])
    assert {"--queue=GPU_large", "--concurrency=1", "--drain=600s"} <= set(gpu["args"])


@pytest.mark.parametrize("file", CI_VALUES, ids=lambda file: file.stem)
def test_a_nodes_command_line_is_one_that_sojourn_node_takes(file: Any) -> None:
    from sojourn.cli.node import node

    for one in render(file).of("Deployment"):
        found = container(one)
        if found["name"] == "node":
            assert found["command"][:2] == ["sojourn", "node"]
            words = [*found["command"][2:], *found["args"]]
            # The key's file is not here.
            words = [word for word in words if not word.startswith("--key-file=")]
            assert node.make_context("node", words).params["deployment"]


def test_it_has_no_key_and_its_own_queues_user_alone() -> None:
    for one in render(WORKERS).workers():
        spec = one["spec"]["template"]["spec"]
        assert "keys" not in {volume["name"] for volume in spec["volumes"]}
        (nats,) = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "nats"]
        slug = one["metadata"]["labels"]["sojourn/queue"]
        assert [item["key"] for item in nats["items"]] == [f"worker-{slug}-user", f"worker-{slug}-password"]
        for each in (*spec["initContainers"], *spec["containers"]):
            env = {entry["name"]: entry.get("value") for entry in each["env"]}
            assert env["SOJOURN_ROLE"] == "worker"


def test_an_external_nats_has_an_entry_for_each_queue() -> None:
    sets = ["workers[0].queue=mail", "nats.external.auth=creds", "nats.external.workerRole=steps"]
    (found,) = render(EXTERNAL, sets=sets).workers()
    (nats,) = [one["secret"] for one in found["spec"]["template"]["spec"]["volumes"] if one["name"] == "nats"]
    assert [item["key"] for item in nats["items"]] == ["steps-mail.creds"]


def test_its_node_selector_and_environment_are_its_own() -> None:
    gpu = by_name(render(WORKERS))[f"{GPU}-v2"]["spec"]["template"]["spec"]
    assert gpu["nodeSelector"] == {"accelerator": "nvidia"}
    assert gpu["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    env = {one["name"]: one.get("value") for one in gpu["containers"][0]["env"]}
    assert env["CUDA_VISIBLE_DEVICES"] == "0"


def test_they_scale_by_cpu_and_by_the_depth_of_their_queue_never_by_depth_alone() -> None:
    objects = render(WORKERS)
    (hpa,) = objects.of("HorizontalPodAutoscaler")
    assert hpa["spec"]["scaleTargetRef"]["name"].endswith(f"-worker-{GPU}-v2")
    cpu, depth = hpa["spec"]["metrics"]
    assert cpu["resource"]["name"] == "cpu"
    metric = depth["external"]["metric"]
    assert metric == {"name": "sojourn_step_queue_depth", "selector": {"matchLabels": {"queue": "GPU_large"}}}
    assert METRICS["step_queue_depth"].labels == ("queue",)
    (scaled,) = objects.of("ScaledObject")
    assert [trigger["type"] for trigger in scaled["spec"]["triggers"]] == ["cpu", "prometheus"]
    assert (
        'sojourn_step_queue_depth{namespace="apps",service="rel-sojourn-metrics",queue="ocr"}'
        in scaled["spec"]["triggers"][1]["metadata"]["query"]
    )
    for name, one in by_name(objects).items():
        scaled_before = "ocr-v1"  # it drains: what its autoscaler set stays
        scales = name in (f"{GPU}-v2", "ocr-v2", scaled_before)
        assert ("replicas" in one["spec"]) == (not scales), name


def test_a_scaled_objects_name_leaves_room_for_what_keda_makes_of_it() -> None:
    """Its autoscaler is `keda-hpa-NAME`, and that is a label too: 63 characters."""
    values = {
        "autoscaling": {"kind": "keda"}, "image": {"tag": "a" * 24},
        "workers": [{"queue": f"{'q' * 23}{end}", "scaling": {"kind": "keda"}} for end in "xyz"],
    }  # fmt: skip
    done = render_text(EXTERNAL, values=values, release="checkout-service-production-eu")
    objects = Objects(one for one in yaml.safe_load_all(done.stdout) if one)
    scaled = objects.of("ScaledObject")
    names = {one["metadata"]["name"] for one in scaled}
    assert len(names) == 4
    assert max(len(name) for name in names) <= 63 - len("keda-hpa-")
    targets = {one["spec"]["scaleTargetRef"]["name"] for one in scaled}
    assert targets == {one["metadata"]["name"] for one in objects.of("Deployment")}


def test_no_calm_before_scaling_down_is_what_0_says() -> None:
    values = {"workers": [{"queue": "mail", "scaling": {"kind": "hpa", "scaleDownSeconds": 0}}]}
    behavior = render(EXTERNAL, values=values).one("HorizontalPodAutoscaler")["spec"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 0


def test_what_a_queues_workers_need_of_their_own_comes_beside_what_the_nodes_have() -> None:
    shm = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    own = {
        "queue": "gpu", "runtimeClassName": "nvidia", "podLabels": {"a": "worker"}, "podAnnotations": {"b": "worker"},
        "envFrom": [{"secretRef": {"name": "gpu"}}], "extraVolumes": [shm],
        "extraVolumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    }  # fmt: skip
    small = {"name": "shm", "emptyDir": {"sizeLimit": "1Mi"}}
    node = {
        "podLabels": {"a": "node", "c": "node"}, "envFrom": [{"configMapRef": {"name": "shop"}}], "extraVolumes": [small],
    }  # fmt: skip
    objects = render(EXTERNAL, values={"node": node, "workers": [own]})
    (worker,) = objects.workers()
    template = worker["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"a": "worker", "c": "node"}.items()
    assert template["metadata"]["annotations"] == {"b": "worker"}
    spec = template["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["topologySpreadConstraints"] == own["topologySpreadConstraints"]
    assert [one for one in spec["volumes"] if one["name"] == "shm"] == [shm]
    assert container(worker)["envFrom"] == [*node["envFrom"], *own["envFrom"]]
    (other,) = [one for one in objects.of("Deployment") if one is not worker]
    assert small in other["spec"]["template"]["spec"]["volumes"]
    assert "runtimeClassName" not in other["spec"]["template"]["spec"]


def test_a_queue_with_no_place_to_spare_is_replaced_in_place() -> None:
    values = {"workers": [{"queue": "mail"}, {"queue": "gpu", "strategy": {"type": "Recreate"}}]}
    found = by_name(render(EXTERNAL, values=values))
    assert found["gpu-1-4-2"]["spec"]["strategy"] == {"type": "Recreate"}
    assert found["mail-1-4-2"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_current_moves_only_once_the_new_versions_workers_are_ready() -> None:
    job = render(WORKERS).one("Job", "-promote")["spec"]["template"]["spec"]
    (found,) = job["containers"]
    env = {one["name"]: one.get("value") for one in found["env"]}
    start = f"{RELEASE}-sojourn-worker"
    assert env["WORKERS"] == f"{start}-mail-v2=2,{start}-{GPU}-v2=1,{start}-ocr-v2=0"
    (role,) = [
        one for one in render(WORKERS).of("Role") if one["metadata"]["name"] == job["serviceAccountName"]
    ]
    assert role["rules"] == [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"]}]


def test_the_janitor_knows_which_workers_are_wanted() -> None:
    pod = render(WORKERS).one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert {name.rpartition("-")[2] for name in env["WORKERS"].split(",")} == {"v2"}


def test_they_may_be_scraped_and_disrupted_one_at_a_time_as_nodes_are() -> None:
    objects = render(WORKERS)
    labels = [pod.labels for pod in objects.pods() if pod.labels["app.kubernetes.io/component"] == "worker"]
    assert labels
    for one in labels:
        assert selects(objects.one("PodDisruptionBudget", "-worker")["spec"]["selector"], one)
        assert selects(objects.one("NetworkPolicy", "-node")["spec"]["podSelector"], one)
        assert selects(objects.one("Service", "-metrics")["spec"]["selector"], one)


def test_a_new_queue_rolls_the_bundled_servers_since_it_has_a_user_there() -> None:
    def annotation(*sets: str) -> Any:
        pod = render(CHART / "ci/bundled-cluster.yaml", sets=sets).one("StatefulSet")["spec"]["template"]
        return pod["metadata"]["annotations"]["checksum/config"]

    assert annotation("workers[0].queue=mail") != annotation()
    assert annotation("workers[0].queue=mail") == annotation("workers[0].queue=mail", "image.tag=v2")
