"""`sojourn check APP`: what would fail when it runs, found in the code."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .app_code import importable, load
from .failures import Exit
from .output import Output, counted

if TYPE_CHECKING:
    from sojourn.actors.registry import Registry
    from sojourn.codecs.check import Finding


def check_code(output: Output, app: str) -> Exit | None:
    """Print the awaits across which a resource or a large value is alive, in all code that the app's workflows lead to.

    Exit code 1 when there are any.
    """
    name = importable(app)
    registry = load(name)
    if name.partition(":")[2] == "" and not registry.workflows:
        output.note(f"{app} defines no workflow")
    functions, findings = findings_of(registry)
    if output.json:
        documents = [dataclasses.asdict(finding) for finding in findings]
        output.document({"workflows": len(registry.workflows), "functions": functions, "findings": documents})
        return Exit.FAILED if findings else None
    for finding in findings:
        output.say(str(finding))
    what = f"{counted(len(registry.workflows), 'workflow')}, {counted(functions, 'function')}"
    output.say(
        f"{what}: {counted(len(findings), 'await')} to mend" if findings else f"{what}: nothing found",
        "red" if findings else "green",
    )
    return Exit.FAILED if findings else None


def findings_of(registry: Registry) -> tuple[int, list[Finding]]:
    """How many functions the workflows lead to, and what is found in them, by file and line. Steps are not entered: what
    they hold does not move.
    """
    from sojourn.actors.lifespan import Lifespan
    from sojourn.actors.step import Step
    from sojourn.codecs.check import check_function
    from sojourn.codecs.reach import reachable

    functions = reachable(
        registry.workflows.values(), enter=lambda value: not isinstance(value, Step | Lifespan)
    )
    found = {finding for function in functions for finding in check_function(function)}
    return len(functions), sorted(found, key=lambda each: (each.file, each.line, each.variable))
