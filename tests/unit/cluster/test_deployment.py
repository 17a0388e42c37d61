"""What a deployment registers: identities, and the source lines at which actors sleep."""

from __future__ import annotations

import pickle

import pytest
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import sleep
from sojourn.actors.workflow import workflow
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import InvalidName
from sojourn.broker.memory import MemoryServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.deployments import deployment as deployments
from sojourn.cluster.deployments.deployment import DeploymentDiffers, describe, read, read_all, register

REGISTRY = Registry()


@step(registry=REGISTRY)
def charge(amount: int) -> int:
    return amount


async def nap() -> None:
    await sleep("1h")  # this line


@workflow(registry=REGISTRY)
async def order(amount: int) -> int:
    await nap()
    return await charge(amount)


@workflow(name="order", registry=(OTHER := Registry()))
async def other_order(amount: int) -> int:
    await nap()
    return amount + 1


@pytest.fixture
async def keys() -> ClusterKeys:
    server = MemoryServer(timers=False)
    broker = await server.connect()
    topology = Topology(namespace="t", app="tests")
    await apply(broker, topology)
    return ClusterKeys(broker, topology.subjects)


def test_the_label_is_drawn_from_the_code() -> None:
    assert describe(REGISTRY, app="a").label == describe(REGISTRY, app="a").label
    assert describe(REGISTRY, app="a").label != describe(OTHER, app="a").label
    assert describe(REGISTRY, app="a", label="v2").label == "v2"


def test_a_label_is_a_checked_name() -> None:
    with pytest.raises(InvalidName, match="a deployment's label"):
        describe(REGISTRY, app="a", label="v 2")


def test_identities_of_workflows_and_steps_are_as_in_a_pin() -> None:
    made = describe(REGISTRY, app="a")
    (identity,) = made.workflows["order"]
    assert identity.startswith(f"{__name__}:order#")
    assert made.identities() == {identity, *made.steps["charge"]}


def test_the_line_of_a_helper_is_found_by_module_and_number() -> None:
    made = describe(REGISTRY, app="a")
    line = nap.__code__.co_firstlineno + 1
    assert made.source_line(__name__, line) == 'await sleep("1h")  # this line'
    assert made.source_line(__name__, 1_000_000) is None
    assert made.source_line("elsewhere", line) is None


def test_source_text_that_does_not_fit_is_left_out_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "MAX_SOURCE_BYTES", 120)
    made = describe(REGISTRY, app="a")
    assert sum(len(line) for source in made.sources for line in source.lines) <= 120
    assert made.left_out > 0
    assert [source.function for source in made.sources]


async def test_a_registered_deployment_is_read_again(keys: ClusterKeys) -> None:
    made = describe(REGISTRY, app="a")
    await register(keys, made)
    await register(keys, made)
    assert await read(keys, made.label) == made
    assert await read(keys, "another") is None
    assert await read_all(keys) == {made.label: made}


async def test_a_label_that_names_other_code_is_refused(keys: ClusterKeys) -> None:
    await register(keys, describe(REGISTRY, app="a", label="v1"))
    with pytest.raises(DeploymentDiffers, match="a label names one version") as refused:
        await register(keys, describe(OTHER, app="a", label="v1"))
    assert f"{__name__}:order" in refused.value.functions
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
