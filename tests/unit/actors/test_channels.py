"""Channels, and which of them a workflow can receive on as its code tells."""

from __future__ import annotations

import asyncio
import pickle
import sys
import types
from dataclasses import dataclass
from typing import Any, cast

import pytest
import sojourn.actors.verbs as verbs
from sojourn.actors.channel import Channel
from sojourn.actors.errors import OnlyInWorkflow
from sojourn.actors.inside import entered
from sojourn.actors.intentions import Receive
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, receive, receive_message
from sojourn.actors.workflow import Workflow, workflow
from sojourn.broker.errors import InvalidName
from sojourn.codecs.errors import DataTypeError

R = Registry()


@dataclass
class Decision:
    ok: bool


approval = Channel("approval", Decision)
numbers = Channel("numbers", int)
anything = Channel("anything")
other_numbers = Channel("numbers", str)


def test_a_channel_checks_its_name_and_type_when_it_is_made() -> None:
    with pytest.raises(InvalidName, match="a channel name"):
        Channel("a.b")
    with pytest.raises(DataTypeError):
        Channel("good", types.ModuleType)
    assert approval.type.decode(b'{"ok":true}') == Decision(True)
    assert anything.type.decode(b"[1]") == [1]


def test_channels_are_values() -> None:
    assert pickle.loads(pickle.dumps(approval)) == approval == Channel("approval", Decision)
    assert len({approval, Channel("approval", Decision), numbers, anything}) == 3
    assert numbers != other_numbers
    assert numbers != "numbers"
    assert repr(approval) == "Channel('approval', Decision)"
    assert repr(anything) == "Channel('anything')"
    assert len(pickle.dumps(anything)) < len(pickle.dumps(approval)) < 150
    with pytest.raises(AttributeError, match="cannot be changed"):
        cast("Any", approval).name = "x"


def test_receiving_outside_a_workflow_says_what_to_do_instead() -> None:
    with pytest.raises(OnlyInWorkflow, match=r"client\.handle\(id\)\.signal"):
        approval.receive()


def test_receive_is_an_intention() -> None:
    with entered(cast("Any", object())):
        plain, timed = approval.receive(), approval.receive(timeout="1m", default=None)
        assert plain == Receive((approval,))
        assert timed == Receive((approval,), 60.0, None, True)
        plain.__await__()
        timed.__await__()


# scanning


async def helper() -> int:
    return await numbers.receive()


def ordinary(channel: Channel[Any]) -> Any:
    return channel


class Machine:
    async def go(self) -> Decision:
        return await approval.receive()

    @staticmethod
    async def stop() -> Any:
        return await receive("stop")

    @property
    async def end(self) -> Any:
        return await receive("end")


@step(registry=R)
async def sends_elsewhere(x: int) -> int:
    return len(str(numbers)) + x


machine = Machine()
handlers = {"a": helper}


@workflow(registry=R)
async def direct() -> Decision:
    return await approval.receive(timeout="3d")


@workflow(registry=R)
async def by_name() -> Any:
    return await receive("yes", "no", timeout=3), await receive_message("maybe")


@workflow(registry=R)
async def with_keywords(seconds: float) -> Any:
    first = await receive("yes", approval, timeout=max(seconds, float("3")), default=None)
    second = await receive(numbers, timeout=seconds)
    return first, second, await receive_message("maybe", timeout=seconds + 1)


@workflow(registry=R)
async def by_module() -> Any:
    return await verbs.receive("spelled"), await verbs.receive(approval)


@workflow(registry=R)
async def through_helpers() -> Any:
    await sends_elsewhere(1)
    return await helper(), await gather(approval.receive(), receive("side"))


@workflow(registry=R)
async def through_a_workflow() -> Any:
    return await direct()


@workflow(registry=R)
async def through_a_class() -> Any:
    return await Machine().go()


@workflow(registry=R)
async def through_an_instance() -> Any:
    return await machine.go()


