"""Mistakes that type checkers must find. Each line says what both find there; a mistake that is no longer found is itself an error,
because its comment is then unused.
"""

from __future__ import annotations

from dataclasses import dataclass

from sojourn import Channel, Client, Retry, gather, map, spawn, step, workflow


@dataclass
class Decision:
    ok: bool


approval = Channel("approval", Decision)


@step
async def add(a: int, b: int = 1) -> int:
    return a + b


@workflow
async def onboard(user: str) -> int:
    return await add(len(user))


async def wrong_arguments() -> None:
    await add("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await add(1, 2, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await add(1, c=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await add.options(timeout="1h")("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await onboard(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await map(add, ["one"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await onboard()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def wrong_results() -> None:
    text: str = await add(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    flow: str = await onboard("ada")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    child: str = await (await spawn(onboard("ada")))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    both: tuple[str, int] = await gather(add(1), add(2))  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    decision: int = await approval.receive()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    certain: Decision = await approval.receive(default=None)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    del text, flow, child, both, decision, certain


async def forgotten_parentheses_and_awaits(client: Client) -> None:
    await spawn(onboard)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.start(onboard)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    total: int = add(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del total


async def wrong_words(client: Client) -> None:
    await client.start(onboard("ada"), if_exists="replace")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.start(onboard("ada"), args=["ada"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await spawn(onboard("ada"), policy="kill")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handle = await client.start(onboard("ada"))
    await handle.signal(approval, {"ok": True})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await handle.signal(approval, Decision(True), wait="read")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    value: str = await handle.result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del value


@workflow  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def no_coroutine(user: str) -> int:
    return 1


@workflow(on_defect="ignore")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
async def wrong_option(user: str) -> int:
    return 1


@step(retry="5 times")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
async def wrong_retry() -> None:
    return None


@step(queue=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
async def wrong_queue() -> None:
    return None


@step(record="later")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
async def wrong_record() -> None:
    return None


Retry(attempts="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Channel(3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
