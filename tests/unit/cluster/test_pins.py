"""Which deployment can run an actor: by its pin, by its label, or by choice before it begins."""

from __future__ import annotations

import msgspec
import pytest
from sojourn.actors.engine import Engine
from sojourn.actors.events import Event
from sojourn.actors.registry import Registry
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.memory import MemoryServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.deployments import deployment as deployments
from sojourn.cluster.deployments.deployment import Deployment
from sojourn.cluster.deployments.pins import REFUSED_BY, ClusterPins, LonePins, satisfies
from sojourn.cluster.deployments.versions import Policy, Versions, change_policy
from sojourn.cluster.tenure.ownership import Member, Owned, Owner, View
from sojourn.codecs.record import Envelope, Hold, Index, Origin, Record, Status, Wait

V1 = Deployment("v1", "app", "3.11", {"order": ("app:order#1",)}, {}, code=("app:helper#1", "app:Data~1"))
V2 = Deployment("v2", "app", "3.11", {"order": ("app:order#2",)}, {}, code=("app:helper#1", "app:Data~1"))
ENGINE = Engine(Registry(), ids=lambda: "run")


def record(
    *pin: str, ran_by: str = "v1", pinned_to: str = "", hold: Hold | None = None, begun: bool = True
) -> Record:
    index = Index(
        "a", "r", "order", Status.SUSPENDED, 1, 0.0, 0.0, deployment=ran_by, pin=pin, pinned_to=pinned_to
    )
    waits = () if begun else (Wait(0, 1, "start"),)
    return Record(index, Envelope("c", "", 1, waits=waits, hold=hold), b"frame" if begun else b"")


async def pins_under(policy: Policy) -> ClusterPins:
    """Of a v2 node that owns partition 0, while v1 lives too."""
    server = MemoryServer(timers=False)
    broker = await server.connect()
    topology = Topology(namespace="t", app="tests")
    await apply(broker, topology)
    keys = ClusterKeys(broker, topology.subjects)
    for one in (V1, V2):
        await deployments.register(keys, one)
    await change_policy(keys, lambda _: policy)
    versions = Versions(keys, V2)
    members = {
        name: Member(name, "l", "ready", deployment=label) for name, label in (("a", "v1"), ("b", "v2"))
    }
    await versions.observe(View(1, members, {0: Owned(Owner("b", "l", 1, "held"), 1)}))
    return ClusterPins(ENGINE, versions)


@pytest.fixture
async def pins() -> ClusterPins:
    return await pins_under(Policy("v2"))


def test_a_deployment_satisfies_what_it_stored_and_frames_of_which_it_has_every_part() -> None:
    assert satisfies(V1, record("app:order#1"), V1)
    assert not satisfies(V2, record("app:order#1"), V1)
    assert satisfies(V2, record("app:helper#1", "app:Data~1"), V1)
    assert not satisfies(V2, record("app:helper#1", "app:Data~2"), V1)


def test_code_of_a_library_counts_as_the_same_when_the_deployment_that_ran_it_is_known() -> None:
    assert satisfies(V2, record("app:helper#1", "lib:retry#7"), V1)
    assert not satisfies(V2, record("app:helper#1", "lib:retry#7"), None)
    moved = msgspec.structs.replace(V1, code=(*V1.code, "gone:part#1"))
    assert not satisfies(V2, record("gone:part#1"), moved)  # the app's own module, which v2 does not have


def test_a_label_that_is_pinned_is_satisfied_by_that_deployment_alone() -> None:
    bound = record("app:helper#1", pinned_to="v1")
    assert satisfies(V1, bound, V1)
    assert not satisfies(V2, bound, V1)
    assert LonePins(ENGINE, "v2").refuses(bound) == "it is pinned to deployment v1, this is v2"
    assert LonePins(ENGINE, "v1").refuses(bound) == ""


def test_the_deployment_that_ran_it_last_comes_first_and_one_that_refused_it_is_not_asked_again(
    pins: ClusterPins,
) -> None:
    assert pins.elsewhere(record("app:order#1")) == "v1"
    refused = Hold("pin", "a library differs", f"{REFUSED_BY}v1", 0.0)
    assert pins.elsewhere(record("app:order#1", hold=refused)) == ""
    assert pins.elsewhere(record("app:order#9", ran_by="v0")) == ""


def test_a_run_that_has_not_begun_waits_for_the_deployment_that_was_chosen_while_that_lives(
    pins: ClusterPins,
) -> None:
    assert pins.refuses(record(begun=False)) == "it begins on deployment v1, this is v2"
    assert pins.elsewhere(record(begun=False)) == "v1"
    assert pins.refuses(record(begun=False, ran_by="v0")) == ""  # scaled to zero: any that has the workflow
    assert not pins.home_can(0, record(begun=False))  # whoever was given it begins it


def test_an_actor_is_given_back_when_the_owner_can_run_what_it_has_become(pins: ClusterPins) -> None:
    assert pins.home_can(0, record("app:helper#1"))
    assert not pins.home_can(0, record("app:order#1"))
    assert not pins.home_can(1, record("app:helper#1"))  # nobody owns that partition, as far as is known


@pytest.mark.parametrize("policy", [Policy("v1"), Policy("v1", {"v1": 9, "v2": 1})], ids=["current", "ramp"])
async def test_an_actor_stays_with_a_deployment_on_which_new_ones_begin_though_another_has_its_code(
    policy: Policy,
) -> None:
    pins = await pins_under(policy)
    both_have_it = record("app:helper#1")
    assert (
        pins.refuses(both_have_it) == "it goes on with deployment v1 while new ones begin there, this is v2"
    )
    assert pins.elsewhere(both_have_it) == "v1"
    assert not pins.home_can(0, both_have_it)
    on_lane = msgspec.structs.replace(both_have_it.index, lane="v2")
    assert (
        pins.refuses(msgspec.structs.replace(both_have_it, index=on_lane)) == ""
    )  # v1's nodes cannot run it


async def test_an_actor_leaves_a_deployment_that_no_new_ones_begin_on(pins: ClusterPins) -> None:
    assert pins.refuses(record("app:helper#1")) == ""
    assert (await pins_under(Policy("v1", {"v1": 0, "v2": 1}))).refuses(record("app:helper#1")) == ""
    assert (await pins_under(Policy("v1"))).refuses(record("app:helper#1", ran_by="v0")) == ""


async def test_nobody_stays_with_a_deployment_that_could_not_resume_one_of_its_frames() -> None:
    pins = await pins_under(Policy("v1"))
    refused = Hold("pin", "a library differs", f"{REFUSED_BY}v1", 0.0)
    assert pins.refuses(record("app:helper#1", hold=refused)) == ""
    assert pins.refuses(record("app:helper#1")) == ""  # the hold is over when it is run here


def test_a_start_is_decided_by_actor_and_origin(pins: ClusterPins) -> None:
    start = Event("start", "a", Origin("ctl", 1, 7), 0.0, body={"workflow": "order"})
    assert pins.for_start(start) == "v2"
    assert LonePins(ENGINE, "v1").for_start(start) == "v1"