@workflow(registry=R)
async def through_a_table() -> Any:
    return await handlers["a"]()


@workflow(registry=R)
async def nested() -> Any:
    async def inner() -> Any:
        return await receive("inner")

    return [await inner() for _ in range(2)]


@workflow(registry=R)
async def none_at_all(x: int) -> int:
    await sends_elsewhere(x)
    await asyncio.sleep(0)
    return sum([x, 1])


@workflow(registry=R)
async def two_types() -> Any:
    return await numbers.receive(), await other_numbers.receive()


@dataclass
class Plan:
    steps: int

    async def carry_out(self) -> Any:
        return await receive("carried")


@workflow(registry=R)
async def annotated(plan: Plan) -> Any:
    return await plan.carry_out()


@pytest.mark.parametrize(
    ("flow", "names"),
    [
        (direct, {"approval"}),
        (by_name, {"yes", "no", "maybe"}),
        (with_keywords, {"yes", "approval", "numbers", "maybe"}),
        (by_module, {"spelled", "approval"}),
        (through_helpers, {"numbers", "approval", "side"}),
        (through_a_workflow, {"approval"}),
        (through_a_class, {"approval", "stop", "end"}),
        (through_an_instance, {"approval", "stop", "end"}),
        (through_a_table, {"numbers"}),
        (nested, {"inner"}),
        (none_at_all, set()),
        (two_types, {"numbers"}),
        (annotated, {"carried"}),
    ],
    ids=lambda value: value.name if isinstance(value, Workflow) else "",
)
def test_channels_are_found_in_the_code(flow: Workflow[..., Any], names: set[str]) -> None:
    assert flow.channels is not None
    assert set(flow.channels) == names


def test_found_channels_have_their_types() -> None:
    assert direct.channels is not None
    found = direct.channels["approval"]
    assert found is not None
    assert found.annotation is Decision
    assert by_name.channels == {"yes": None, "no": None, "maybe": None}
    assert two_types.channels == {"numbers": None}


@workflow(registry=R)
async def computed(name: str) -> Any:
    return await receive(name)


@workflow(registry=R)
async def by_format(n: int) -> Any:
    return await receive(f"answer-{n}")


@workflow(registry=R)
async def by_choice(n: int) -> Any:
    return await receive("a" if n else "b")


@workflow(registry=R)
async def given(channel: str) -> Any:
    return await ordinary(Channel(channel)).receive()


@workflow(registry=R)
async def unpacked(names: list[str]) -> Any:
    return await receive(*names)


@workflow(registry=R)
async def imports_inside() -> Any:
    from sojourn.actors.verbs import receive as take

    return await take("hidden")


@workflow(registry=R)
async def as_a_value() -> Any:
    take = receive
    return await take("hidden")


@pytest.mark.parametrize(
    "flow",
    [computed, by_format, by_choice, given, unpacked, imports_inside, as_a_value],
    ids=lambda flow: flow.name,
)
def test_what_cannot_be_told_means_any_channel(flow: Workflow[..., Any]) -> None:
    assert flow.channels is None


def test_code_that_goes_on_without_end_means_any_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    from sojourn.actors import channel_scan

    monkeypatch.setattr(channel_scan, "MAX_CODE_OBJECTS", 1)
    assert channel_scan.channels_of(through_helpers.fn) is None


def test_a_module_is_read_only_once_it_is_complete() -> None:
    """A channel defined below its workflow is found: the code is read when first asked."""
    source = """
from sojourn.actors.workflow import workflow
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
@workflow(registry=Registry())
async def above():
    return await below.receive()
below = Channel("below")
"""
    module = types.ModuleType("complete_module_of_this_test")
    sys.modules[module.__name__] = module
    try:
        exec(source, module.__dict__)
        assert module.above.channels == {"below": None}
    finally:
        del sys.modules[module.__name__]
