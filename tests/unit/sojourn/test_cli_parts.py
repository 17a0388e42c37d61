"""The command line's small parts: what is typed, what is shown, how it fails."""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from click.testing import CliRunner
from sojourn.actors import errors as actors
from sojourn.actors.states import HOLD_ACCEPTS
from sojourn.broker import errors as broker
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Status

from sojourn.cli.actors import STATES
from sojourn.cli.app import cli
from sojourn.cli.app_code import AppFailed, importable, load
from sojourn.cli.changed import changed_functions
from sojourn.cli.connection import Connection
from sojourn.cli.dev import _check_port
from sojourn.cli.devfile import DevFile, process_lives
from sojourn.cli.failures import CommandFailed, Exit, Failure, explain, report
from sojourn.cli.keys import keyring
from sojourn.cli.logs import FactsFormatter
from sojourn.cli.output import Output, age, clean, counted
from sojourn.cli.values import DurationValue, JsonValue, NamedValue

ACTS = "\x1b[2J \x9b2J \u202e \x7f"
"""What a terminal acts on."""


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("42", 42),
        ("true", True),
        ("null", None),
        ('"a b"', "a b"),
        ('{"ok": true}', {"ok": True}),
        ("[1, 2]", [1, 2]),
        ("ada", "ada"),
        ("2026-07-01", "2026-07-01"),
        ("", ""),
    ],
)
def test_a_typed_value_is_json_or_a_plain_word(typed: str, value: Any) -> None:
    assert JsonValue().convert(typed, None, None) == value


@pytest.mark.parametrize("typed", ["{ok: true}", "[1, 2", '"open', " {'ok': True}"])
def test_what_begins_like_json_and_is_not_is_refused(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="expected JSON"):
        JsonValue().convert(typed, None, None)


def test_a_named_value_needs_a_name() -> None:
    assert NamedValue().convert("urgent=true", None, None) == ("urgent", True)
    assert NamedValue().convert("note=a=b", None, None) == ("note", "a=b")
    for typed in ("urgent", "=1", "a b=1"):
        with pytest.raises(click.BadParameter, match="name=value"):
            NamedValue().convert(typed, None, None)


