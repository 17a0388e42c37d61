"""Which suspended actors a new version of the code cannot resume, told from public facts alone.

A frame's pin names every function it stands in with the identity of its code. A deployment registers the identities of its workflows and
steps. So an actor whose pin names one of these functions with another identity sleeps inside code that has changed. (Helpers that are
no workflow and no step are not registered; their owner finds out when it wakes the actor, and holds it as `pin`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sojourn.cluster.deployments.deployment import Deployment
    from sojourn.codecs.record import Index


@dataclass(frozen=True, slots=True)
class Changed:
    """One actor and the functions of its frame that are different now."""

    index: Index
    functions: tuple[str, ...]


async def changed_actors(indexes: AsyncIterator[Index], deployment: Deployment) -> list[Changed]:
    """The actors that have not ended and sleep inside a function that this deployment has with other code."""
    found = []
    async for index in indexes:
        functions = () if index.status.ended else changed_functions(index.pin, deployment.identities())
        if functions:
            found.append(Changed(index, functions))
    return found


def changed_functions(pin: tuple[str, ...], identities: frozenset[str]) -> tuple[str, ...]:
    """Functions ("module:qualname") that the pin and the identities both name, with different code."""
    known = {identity.partition("#")[0] for identity in identities}
    return tuple(
        name
        for part in pin
        if part not in identities and (name := part.partition("#")[0]) in known and "#" in part
    )
