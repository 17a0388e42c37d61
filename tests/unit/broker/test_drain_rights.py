"""Who may ask a node to drain: nodes, admins, and an operator who has that verb; nobody else."""

from __future__ import annotations

from sojourn.broker.roles import Role, permissions
from sojourn.broker.subjects import Subjects, Token

SUBJECTS = Subjects("ns", 4)


def test_only_an_operator_with_the_verb_reaches_a_nodes_drain_from_outside() -> None:
    assert SUBJECTS.drain(Token("n1")) == "sj.ns.node.n1.drain"
    assert "sj.ns.node.*.drain" in permissions(Role.OPERATOR, SUBJECTS).publish
    assert "sj.ns.node.*.drain" not in permissions(Role.OPERATOR, SUBJECTS, verbs=("cancel",)).publish
    for role in (Role.STARTER, Role.SIGNALLER, Role.READER):
        assert not any(".node." in subject for subject in permissions(role, SUBJECTS).publish)


def test_a_node_hears_requests_to_drain_and_the_lane_nudges_of_its_peers() -> None:
    node = permissions(Role.NODE, SUBJECTS)
    assert {"sj.ns.node.>", "sj.ns.probe.>"} <= set(node.subscribe)
    assert {"sj.ns.lane.>", "sj.ns.probe.>"} <= set(node.publish)
