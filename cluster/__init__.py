"""Nodes, partitions, deployments, drain, operators' views: who serves which actor, and how (PROTOCOL 3, 4).

General layout. *Membership* decides who owns what: `ownership` (records and the pure plan), `directory` (their
keys), `lease` and `guard` (staying alive, ending the dead), `gate` (may this node act), `attach` (the six
steps), `holdings` (what is served), `membership` (joining, doubting, draining), `lives` and `node` (putting it
together), with `deployment`, `marks`, `metrics`, `health`, `steps_loop` beside it. *Hosting* is what an owner
does with a partition: `partition`, `actor_host` and what they are made of; `queries` and `views` are for those
who look. `services` is the seam between the two.

Names are loaded when first used, so that a tool that only reads views does not load the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .deployment import Deployment
    from .directory import Directory
    from .node import Node, NodeOptions, run_node
    from .ownership import Member, Owner, View

__all__ = ["Deployment", "Directory", "Member", "Node", "NodeOptions", "Owner", "View", "run_node"]

_WHERE: Final = {
    "Deployment": "deployment",
    "Directory": "directory",
    "Member": "ownership",
    "Node": "node",
    "NodeOptions": "node",
    "Owner": "ownership",
    "View": "ownership",
    "run_node": "node",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
