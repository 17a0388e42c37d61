"""The command tree: names, where their code lives, and suggestions for misspelled ones."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Final

import click

COMMANDS: Final[dict[str, str]] = {
    "demo": "demo:demo",
    "dev": "dev:dev",
    "node": "node:node",
    "worker": "worker:worker",
    "start": "actors:start",
    "signal": "actors:signal",
    "result": "actors:result",
    "describe": "actors:describe",
    "stack": "stack:stack",
    "list": "actors:list_actors",
    "cancel": "control:cancel",
    "terminate": "control:terminate",
    "pause": "control:pause",
    "resume": "control:resume",
    "release": "control:release",
    "nodes": "operators:nodes",
    "drain": "drain:drain",
    "queues": "queues:queues",
    "versions": "versions:versions",
    "census": "versions:census",
    "dead": "dead:dead",
    "check": "operators:check",
    "topology": "operators:topology",
    "roles": "roles:roles",
    "keys": "keys:keys",
    "restore": "restore:restore",
    "doctor": "doctor:doctor",
}
"""Each command as `module:attribute` inside `sojourn.cli`, in the order of the help page."""


class _LazyCommands(click.Group):
    """A group whose commands are imported when they are asked for, so that `sojourn signal` loads no
    engine.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, attribute = where.split(":")
        command = getattr(import_module(f"sojourn.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, n=2) if args else []
            if not near:
                raise
            meant = " or ".join(f"`{name}`" for name in near)
            raise click.UsageError(f"{error.message} Did you mean {meant}?", ctx) from None


@click.group(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sojourn", message="sojourn %(version)s")
def cli() -> None:
    """Durable workflows that store the suspended coroutine, on NATS.

    Try `sojourn demo`, or `sojourn dev app.py` for your own code. Every command but `node` and `worker` takes --json.

    Exit codes: 0 done; 1 the answer is a failure; 2 wrong usage; 3 no broker or no owner answers;
    4 no such actor, workflow or letter; 5 not in the time given; 6 refused.
    """
