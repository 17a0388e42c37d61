"""Commands about deployments: which one new actors start on, who still sleeps in which, and when one may go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from .connection import Connection, connection_options, operator, reported
from .failures import CommandFailed, Exit
from .output import Output, age, clean, counted
from .standing import print_standing
from .values import DurationValue

if TYPE_CHECKING:
    from sojourn.cluster.census import Census, DeploymentCensus
    from sojourn.cluster.deployments.versions import Policy

LINES: Final = 40
"""Source lines shown; `--json` has all."""
POLL_SECONDS: Final = 2.0
OURS: Final = ("sojourn.codecs.", "sojourn.broker.", "sojourn.actors.", "sojourn.cluster.")


@click.group()
def versions() -> None:
    """Deployments: set where new workflows start, see who still needs an old one, wait until nobody does."""


@versions.command("list")
@connection_options
@reported
async def list_versions(output: Output, connection: Connection) -> None:
    """List the deployments: where new workflows start, living nodes, and how many workflows still sleep in each."""
    found = await _census(output, connection)
    if output.json:
        output.document(_document(found))
        return
    rows = sorted(found.deployments.values(), key=lambda one: (not one.receives, -one.suspended, one.label))
    output.table(
        ("deployment", "new start", "nodes", "asleep", "need it", "on its lane", "no node", ""),
        (
            (
                one.label,
                _share(one, found.policy),
                one.nodes,
                one.suspended,
                one.needing,
                one.on_lane or "",
                one.without_node or "",
                _state(one),
            )
            for one in rows
        ),
    )
    for one in rows:
        if one.receives and not one.nodes:
            output.say(
                f"{clean(one.label)} has no nodes: until it does, what would start on it starts on a deployment that has; "
                "`sojourn versions set-current LABEL` chooses another",
                "yellow",
            )
    if found.without_node():
        output.say(
            f"{counted(found.without_node(), 'workflow')} cannot go on: no living node has the code",
            "yellow",
        )


@versions.command()
@click.argument("label")
@connection_options
@reported
async def show(output: Output, connection: Connection, label: str) -> None:
    """Show who still sleeps in deployment LABEL: by source line, and by the code they need."""
    one = _one(await _census(output, connection), label)
    if output.json:
        output.document(_one_document(one))
        return
    now = time.time()
    output.say(f"deployment {clean(one.label)}: {_words(one)}", "bold")
    _lines(output, [one], now)
    needs: dict[tuple[str, str], tuple[int, float]] = {}
    for group in one.pins:
        code = f"deployment {group.pinned_to}" if group.pinned_to else _functions(group.pin)
        key = code, ", ".join(group.others) or "nothing else"
        count, oldest = needs.get(key, (0, group.oldest))
        needs[key] = count + group.count, min(oldest, group.oldest)
    if needs:
        output.table(
            ("asleep", "oldest", "needs", "can run on"),
            [(count, age(now - oldest), *key) for key, (count, oldest) in needs.items()][:LINES],
        )


@versions.command("set-current")
@click.argument("label")
@connection_options
@reported
async def set_current(output: Output, connection: Connection, label: str) -> None:
    """Start new workflows on deployment LABEL from now on. Ends a ramp. Needs the rights of an admin."""
    await _change(output, connection, lambda _: {"current": label})


@versions.command()
@click.argument("weights", nargs=-1, required=True, metavar="LABEL=WEIGHT...")
@connection_options
@reported
async def ramp(output: Output, connection: Connection, weights: tuple[str, ...]) -> None:
    """Share new workflows out by weight, such as `v1=90 v2=10`. `set-current` ends it. Needs the rights of an admin."""
    shares = dict(_weight(text) for text in weights)
    if not any(shares.values()):
        raise click.BadParameter("expected at least one weight above 0", param_hint="LABEL=WEIGHT")
    await _change(output, connection, lambda policy: {"current": policy.current, "ramp": shares})


@versions.command()
@click.argument("label")
@click.option("--wait", is_flag=True, help="Return when the last workflow that needs it has gone.")
@click.option("--timeout", type=DurationValue(), help="How long to wait with --wait.  [default: for ever]")
@connection_options
@reported
async def drain(
    output: Output, connection: Connection, label: str, wait: bool, timeout: float | None
) -> Exit | None:
    """Tell whether the nodes of deployment LABEL may go: nothing new starts on it, and no workflow needs it any more.

    Exit code 0 when it is drained, 1 when it is not, 5 when it is not in the time given, 6 while new workflows start on it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    said = -1
    while True:
        one = _one(await _census(output, connection), label)
        if one.receives:
            raise CommandFailed(
                Exit.REFUSED,
                f"new workflows start on {label}",
                "`sojourn versions set-current` another one first.",
            )
        if one.drained or not wait:
            break
        if deadline is not None and time.monotonic() >= deadline:
            break
        if one.needing != said:
            said = one.needing
            output.note(f"{counted(one.needing, 'workflow')} left")
        await asyncio.sleep(POLL_SECONDS if deadline is None else min(POLL_SECONDS, timeout or POLL_SECONDS))
    if output.json:
        output.document(_one_document(one))
    elif one.drained:
        output.say(f"{label} is drained: {_words(one)}", "green")
    else:
        output.say(f"{label} is not drained: {_words(one)}", "yellow")
        _lines(output, [one], time.time())
    if one.drained:
        return None
    return Exit.TIMED_OUT if wait else Exit.FAILED


