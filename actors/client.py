"""`Client`: start workflows and reach them from outside. It holds no key, unpickles nothing, and needs none
of their code.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import random as draw
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final, overload

import orjson
from sojourn.broker.seam import Broker
from sojourn.broker.subjects import ActorId, Subjects, actor_id
from sojourn.codecs.data import Type
from sojourn.codecs.durations import Duration, duration
from sojourn.codecs.record import Index

from .errors import AlreadyStarted, NoSuchWorkflow, Refused
from .handle import CONTROL_TIMEOUT, Handle
from .requests import Requests
from .workflow import Workflow, WorkflowCall

if TYPE_CHECKING:
    from sojourn.broker.nats import NatsOptions

R = TypeVar("R")
IfExists = Literal["reject", "join", "restart"]

_JSON = Type(Any)
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_=-]+")
MAX_TAGS, MAX_TAG = 64, 200


@final
class Client:
    """Start workflows, find them again, list them.

        async with Client.connect("nats://127.0.0.1:4222") as client:
            handle = await client.start(onboard("ada"), id="user-ada")
            await handle.signal(approval, Decision(ok=True))
            receipt = await handle.result(timeout="1h")

    One connection serves any number of requests at a time.
    """

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        *,
        by: str = "",
        inbox_prefix: str = "_INBOX",
        ids: Callable[[], str] = lambda: secrets.token_hex(16),
        random: Callable[[], float] = draw,
    ) -> None:
        """Over a connection that is there already, and stays open after it; `Client.connect` makes one of its
        own.

        `by` is recorded with what this client asks for. `inbox_prefix` is where this user may receive
        answers. `ids` must be unguessable.
        """
        self._requests = Requests(broker, subjects, ids=ids, random=random, inbox_prefix=inbox_prefix)
        self._by = by

    @staticmethod
    @asynccontextmanager
    async def connect(
        servers: str | NatsOptions = "nats://127.0.0.1:4222", *, namespace: str = "default", by: str = ""
    ) -> AsyncIterator[Client]:
        """Connect, and close on leaving. `servers` is an address, several with commas, or `NatsOptions` with
        credentials.

        Raises `ConnectFailed`, and `StreamNotFound` if the namespace was never set up.
        """
        from sojourn.broker.errors import StreamNotFound
        from sojourn.broker.nats import NatsBroker, NatsOptions
        from sojourn.broker.topology import read_topology

        options = (
            NatsOptions(servers=tuple(servers.split(",")), name="sojourn client")
            if isinstance(servers, str)
            else servers
        )
        broker = await NatsBroker.connect(options)
        try:
            names = Subjects(namespace, 1)
            topology = await read_topology(broker, names)
            if topology is None:
                raise StreamNotFound(names.cluster_stream)
            client = Client(broker, topology.subjects, by=by, inbox_prefix=options.inbox_prefix)
            try:
                yield client
            finally:
                await client.close()
        finally:
            await broker.close()

    async def close(self) -> None:
        """Stop listening for answers; the connection stays open. Twice is fine."""
        await self._requests.close()

    @overload
    async def start(
        self,
        call: WorkflowCall[R],
        *,
        id: str | None = None,
        if_exists: IfExists = "reject",
        delay: Duration | None = None,
        tags: Iterable[str] = (),
        timeout: Duration = CONTROL_TIMEOUT,
        request: str | None = None,
    ) -> Handle[R]: ...
    @overload
    async def start(
        self,
        call: str,
        *,
        id: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        if_exists: IfExists = "reject",
        delay: Duration | None = None,
        tags: Iterable[str] = (),
        timeout: Duration = CONTROL_TIMEOUT,
        request: str | None = None,
    ) -> Handle[Any]: ...
    async def start(
        self,
        call: WorkflowCall[Any] | str,
        *,
        id: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        if_exists: IfExists = "reject",
        delay: Duration | None = None,
        tags: Iterable[str] = (),
        timeout: Duration = CONTROL_TIMEOUT,
        request: str | None = None,
    ) -> Handle[Any]:
        """Start a workflow, `start(onboard("ada"))` or by name `start("onboard", args=["ada"])`; return when
        its first record is stored.

        - `id`: 1 to 128 characters of `A-Z a-z 0-9 _ = -`; default a fresh one. The id makes a start happen
          once.
        - `if_exists`: "reject" raises `AlreadyStarted`, "join" returns a handle of the one that is there,
          "restart" ends it first.
        - `delay`: run its code after this time.
        - `tags`: to find it by, at most 64.
        - `request`: the id of this very request. A start that raised `NoAnswer` may have been stored: call
          again with its `actor` and `request`, and there will be one workflow and the same handle.

        Raises `PayloadError` for arguments that do not cross, `NoSuchWorkflow`, `Refused` for arguments its
        node cannot read, `InvalidName` for the id, `NoAnswer` after `timeout`.
        """
        if isinstance(call, WorkflowCall):
            call.use()  # whatever is wrong with it is raised here
        if if_exists not in ("reject", "join", "restart"):
            raise ValueError(f'if_exists={if_exists!r}: expected "reject", "join" or "restart"')
        name, encoded, workflow = _what(call, args, kwargs)
        actor = actor_id(id) if id is not None else self._fresh_id(name)
        body = {
            "request": request or self._requests.ids(),
            "workflow": name,
            "args": orjson.Fragment(encoded),
            "if_exists": if_exists,
            "delay": None if delay is None else duration(delay),
            "tags": _tags(tags),
            "by": self._by,
        }
        answer = await self._requests.ask(actor, "start", body, seconds=duration(timeout))
        if answer.get("ok"):
            run = str(answer.get("run", ""))
            return Handle(self._requests, actor, run=run, workflow=workflow, by=self._by)
        raise _start_error(actor, name, answer)

    def _fresh_id(self, workflow: str) -> ActorId:
        return actor_id(f"{_NOT_IN_IDS.sub('-', workflow)[:90]}-{self._requests.ids()[:32]}")

    @overload
    def handle(self, id: str) -> Handle[Any]: ...
    @overload
    def handle(self, id: str, workflow: Workflow[..., R]) -> Handle[R]: ...
    def handle(self, id: str, workflow: Workflow[..., Any] | None = None) -> Handle[Any]:
        """The actor of that id, whether it exists or not; `workflow` gives its results their types. Raises
        `InvalidName`.
        """
        if workflow is not None and not isinstance(workflow, Workflow):
            raise TypeError(
                f"handle(id, workflow): expected a @workflow function, received {type(workflow).__qualname__}"
            )
        return Handle(self._requests, actor_id(id), workflow=workflow, by=self._by)

    async def list(
        self,
        *,
        workflow: str | Workflow[..., Any] | None = None,
        status: str | None = None,
        stage: str | None = None,
        tag: str | None = None,
    ) -> AsyncIterator[Index]:
        """The public facts of all actors that fit, in no order. A view: it may be a moment behind."""
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        async for index in self._requests.indexes():
            if (
                (name is None or index.workflow == name)
                and (status is None or status in (index.status, index.hold))
                and (stage is None or index.stage == stage)
                and (tag is None or tag in index.tags)
            ):
                yield index

    def __repr__(self) -> str:
        return f"<Client of {self._requests.subjects.namespace}>"


def _what(
    call: WorkflowCall[Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[str, bytes, Workflow[..., Any] | None]:
    """Name, encoded arguments and definition of what is to be started."""
    if isinstance(call, WorkflowCall):
        if args or kwargs:
            raise TypeError(
                f"start({call.workflow.name}(...)): the arguments are in the call already; args= and "
                "kwargs= go with a name"
            )
        return call.workflow.name, call.encoded(), call.workflow
    if isinstance(call, str):
        if isinstance(args, str | bytes):
            raise TypeError(
                f"args={args!r}: expected a list of arguments; for one argument write args=[{args!r}]"
            )
        return call, _JSON.encode([list(args), dict(kwargs or {})]), None
    if isinstance(call, Workflow):
        raise TypeError(f"start({call.name}): the arguments are missing; write start({call.name}(...))")
    raise TypeError(
        "start() needs a workflow call such as onboard(user), or a workflow's name; received "
        f"{type(call).__qualname__}"
    )


def _tags(tags: Iterable[Any]) -> list[str]:
    listed = [tags] if isinstance(tags, str) else list(tags)
    if len(listed) > MAX_TAGS or not all(isinstance(tag, str) and 0 < len(tag) <= MAX_TAG for tag in listed):
        raise ValueError(f"tags: expected at most {MAX_TAGS} texts of 1 to {MAX_TAG} characters")
    return listed


def _start_error(actor: ActorId, workflow: str, answer: Mapping[str, Any]) -> Exception:
    code, message = str(answer.get("error", "")), str(answer.get("message", ""))
    match code:
        case "already started":
            return AlreadyStarted(
                actor,
                run=str(answer.get("run", "")),
                status=str(answer.get("status", "")),
                workflow=str(answer.get("workflow", "")),
            )
        case "no such workflow":
            return NoSuchWorkflow(workflow, text=message)
        case _:
            return Refused(actor, code=code, message=message)