def test_a_duration_is_text_or_seconds() -> None:
    assert DurationValue().convert("1h30m", None, None) == 5400
    assert DurationValue().convert("2.5", None, None) == 2.5
    for typed in ("soon", "-1", "nan"):
        with pytest.raises(click.BadParameter):
            DurationValue().convert(typed, None, None)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb", "a\\rb"),
        ("left\u202eright", "left\\u202eright"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("two\nlines", "two\nlines"),
        ("Zürich 東京", "Zürich 東京"),
    ],
)
def test_text_from_outside_cannot_act_on_a_terminal(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_text_from_outside_is_cut_and_says_so() -> None:
    assert clean("x" * 1000, 10) == "xxxxxxxxxx... (1000 characters)"


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize(
    "error", [CommandFailed(Exit.REFUSED, ACTS), ValueError(ACTS)], ids=["told", "defect"]
)
def test_what_a_failure_quotes_cannot_act_on_a_terminal(error: Exception, json: bool) -> None:
    stderr = io.StringIO()
    report(error, Output(json, io.StringIO(), stderr))
    assert set("\x1b\x9b\u202e\x7f") & set(stderr.getvalue()) == set()
    assert "202e" in stderr.getvalue()


def test_text_from_outside_does_not_begin_a_row() -> None:
    stdout = io.StringIO()
    Output(False, stdout, io.StringIO()).table(("stage", "asleep"), [("a\nours", 1)])
    assert stdout.getvalue().splitlines()[1:] == ["a\\nours       1"]


def test_markup_in_a_cell_is_not_interpreted() -> None:
    stdout = io.StringIO()
    Output(False, stdout, io.StringIO()).table(("id",), [("[red]x[/red]",)])
    assert "[red]x[/red]" in stdout.getvalue()


def test_what_goes_into_a_pipe_is_not_folded() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output, long = Output(False, stdout, stderr), "word " * 60 + "end"
    output.say(long)
    output.note(long)
    output.verbatim(long, 1000)
    output.table(("id", "detail"), [("x", long)])
    assert stdout.getvalue().count(long) == 3
    assert stderr.getvalue().count(long) == 1


def test_a_state_to_list_is_any_status_or_hold() -> None:
    assert set(STATES) == {*map(str, Status), *HOLD_ACCEPTS}


def test_ages_and_counts_read_well() -> None:
    assert [age(s) for s in (0.2, 5.4, 119, 600, 7300, 200_000, 2_600_000)] == [
        "now",
        "5s",
        "1m59s",
        "10m",
        "2h",
        "2d",
        "30d",
    ]
    assert [counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (broker.ConnectFailed(("nats://x",), 3.0, "refused"), Exit.UNREACHABLE),
        (broker.StreamNotFound("SJ"), Exit.UNREACHABLE),
        (broker.NoResponders("x"), Exit.UNREACHABLE),
        (broker.OutcomeUnknown("put", "x", "no answer"), Exit.TIMED_OUT),
        (broker.InvalidName("an actor id", "*"), Exit.USAGE),
        (broker.Refused(1, "no"), Exit.REFUSED),
        (actors.NoSuchActor("x"), Exit.NOT_FOUND),
        (actors.NoSuchWorkflow("x", ["y"]), Exit.NOT_FOUND),
        (actors.AlreadyStarted("x"), Exit.REFUSED),
        (actors.MailboxFull("x", "c"), Exit.REFUSED),
        (actors.Refused("x", code="not held", message="not held"), Exit.REFUSED),
        (actors.ResultTimeout("x", seconds=1), Exit.TIMED_OUT),
        (actors.NoAnswer("x", request="r", seconds=1), Exit.UNREACHABLE),
        (actors.Rejected("no", why="age"), Exit.FAILED),
        (actors.WorkflowFailed("x"), Exit.FAILED),
        (actors.WorkflowQuarantined("x"), Exit.FAILED),
        (CommandFailed(Exit.NOT_FOUND, "none"), Exit.NOT_FOUND),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (ConnectionResetError(), Exit.UNREACHABLE),
        (TimeoutError(), Exit.TIMED_OUT),
        (ZeroDivisionError("ours"), Exit.DEFECT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(int(value)),
)
def test_each_family_of_errors_has_its_exit_code(error: BaseException, code: Exit) -> None:
    assert explain(error).code is code


def test_a_defect_shows_its_traceback_and_an_expected_failure_does_not() -> None:
    for error, shown in ((ZeroDivisionError("ours"), True), (actors.NoSuchActor("x"), False)):
        stderr = io.StringIO()
        try:
            raise error
        except Exception as caught:
            report(caught, Output(False, io.StringIO(), stderr))
        assert ("Traceback" in stderr.getvalue()) is shown


def test_a_failed_command_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(CommandFailed(Exit.NOT_FOUND, "none", "look elsewhere")))
    assert (again.code, again.message, again.hint) == (Exit.NOT_FOUND, "none", "look elsewhere")


def test_the_dev_file_counts_only_while_its_process_lives(tmp_path: Path) -> None:
    assert DevFile.read(tmp_path) is None
    DevFile("nats://127.0.0.1:1", "default", os.getpid()).write(tmp_path)
    assert DevFile.read(tmp_path) == DevFile("nats://127.0.0.1:1", "default", os.getpid())
    DevFile("nats://127.0.0.1:1", "default", 2**22 + 1).write(
        tmp_path
    )  # above the kernel's highest process id
    assert DevFile.read(tmp_path) is None
    (tmp_path / ".sojourn/dev.json").write_text("not json")
    assert DevFile.read(tmp_path) is None
    DevFile.remove(tmp_path)
    DevFile.remove(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells")
def test_a_process_that_has_ended_and_was_not_waited_for_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"up\n"
    assert process_lives(child.pid)
    child.stdin.close()
    assert child.stdout.read() == b""  # at its end, and still listed
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process_lives(child.pid)
    child.wait()
    child.stdout.close()


def test_a_changed_function_is_told_from_a_helper_and_from_the_same_code() -> None:
    identities = frozenset({"app:onboard#new", "app:same#1"})
    pin = ("app:onboard#old", "app:same#1", "app:helper#x", "contextlib:thing#y", "app:Profile~shape")
    assert changed_functions(pin, identities) == ("app:onboard",)


def test_a_node_without_a_key_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOJOURN_KEY", raising=False)
    with pytest.raises(click.UsageError, match="needs the key"):
        keyring(None, Connection("nats://127.0.0.1:4222", "default"))


@pytest.fixture
def beside_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DevFile:
    """The current folder has a `sojourn dev` with a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOJOURN_KEY", raising=False)
    dev = DevFile("nats://127.0.0.1:14222", "shop", os.getpid())
    dev.write(tmp_path)
    Keyring.generate(tmp_path / ".sojourn" / "key")
    return dev


@pytest.mark.parametrize(
    "server", ["nats://127.0.0.1:14222", "localhost:14222", "nats://a:1,nats://127.0.0.1:14222/"]
)
def test_the_key_of_dev_serves_a_second_node_of_dev(beside_dev: DevFile, server: str) -> None:
    assert len(keyring(None, Connection(server, "shop")).ids) == 1


@pytest.mark.parametrize("other", [("nats://10.0.0.1:4222", "shop"), ("nats://127.0.0.1:14222", "default")])
def test_the_key_of_dev_is_not_taken_for_another_cluster(beside_dev: DevFile, other: tuple[str, str]) -> None:
    with pytest.raises(click.UsageError, match=r"made for the `sojourn dev` at nats://127\.0\.0\.1:14222"):
        keyring(None, Connection(*other))


def test_the_key_of_a_dev_that_has_ended_is_not_taken_silently(beside_dev: DevFile, tmp_path: Path) -> None:
    DevFile.remove(tmp_path)
    with pytest.raises(click.UsageError, match=r"does not run now.*--key-file \.sojourn/key"):
        keyring(None, Connection(beside_dev.server, beside_dev.namespace))


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("x = 1\nasync def f(:\n    pass\n", "SyntaxError"),
        ("import no_such_module\n", "ModuleNotFoundError"),
        ("from sojourn import workflow\n@workflow\ndef f():\n    pass\n", "DefinitionError"),
        ("def g():\n    raise KeyError('a')\ng()\n", "KeyError"),
    ],
)
def test_an_app_that_cannot_be_imported_shows_its_own_lines_and_none_of_ours(
    code: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{last.lower()}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AppFailed) as failed:
        load(name)
    stderr = io.StringIO()
    assert report(failed.value, Output(False, io.StringIO(), stderr)) is Exit.FAILED
    said = stderr.getvalue()
    files = set(re.findall(r'File "([^"]+)"', said))
    assert files == {str(tmp_path / f"{name}.py")}
    assert last in said
    assert "^" in said or last != "SyntaxError"
    assert said.endswith(f"error: {name} cannot be imported\n")
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


def test_a_file_of_a_package_that_imports_its_package_is_told_to_be_named_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a_shop" / "orders"
    folder.mkdir(parents=True)
    (folder / "in_a_shop.py").write_text("import a_shop.orders.nothing\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AppFailed) as failed:
        load(importable("a_shop/orders/in_a_shop.py"))
    assert failed.value.hint == f"Name it as a module, from {tmp_path}: a_shop.orders.in_a_shop"


@pytest.mark.parametrize("name", ["a_shop", "./a_shop", "a_shop/", "../a_shop"])
def test_a_folder_is_no_app(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_shop").mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path if name[:2] != ".." else tmp_path / "a_shop")
    if name == "a_shop":  # a package is a module
        assert importable(name) == name
        return
    with pytest.raises(
        click.BadParameter, match=r"expected a module such as shop\.workflows, or a file such as app\.py"
    ):
        importable(name)


def test_a_port_that_is_taken_is_said_before_a_server_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommandFailed, match=r"port \d+ of 127\.0\.0\.1 cannot be used"):
            _check_port(taken.getsockname()[1])
    _check_port(0)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (broker.ConnectFailed(("nats://a",), 3.0, "Connection refused"), "sojourn dev app.py"),
        (
            broker.ConnectFailed(("nats://a",), 3.0, "nats: 'Authorization Violation'"),
            "does not know this user",
        ),
        (broker.ConnectFailed(("nats://a",), 3.0, "Connection reset by peer"), "may want a user"),
        (broker.Refused(403, "permission denied", "sj.default.ctl.a.cancel"), "--role"),
        (broker.Refused(10_047, "no room", "$JS.API.STREAM.CREATE.X"), "free disk space"),
    ],
    ids=str,
)
def test_what_the_broker_refuses_is_said_with_what_to_do(error: Exception, hint: str) -> None:
    assert hint in explain(error).hint


def test_a_file_that_cannot_be_used_is_named_and_is_no_unreachable_broker() -> None:
    assert explain(PermissionError(13, "Permission denied", "/x")) == Failure(
        Exit.FAILED, "/x: Permission denied"
    )
    assert explain(ConnectionRefusedError(111, "refused")).code is Exit.UNREACHABLE


def test_a_log_line_ends_with_the_facts_that_came_with_it() -> None:
    record = logging.makeLogRecord(
        {"msg": "handed %s", "args": ("over",), "levelname": "INFO", "partition": 3, "node": "a\x1bb"}
    )
    assert FactsFormatter().format(record).endswith("INFO    handed over  partition=3  node=a\\x1bb")


def test_a_log_message_that_quotes_what_came_from_outside_stays_one_line() -> None:
    record = logging.makeLogRecord(
        {"msg": "refused: %s", "args": ("a\x1b[2J\n2026 INFO all is well",), "levelname": "INFO"}
    )
    assert FactsFormatter().format(record).endswith("refused: a\\x1b[2J\\n2026 INFO all is well")


def test_every_command_explains_itself_and_takes_json() -> None:
    context = click.Context(cli, **cli.context_settings)
    for words in _leaves(cli, context):
        page = CliRunner().invoke(cli, [*words, "--help"])
        assert page.exit_code == 0
        assert "--json" in page.output or words in (["node"], ["worker"]), words


def _leaves(command: click.Command, context: click.Context) -> list[list[str]]:
    """Words of every command that is no group."""
    if not isinstance(command, click.Group):
        return [[]]
    found = []
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found += [
            [name, *rest] for rest in _leaves(inner, click.Context(inner, parent=context, info_name=name))
        ]
    return found


def test_a_document_acts_on_no_terminal_and_stays_the_same_json() -> None:
    out = io.StringIO()
    value = {"tags": ["\x1b[2J", "\x9b1m", "\u202e", "\x7f", "\U000e0001", "grün"]}
    Output(True, out, io.StringIO()).document(value)
    text = out.getvalue()
    assert orjson.loads(text) == value
    assert [character for character in text if not character.isprintable() and character != "\n"] == []
    assert "grün" in text
