"""Whether a node's keys are those of its namespace, looked at before it takes part.

A node with another cluster's keys opens nothing that is stored, and would take partitions all the same: their actors would stand still,
and what it starts itself nobody else could read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sojourn.broker.frames import FrameStore
from sojourn.codecs.errors import RecordError, SojournError
from sojourn.codecs.seal import read_index

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects
    from sojourn.codecs.keyring import Keyring

SAMPLE: Final = 64
"""Of the oldest records, and of the newest: a key that was taken out too early leaves some of either readable."""


class NoKeyFits(SojournError):
    """None of a node's keys sealed any of the records that were looked at."""

    def __init__(self, namespace: str, sealed_by: Iterable[str], known: Iterable[str]) -> None:
        """`sealed_by`: ids of the keys that sealed what is stored; `known`: those of the node's keys."""
        super().__init__(namespace, tuple(sealed_by), tuple(known))
        self.namespace: str = namespace
        self.sealed_by: tuple[str, ...] = self.args[1]
        self.known: tuple[str, ...] = self.args[2]

    def __str__(self) -> str:
        """Which keys are where."""
        return (
            f"the records of namespace {self.namespace!r} are sealed with {_words(self.sealed_by)}, this node has "
            f"{_words(self.known)}: give it the namespace's key file, or use another --namespace"
        )


async def check_keys(broker: Broker, subjects: Subjects, keyring: Keyring) -> None:
    """Look at some records, from any replica. A namespace without records takes any keys.

    Raises `NoKeyFits`, `BrokerError`.
    """
    store, found = FrameStore(broker, subjects), set[str]()
    for newest in (False, True):
        async for _, record in store.sample(SAMPLE, newest=newest):
            try:
                key = read_index(record.data).key_id
            except RecordError:
                continue  # `sojourn check` finds these
            if key in keyring.ids:
                return
            found.add(key)
    if found:
        raise NoKeyFits(subjects.namespace, sorted(found), keyring.ids)


def _words(keys: tuple[str, ...]) -> str:
    return f"key {keys[0]}" if len(keys) == 1 else f"keys {', '.join(keys)}"
