"""What `import sojourn` offers, pinned: a name here is a promise to users."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sojourn

PUBLIC = """
AlreadyStarted Cancelled CannotSuspend Channel Child ChildCancelled ChildFailed ChildTerminated Client
ContextNotDeclared declare_variable register_moved
Description FrameTooLarge Handle LimitExceeded Limits Lock MailboxFull NeverAwaited NoSuchActor
NoSuchChannel NoSuchWorkflow NotInWorkflow PinNotSatisfied ReceiveTimeout Registry Rejected ResultTimeout
Retry RetryLater Semaphore SojournError SpawnRefused Step StepCall StepFailed StepTimeout TaskGroup Workflow
WorkflowCall WorkflowCancelled WorkflowFailed WorkflowQuarantined WorkflowTerminated checkpoint create_task
current gather lifespan map publish_state race receive receive_message resource send sleep sleep_until spawn
stage step tag timeout wait workflow
DeadLettered Deadlock DefinitionError DuplicateName NoAnswer NoSuchQueue NoSuchResource NoSuchStep OnlyInWorkflow
Refused StepStuck UnknownIntention WorkersLost
BrokerError ConnectFailed InvalidName OutcomeUnknown StreamNotFound
DataTypeError DurationError PayloadError PayloadTooDeep PayloadTooLarge UnsupportedInterpreter
""".split()  # noqa: SIM905  # one word per name reads better than sixty quoted ones


def test_the_public_names_are_these() -> None:
    assert sorted(sojourn.__all__) == sorted(PUBLIC)
    assert dir(sojourn) == sorted([*sojourn.__all__, "__version__"])


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(sojourn, name)
    assert (getattr(value, "__doc__", None) or "").strip()


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse(Path(sojourn.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    where = {name: module for module, names in sojourn._WHERE.items() for name in names}
    assert seen == where
    assert sorted(where) == sorted(sojourn.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'wrokflow'"):
        sojourn.wrokflow  # noqa: B018  # reading it is the test


def test_every_error_of_the_actors_layer_can_be_imported_from_the_top() -> None:
    from sojourn.actors import errors

    own = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == errors.__name__
        and not name.startswith("_")
    }
    assert own <= set(sojourn.__all__)
