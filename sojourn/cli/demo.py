"""`sojourn demo`."""

from __future__ import annotations

import asyncio
import sys

import click

from .failures import Exit, told_in_words
from .output import Output


@click.command()
@click.option(
    "--workflows", type=click.IntRange(20, 2_000), default=200, show_default=True, help="Onboardings to run."
)
@click.option(
    "--seconds", type=click.IntRange(min=10), default=120, show_default=True, help="Give up after this time."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The verdict as one JSON document; the story goes to standard error.",
)
def demo(workflows: int, seconds: int, as_json: bool) -> None:
    """Show it: 200 workflows on three nodes; one node is killed, another drains.

    Starts a NATS server and three node processes of its own, runs in well under a minute and leaves nothing behind. Exit code 1
    if any workflow was lost or completed twice, judged by a journal that the steps write, not by Sojourn.
    """
    from rich.console import Console

    from sojourn.demo.run import Plan, run

    output = Output.standard(json=as_json)
    plan = Plan(onboardings=workflows, seconds=float(seconds))
    with told_in_words(output):
        verdict = asyncio.run(run(plan, console=Console(highlight=False, stderr=as_json)))
    if as_json:
        output.document({"figures": dict(verdict.rows), "problems": list(verdict.problems)})
    sys.exit(Exit.FAILED if verdict.problems else Exit.DONE)
