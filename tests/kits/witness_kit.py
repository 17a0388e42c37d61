"""The chaos harness's clients, witness and judge over a release of the chart: what was promised, what happened, what was lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from release_kit import Release, put_users
from sojourn.actors.client import Client
from sojourn.actors.errors import ResultTimeout
from sojourn.broker.errors import BrokerError
from sojourn.broker.frames import FrameStore
from sojourn.broker.roles import Role
from sojourn.broker.subjects import ActorId
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.seal import read_index

from tests.chaos.evidence import Death, Evidence, Promise, read_journal
from tests.chaos.judge import ENDED, judge
from tests.chaos.run import DEFECTS
from tests.chaos.watch import Watch
from tests.chaos.workload import Drive, stories

SETTLE_SECONDS: Final = 120.0
"""From the last disturbance until every workflow has ended and every stream is empty."""


@dataclass
class Witnessed:
    """Workflows of all kinds under way in a release, and everything that is to be judged."""

    release: Release
    client: Client
    drive: Drive
    watch: Watch
    driving: asyncio.Task[None]
    orders: list[Promise] = field(default_factory=list)

    async def order(self, name: str, numbers: range) -> list[Promise]:
        """Start orders, which wait for a signal."""
        return list(await asyncio.gather(*(self._order(f"{name}{n}", n) for n in numbers)))

    async def _order(self, actor: str, number: int) -> Promise:
        promise = Promise(actor, "order", "order", (number,))
        self.orders.append(promise)
        handle = await self.client.start(
            "order", id=actor, args=promise.args, request=f"r-{actor}", timeout=60
        )
        promise.started, promise.run = "acked", handle.run
        return promise

    async def asleep(self, orders: list[Promise], deployment: str) -> None:
        """Until all of these wait for their signal, on this version."""
        frames = FrameStore(self.release.brokers[0], self.release.subjects())
        wanted = {one.actor for one in orders}
        async with asyncio.timeout(60):
            while wanted:
                async for actor, record in frames.scan():
                    index = read_index(record.data)
                    if index.wait.startswith("receive go") and index.deployment == deployment:
                        wanted.discard(actor)
                await asyncio.sleep(0.1)

    async def pay(self, orders: list[Promise]) -> None:
        """Send their signals."""
        await asyncio.gather(*(self.drive.mail(one, one.actor, "go", "go", 100) for one in orders))

    async def paid(self, orders: list[Promise], version: str) -> None:
        """All of these end, under the version's code from the first line to the last."""
        for one in orders:
            try:
                one.told = "completed", await self.client.handle(one.actor).result(timeout=90)
            except ResultTimeout as late:
                late.add_note(str(await self.release.sojourn("reader", "describe", one.actor)))
                raise
            assert one.told[1] == {"began": version, "ended": version, "total": one.args[0] + 100}

    async def settle(self) -> list[str]:
        """Let everything end; what did not in time."""
        self.drive.faults_over.set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS
        done, _ = await asyncio.wait((self.driving,), timeout=SETTLE_SECONDS)
        trouble = list(self.drive.trouble) if done else ["clients still wait"]
        while loop.time() < deadline:
            with suppress(BrokerError):
                ended = all(one.status in ENDED and one.sealed for one in self.watch.newest.values())
                if ended and await self.watch.caught_up() and not await self.watch.leftovers():
                    break
            await asyncio.sleep(0.3)
        return trouble

    async def judged(self) -> dict[str, list[str]]:
        """What the judge finds once everything has ended; empty when nothing was lost and nothing done twice."""
        trouble = await self.settle()
        return judge(await self._evidence([*trouble, *self.watch.witness.defects]))

    async def _evidence(self, trouble: list[str]) -> Evidence:
        release, watch, subjects = self.release, self.watch, self.release.subjects()
        node_of = {lease.pid: lease.node for lease in watch.all_leases()}

        def node(pid: int) -> str:
            return node_of.get(pid, f"worker {pid}")

        executions, plains = read_journal(release.journal)
        code, document = await release.sojourn("admin", "check", "--key-file", str(release.place / "key"))
        check = [str(finding) for finding in document["findings"]] if document else [f"exit code {code}"]
        return Evidence(
            promises=[*self.drive.promises, *self.orders],
            executions=[one._replace(node=node(one.pid)) for one in executions],
            plains=plains,
            commits=watch.commits,
            unseen=watch.witness.unseen(),
            records=watch.newest,
            leases=watch.all_leases(),
            deaths=[
                Death(one.pid, node(one.pid), one.began, one.at)
                for one in release.kubelet.ended
                if one.container in ("node", "worker")
            ],
            partition_of={actor: subjects.partition_of(ActorId(actor)) for actor in watch.newest},
            left=await watch.leftovers(),
            dead=await watch.dead_letters(),
            check=check,
            logs=[*watch.unreadable, *_defects(release.place)],
            trouble=trouble,
        )


def _defects(place: Path) -> list[str]:
    found = []
    for log in sorted(place.glob("pods/*.log")):
        text = log.read_text(errors="replace")
        if any(word in text for word in DEFECTS):
            found.append(f"{log.name}: {text[-900:]}")
    return found


@asynccontextmanager
async def witnessed(
    release: Release, password: str, *, workflows: int, seconds: float
) -> AsyncIterator[Witnessed]:
    """Start workflows of all kinds, spread over so many seconds, in a release that was installed after `prepare`."""
    (release.place / "key").write_text(release.secret("shop-sojourn-keys")["key"])
    (release.place / "key").chmod(0o600)
    keyring = Keyring.from_file(release.place / "key")
    client = await release.client(Role.ADMIN)
    url = f"nats://witness:{password}@{release.server()}"
    watch = Watch(await release.broker(Role.ADMIN), release.subjects(), keyring, [url])
    drive = Drive(client, stories(7, workflows, seconds), 7)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(watch.run()), asyncio.create_task(drive.run())]
    try:
        yield Witnessed(release, client, drive, watch, tasks[1])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def prepare(release: Release) -> str:
    """Before the install: the witness's user; its password."""
    password = secrets.token_hex(16)
    put_users(release.kubernetes, password)
    return password
