"""Errors keep their facts, their text and their notes when they are stored with a frame; they say what to do."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import Any

import pytest
from sojourn.actors import errors
from sojourn.actors.errors import (
    AlreadyStarted,
    Cancelled,
    ChildFailed,
    NoSuchActor,
    NoSuchChannel,
    ReceiveTimeout,
    Rejected,
    ResultTimeout,
    RetryLater,
    StepFailed,
    StepTimeout,
    WorkflowQuarantined,
)
from sojourn.codecs.errors import DurationError, SojournError

EXAMPLES: list[BaseException] = [
    Rejected("not approved", reason="age", age=17),
    Rejected(),
    Cancelled("stop", by="ops"),
    RetryLater("30s"),
    StepFailed("charge", attempts=3, type="shop:Declined", message="no", traceback="...", data=[1]),
    StepTimeout("charge", seconds=30, attempts=2),
    errors.WorkersLost("charge", times=5),
    errors.StepStuck("charge", seconds=60, where="a.py:3 in f"),
    ReceiveTimeout(["a", "b"], seconds=3),
    ResultTimeout("order-1", seconds=5, status="suspended"),
    errors.NoAnswer("order-1", request="r1", seconds=5, hint="later"),
    ChildFailed("c1", workflow="w", run="r", type="builtins:ValueError", message="bad"),
    errors.ChildCancelled("c1"),
    errors.ChildTerminated("c1"),
    errors.SpawnRefused("c1", workflow="w", why="taken"),
    errors.WorkflowFailed("o1", type="x:Y", message="m"),
    errors.WorkflowCancelled("o1"),
    errors.WorkflowTerminated("o1"),
    WorkflowQuarantined("o1", message="KeyError: 'x'"),
    AlreadyStarted("o1", run="r", status="running", workflow="w"),
    errors.DuplicateName("step", "charge", first="a:charge", second="b:charge"),
    errors.NoSuchWorkflow("onbord", ["onboard", "order"], where="deployment 7"),
    errors.NoSuchStep("x"),
    errors.NoSuchQueue("gpus", ["gpu"], where="step resize"),
    NoSuchChannel("aproval", ["approval"]),
    NoSuchActor("o1", hint="start it first"),
    errors.NoSuchResource("db.Pool", ["http.Client"]),
    errors.MailboxFull("o1", "approval", limit=10_000),
    errors.DeadLettered("o1", "approval", reason="malformed", detail="line 1"),
    errors.Refused("o1", code="not held", message="it is not held"),
    errors.NotInWorkflow("asyncio.sleep", "onboard", 12, "sojourn.sleep"),
    errors.OnlyInWorkflow("receive()", "use signal"),
    errors.UnknownIntention("None"),
    errors.LimitExceeded(
        "sleep_seconds", value=1e12, allowed=1e9, where="onboard line 3", remedy="sleep less"
    ),
    errors.Deadlock(["buyer line 3", "seller line 9"]),
    errors.DefinitionError("is a plain `def`", function="f", remedy="write `async def`"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_facts_text_and_notes(error: BaseException) -> None:
    error.add_note("seen at noon")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
    assert back.__notes__ == ["seen at noon"]


def test_every_error_of_the_module_has_an_example() -> None:
    defined = {
        cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls)
        and cls.__module__ == errors.__name__
        and issubclass(cls, BaseException)
        and name[0] != "_"
    }
    assert defined - {type(error) for error in EXAMPLES} == {errors.NeverAwaited}


def test_all_but_the_domains_and_control_are_errors_of_sojourn() -> None:
    for error in EXAMPLES:
        outside = isinstance(error, Rejected | Cancelled)
        assert isinstance(error, SojournError) != outside


def test_time_outs_are_timeout_errors() -> None:
    kinds = {type(error).__name__ for error in EXAMPLES if isinstance(error, TimeoutError)}
    assert kinds == {"StepTimeout", "ReceiveTimeout", "ResultTimeout", "NoAnswer"}


def test_cancelled_passes_an_except_exception_block() -> None:
    assert isinstance(Cancelled(), asyncio.CancelledError)
    assert not isinstance(Cancelled(), Exception)


def test_a_rejection_has_its_facts_as_attributes() -> None:
    error = Rejected("not approved", reason="age")
    assert (error.message, error.reason, dict(error.facts)) == ("not approved", "age", {"reason": "age"})
    assert repr(error) == "Rejected('not approved', reason='age')"
    with pytest.raises(AttributeError, match="has no fact 'cause'; its facts: reason"):
        _ = error.cause
    assert not hasattr(error, "__iter__")


def test_a_fact_may_have_any_name() -> None:
    error = Rejected("no", message="m", facts=1, args=2)
    assert dict(error.facts) == {"message": "m", "facts": 1, "args": 2}
    assert error.message == "no"


def test_retry_later_reads_durations() -> None:
    assert RetryLater("1m30s").after == 90.0
    with pytest.raises(DurationError):
        RetryLater("soon")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StepTimeout("charge", seconds=90), "step 'charge' took longer than its timeout of 1m30s (attempt 1); give it more with @step(timeout=...) or charge.options(timeout=...)"),  # noqa: E501  # the text as users see it
        (ReceiveTimeout(["a", "b"], seconds=3), "no mail on 'a' and 'b' within 3s"),
        (StepFailed("charge", attempts=1, type="shop:Declined", message="no"), "step 'charge' failed after 1 attempt; the last one raised shop:Declined: no"),  # noqa: E501  # the text as users see it
        (NoSuchChannel("aproval", ["approval", "x"]), "no channel 'aproval'; did you mean 'approval'?"),
        (AlreadyStarted("o1", status="running", workflow="w"), "'o1' was started before (w, running); choose another id, or if_exists=\"join\" to wait for that one, or \"restart\" to end it and begin anew"),  # noqa: E501  # the text as users see it
        (ResultTimeout("o1", seconds=5), "'o1' has not ended within 5s (no record of it was found); it goes on, and can be waited for again"),  # noqa: E501  # the text as users see it
        (errors.NotInWorkflow("asyncio.sleep", "onboard", 12, "sojourn.sleep"), "asyncio.sleep cannot be used inside a workflow (onboard line 12); use sojourn.sleep"),  # noqa: E501  # the text as users see it
    ],
)  # fmt: skip
def test_texts_name_the_users_own_things_and_the_remedy(error: Any, text: str) -> None:
    assert str(error) == text
