"""Nodes, partitions, deployments, drain, operators' views: who serves which actor, and how (PROTOCOL 3, 4).

In folders, of which each imports only those before it: `tenure` (who may own what, and act), `deployments` (which code there is, and who
can run what), `mail` (events up to their acknowledgement), `steps`, `hosting` (what an owner does with a partition; `services` is what
it is given), `holding` (partitions and lanes from attach to release). On top the two processes: `node` with `membership`,
`lives` and `pulse`, and `worker` with `task_run`; and what people look at: `census`, `health`, `metrics`.

Names are loaded when first used, so that a tool that only reads views does not load the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .deployments.deployment import Deployment
    from .node import Node, NodeOptions, run_node
    from .tenure.directory import Directory
    from .tenure.ownership import Member, Owner, View

__all__ = ["Deployment", "Directory", "Member", "Node", "NodeOptions", "Owner", "View", "run_node"]

_WHERE: Final = {
    "Deployment": "deployments.deployment",
    "Directory": "tenure.directory",
    "Member": "tenure.ownership",
    "Node": "node",
    "NodeOptions": "node",
    "Owner": "tenure.ownership",
    "View": "tenure.ownership",
    "run_node": "node",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