@click.command()
@click.option("--deployment", "label", help="Only of this deployment.")
@click.option(
    "--by",
    type=click.Choice(("line", "workflow", "stage", "wait")),
    default="line",
    show_default=True,
    help="What to group by: the source line they sleep at, or workflow, stage or wait, with a column for each state.",
)
@click.option("--workflow", help="Only this workflow; not with --by line.")
@connection_options
@reported
async def census(
    output: Output, connection: Connection, label: str | None, by: str, workflow: str | None
) -> None:
    """Where all workflows stand: grouped by deployment, function and source line, or by what --by says, with counts and ages."""
    if by != "line":
        await print_standing(output, connection, by, label=label, workflow=workflow)
        return
    if workflow is not None:
        raise click.UsageError("--workflow goes with --by workflow, stage or wait")
    found = await _census(output, connection)
    if label is not None:
        chosen: Sequence[DeploymentCensus] = [_one(found, label)]
    else:
        chosen = sorted(found.deployments.values(), key=lambda one: (-one.suspended, one.label))
    if output.json:
        output.document([{"deployment": one.label, "lines": _line_documents(one)} for one in chosen])
        return
    if not any(one.lines for one in chosen):
        output.say("No workflow sleeps; `sojourn census --by workflow` counts those that have ended too.")
        return
    _lines(output, chosen, time.time())


async def _census(output: Output, connection: Connection) -> Census:
    from sojourn.cluster.census import take_census

    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        with output.counting("records read") as count:
            return await take_census(broker, subjects, count)


async def _change(
    output: Output, connection: Connection, wanted: Callable[[Policy], Mapping[str, Any]]
) -> None:
    """Change the policy by compare-and-swap, and hint to the nodes to look at once."""
    from sojourn.broker.cluster_keys import ClusterKeys
    from sojourn.cluster.deployments.versions import Policy, UnknownDeployment, change_policy
    from sojourn.cluster.tenure.directory import Directory

    def change(policy: Policy) -> Policy:
        return Policy(**wanted(policy), by=operator(), at=time.time())

    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        try:
            policy = await change_policy(ClusterKeys(broker, subjects), change)
        except UnknownDeployment as error:
            raise CommandFailed(Exit.NOT_FOUND, str(error)) from None
        await broker.send(subjects.members())
        view = await Directory(broker, subjects).poll(subjects.partitions)
    living = {member.deployment for member in view.members.values() if member.state != "draining"}
    if output.json:
        output.document({"current": policy.current, "ramp": policy.ramp, "by": policy.by, "at": policy.at})
    elif policy.ramp:
        total = sum(policy.ramp.values())
        shares = ", ".join(f"{label} {100 * weight / total:.3g}%" for label, weight in policy.ramp.items())
        output.say(f"new workflows start on {shares}", "green")
    else:
        output.say(f"new workflows start on {policy.current}", "green")
    for label in sorted(policy.labels() - living):
        output.note(
            f"{clean(label)} has no living nodes: until it does, what would start on it starts on a deployment that has."
        )


