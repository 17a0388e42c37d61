"""What an upgrade refuses by what is installed: real helm against an API server, with nothing running."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart_kit import CHART, NAMESPACE, helm
from kubernetes_kit import Kubernetes

Helm = Callable[..., subprocess.CompletedProcess[str]]
CLUSTER, KEYS = CHART / "ci/bundled-cluster.yaml", CHART / "ci/external-creds-tls.yaml"


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Helm]:
    """Install or upgrade without hooks, from a values file and `--set`s."""
    with Kubernetes(tmp_path) as kubernetes:

        def run(verb: str, file: Path, *sets: str, check: bool = True) -> subprocess.CompletedProcess[str]:
            words = [verb, "shop", str(CHART), "--no-hooks", "--namespace", NAMESPACE, "--values", str(file)]
            for one in ("serviceMonitor.enabled=false", "prometheusRule.enabled=false", *sets):
                words += ["--set", one]
            return helm(*words, env={"KUBECONFIG": str(kubernetes.kubeconfig)}, check=check)

        yield run


def test_nodes_that_an_upgrade_left_are_not_cut_off_by_a_change_of_tls(deploy: Helm) -> None:
    deploy("install", CLUSTER)
    deploy("upgrade", CLUSTER, "nats.tls.enabled=false")  # one version: it is rolled with the servers
    deploy("upgrade", CLUSTER, "nats.tls.enabled=false", "image.tag=v2")
    done = deploy("upgrade", CLUSTER, "image.tag=v2", check=False)
    assert "nats.tls.enabled was false and would become true" in done.stderr
    assert "shop-sojourn-node-v1, which an earlier upgrade left" in done.stderr
    both = [f"versions[{n}].{one}" for n in (0, 1) for one in (f"label=v{n + 1}", f"image.tag=v{n + 1}")]
    deploy("upgrade", CLUSTER, *both)  # both are named, so both are changed


def test_keys_that_were_the_users_do_not_become_new_ones(deploy: Helm) -> None:
    deploy("install", KEYS)
    done = deploy("upgrade", KEYS, "keys.existingSecret=", "keys.entry=key", check=False)
    assert "keys.existingSecret was shop-keys and would become empty" in done.stderr
    deploy("upgrade", KEYS, "keys.existingSecret=shop-keys-copied")


def test_a_release_does_not_lose_its_keys_and_its_nats_by_another_name(deploy: Helm) -> None:
    deploy("install", CLUSTER)
    for wrong in ("fullnameOverride=other", "nameOverride=other"):
        done = deploy("upgrade", CLUSTER, wrong, check=False)
        assert "the name was shop-sojourn and would become" in done.stderr
    deploy("upgrade", CLUSTER, "fullnameOverride=shop-sojourn")


def test_what_a_topology_is_for_good_does_not_change(deploy: Helm) -> None:
    deploy("install", CLUSTER)
    for wrong in ("namespace=other", "app=other", "partitions=16"):
        done = deploy("upgrade", CLUSTER, f"topology.{wrong}", check=False)
        assert f"topology.{wrong.partition('=')[0]} was" in done.stderr
        assert "would be left behind" in done.stderr
