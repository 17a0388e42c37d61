"""Sojourn: durable workflows that store the suspended coroutine, on NATS.

What users import stands here; everything else is reached by its layer (`sojourn.codecs`, `sojourn.broker`,
`sojourn.actors`, `sojourn.cluster`) and may change. Names are loaded when they are first used (PEP 562): a
client that only signals imports neither the engine nor anything that knows frames. A test pins the list.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the table below, for type checkers and editors; a test compares them
    from .actors.channel import Channel
    from .actors.client import Client
    from .actors.current import current
    from .actors.errors import (
        AlreadyStarted,
        Cancelled,
        ChildCancelled,
        ChildFailed,
        ChildTerminated,
        DeadLettered,
        Deadlock,
        DefinitionError,
        DuplicateName,
        LimitExceeded,
        MailboxFull,
        NeverAwaited,
        NoAnswer,
        NoSuchActor,
        NoSuchChannel,
        NoSuchQueue,
        NoSuchResource,
        NoSuchStep,
        NoSuchWorkflow,
        NotInWorkflow,
        OnlyInWorkflow,
        ReceiveTimeout,
        Refused,
        Rejected,
        ResultTimeout,
        RetryLater,
        SpawnRefused,
        StepFailed,
        StepStuck,
        StepTimeout,
        UnknownIntention,
        WorkersLost,
        WorkflowCancelled,
        WorkflowFailed,
        WorkflowQuarantined,
        WorkflowTerminated,
    )
    from .actors.handle import Description, Handle
    from .actors.lifespan import lifespan, resource
    from .actors.limits import Limits
    from .actors.mapping import map
    from .actors.registry import Registry
    from .actors.retry import Retry
    from .actors.scopes import Lock, Semaphore, TaskGroup, timeout
    from .actors.step import Step, StepCall, step
    from .actors.verbs import (
        Child,
        checkpoint,
        create_task,
        gather,
        publish_state,
        race,
        receive,
        receive_message,
        send,
        sleep,
        sleep_until,
        spawn,
        stage,
        tag,
        wait,
    )
    from .actors.workflow import Workflow, WorkflowCall, workflow
    from .broker.errors import BrokerError, ConnectFailed, InvalidName, OutcomeUnknown, StreamNotFound
    from .codecs.context import declare_variable
    from .codecs.errors import (
        CannotSuspend,
        ContextNotDeclared,
        DataTypeError,
        DurationError,
        FrameTooLarge,
        PayloadError,
        PayloadTooDeep,
        PayloadTooLarge,
        PinNotSatisfied,
        SojournError,
        UnsupportedInterpreter,
    )
    from .codecs.identity import register_moved

__all__ = [
    "AlreadyStarted",
    "BrokerError",
    "Cancelled",
    "CannotSuspend",
    "Channel",
    "Child",
    "ChildCancelled",
    "ChildFailed",
    "ChildTerminated",
    "Client",
    "ConnectFailed",
    "ContextNotDeclared",
    "DataTypeError",
    "DeadLettered",
    "Deadlock",
    "DefinitionError",
    "Description",
    "DuplicateName",
    "DurationError",
    "FrameTooLarge",
    "Handle",
    "InvalidName",
    "LimitExceeded",
    "Limits",
    "Lock",
    "MailboxFull",
    "NeverAwaited",
    "NoAnswer",
    "NoSuchActor",
    "NoSuchChannel",
    "NoSuchQueue",
    "NoSuchResource",
    "NoSuchStep",
    "NoSuchWorkflow",
    "NotInWorkflow",
    "OnlyInWorkflow",
    "OutcomeUnknown",
    "PayloadError",
    "PayloadTooDeep",
    "PayloadTooLarge",
    "PinNotSatisfied",
    "ReceiveTimeout",
    "Refused",
    "Registry",
    "Rejected",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "Semaphore",
    "SojournError",
    "SpawnRefused",
    "Step",
    "StepCall",
    "StepFailed",
    "StepStuck",
    "StepTimeout",
    "StreamNotFound",
    "TaskGroup",
    "UnknownIntention",
    "UnsupportedInterpreter",
    "WorkersLost",
    "Workflow",
    "WorkflowCall",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowQuarantined",
    "WorkflowTerminated",
    "checkpoint",
    "create_task",
    "current",
    "declare_variable",
    "gather",
    "lifespan",
    "map",
    "publish_state",
    "race",
    "receive",
    "receive_message",
    "register_moved",
    "resource",
    "send",
    "sleep",
    "sleep_until",
    "spawn",
    "stage",
    "step",
    "tag",
    "timeout",
    "wait",
    "workflow",
]

_WHERE: Final[dict[str, tuple[str, ...]]] = {
    "actors.channel": ("Channel",),
    "actors.client": ("Client",),
    "actors.handle": (
        "Description",
        "Handle",
    ),
    "actors.current": ("current",),
    "actors.errors": (
        "AlreadyStarted",
        "Cancelled",
        "ChildCancelled",
        "ChildFailed",
        "ChildTerminated",
        "DeadLettered",
        "Deadlock",
        "DefinitionError",
        "DuplicateName",
        "LimitExceeded",
        "MailboxFull",
        "NeverAwaited",
        "NoAnswer",
        "NoSuchActor",
        "NoSuchChannel",
        "NoSuchQueue",
        "NoSuchResource",
        "NoSuchStep",
        "NoSuchWorkflow",
        "NotInWorkflow",
        "OnlyInWorkflow",
        "ReceiveTimeout",
        "Refused",
        "Rejected",
        "ResultTimeout",
        "RetryLater",
        "SpawnRefused",
        "StepFailed",
        "StepStuck",
        "StepTimeout",
        "UnknownIntention",
        "WorkersLost",
        "WorkflowCancelled",
        "WorkflowFailed",
        "WorkflowQuarantined",
        "WorkflowTerminated",
    ),
    "actors.lifespan": (
        "lifespan",
        "resource",
    ),
    "actors.limits": ("Limits",),
    "actors.mapping": ("map",),
    "actors.registry": ("Registry",),
    "actors.retry": ("Retry",),
    "actors.scopes": (
        "Lock",
        "Semaphore",
        "TaskGroup",
        "timeout",
    ),
    "actors.step": (
        "Step",
        "StepCall",
        "step",
    ),
    "actors.verbs": (
        "Child",
        "checkpoint",
        "create_task",
        "gather",
        "publish_state",
        "race",
        "receive",
        "receive_message",
        "send",
        "sleep",
        "sleep_until",
        "spawn",
        "stage",
        "tag",
        "wait",
    ),
    "actors.workflow": (
        "Workflow",
        "WorkflowCall",
        "workflow",
    ),
    "broker.errors": (
        "BrokerError",
        "ConnectFailed",
        "InvalidName",
        "OutcomeUnknown",
        "StreamNotFound",
    ),
    "codecs.context": ("declare_variable",),
    "codecs.identity": ("register_moved",),
    "codecs.errors": (
        "CannotSuspend",
        "ContextNotDeclared",
        "DataTypeError",
        "DurationError",
        "FrameTooLarge",
        "PayloadError",
        "PayloadTooDeep",
        "PayloadTooLarge",
        "PinNotSatisfied",
        "SojournError",
        "UnsupportedInterpreter",
    ),
}
"""Public names by the module that defines them."""

_MODULE_OF: Final = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("sojourn")
    elif name in _MODULE_OF:
        value = getattr(import_module(f"sojourn.{_MODULE_OF[name]}"), name)
    else:
        raise AttributeError(f"module 'sojourn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