def _weight(text: str) -> tuple[str, int]:
    label, equals, weight = text.rpartition("=")
    if not equals or not label or not weight.isdigit():
        raise click.BadParameter(
            f"expected LABEL=WEIGHT with a whole number, received {clean(text)!r}", param_hint="LABEL=WEIGHT"
        )
    return label, int(weight)


def _one(found: Census, label: str) -> DeploymentCensus:
    one = found.deployments.get(label)
    if one is None:
        known = ", ".join(sorted(found.deployments)) or "none"
        raise CommandFailed(Exit.NOT_FOUND, f"no deployment {clean(label)!r}", f"There are: {known}.")
    return one


def _share(one: DeploymentCensus, policy: Policy) -> str:
    if policy.ramp:
        total = sum(policy.ramp.values())
        return f"{100 * one.weight / total:.3g}%" if one.weight else ""
    return "all" if one.current else ""


def _state(one: DeploymentCensus) -> str:
    if one.receives:
        state = "current" if one.current else "ramp"
        return state if one.nodes else f"{state}, no nodes"
    return "drained" if one.drained else "needed" if one.nodes else "needed, no nodes"


def _words(one: DeploymentCensus) -> str:
    parts = [
        _state(one),
        counted(one.nodes, "living node"),
        f"{one.suspended} asleep",
        f"needed by {one.needing}",
    ]
    if one.on_lane:
        parts.append(f"{one.on_lane} on its lane")
    if one.without_node:
        parts.append(f"{one.without_node} without a node that has the code")
    return ", ".join(parts)


def _functions(pin: Sequence[str]) -> str:
    """The functions and classes of a pin; what is Sojourn's own is of interest only where there is nothing else."""
    names = [part.partition("#")[0].partition("~")[0] for part in pin]
    theirs = [name for name in names if not name.startswith(OURS)]
    return ", ".join(theirs or names) or "its workflow, not begun"


def _lines(output: Output, chosen: Sequence[DeploymentCensus], now: float) -> None:
    rows = [(one.label, line) for one in chosen for line in one.lines]
    output.table(
        ("deployment", "asleep", "oldest", "at", "line"),
        (
            (
                label,
                line.count,
                age(now - line.oldest),
                f"{line.module}:{line.function}:{line.line}",
                line.source,
            )
            for label, line in rows[:LINES]
        ),
    )
    if len(rows) > LINES:
        output.note(f"{len(rows) - LINES} more lines; --json has all.")


def _line_documents(one: DeploymentCensus) -> list[dict[str, Any]]:
    return [
        {
            "module": line.module,
            "function": line.function,
            "line": line.line,
            "source": line.source,
            "count": line.count,
            "oldest": line.oldest,
        }
        for line in one.lines
    ]


def _one_document(one: DeploymentCensus) -> dict[str, Any]:
    return {
        "deployment": one.label,
        "registered": one.registered,
        "current": one.current,
        "weight": one.weight,
        "receives": one.receives,
        "drained": one.drained,
        "nodes": one.nodes,
        "suspended": one.suspended,
        "needing": one.needing,
        "on_lane": one.on_lane,
        "without_node": one.without_node,
        "lines": _line_documents(one),
        "pins": [
            {
                "pin": list(group.pin),
                "pinned_to": group.pinned_to,
                "others": list(group.others),
                "count": group.count,
                "oldest": group.oldest,
            }
            for group in one.pins
        ],
    }


def _document(found: Census) -> dict[str, Any]:
    return {
        "current": found.policy.current,
        "ramp": found.policy.ramp,
        "deployments": [_one_document(one) for _, one in sorted(found.deployments.items())],
    }
