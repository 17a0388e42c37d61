"""Which leases live: asked before a pending call of another runner is taken over (PROTOCOL 3).

A pending call names "<node>/<lease>" and is not started by a new owner while that lease lives. The answer
comes from memory and errs towards "lives": a lease that was just taken may not be in the last poll yet. What
was asked about, and what is gone since the last poll, is settled by leader reads; a lease that is over never
comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from .directory import Directory
from .ownership import View

REMEMBERED: Final = 1024
"""Leases known to be over; an older one is asked about again."""


class Runners:
    """Remembers which leases are over. Engine loop only."""

    def __init__(self, directory: Directory, on_ended: Callable[[str], None]) -> None:
        """`on_ended(runner)` is called once a leader read has shown that a lease is over."""
        self._directory = directory
        self._on_ended = on_ended
        self._asked: set[str] = set()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        """How many are over, and how many are asked about."""
        return f"<Runners ended={len(self._ended)} asked={sorted(self._asked)}>"

    def lives(self, runner: str, view: View) -> bool:
        """Whether the lease may still live. True also for one never heard of, which the next `settle` asks
        about.
        """
        node, _, lease = runner.partition("/")
        member = view.members.get(node)
        if member is not None and member.lease == lease:
            return True
        if runner in self._ended:
            return False
        self._asked.add(runner)
        return True

    def is_asked(self) -> bool:
        """Whether somebody waits for `settle`."""
        return bool(self._asked)

    def over(self, runner: str) -> None:
        """This lease is over for certain; nobody is told."""
        self._ended[runner] = None
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    async def settle(self, before: View, view: View, asked: set[str]) -> None:
        """Read from the leader which of the runners `asked` about, or gone between two polls, are over.

        `asked` was taken by `take_asked` before `view` was polled. Raises `BrokerError`; then nothing is
        forgotten.
        """
        living = {member.runner for member in view.members.values()}
        gone = (asked | {member.runner for member in before.members.values()}) - living
        try:
            for runner in sorted(gone):
                node, _, lease = runner.partition("/")
                found = (await self._directory.member(node)).value if node else None
                if found is None or found.lease != lease:
                    self.over(runner)
                    self._on_ended(runner)
        except BaseException:
            self._asked |= asked
            raise

    def take_asked(self) -> set[str]:
        """The runners asked about so far; a poll that begins now can settle them."""
        asked, self._asked = self._asked, set()
        return asked

    def put_back(self, asked: set[str]) -> None:
        """The poll failed: they are still asked about."""
        self._asked |= asked
