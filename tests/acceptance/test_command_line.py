"""The README and the tutorial, carried out: a server, a node and commands as processes, in a folder of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from click.testing import CliRunner, Result

from sojourn.cli.app import cli
from sojourn.cli.connection import operator
from sojourn.cli.devfile import DevFile
from sojourn.cli.failures import Exit

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
APP = "onboard"


def readme_block(name: str) -> str:
    found = re.search(
        rf"<!-- run: {re.escape(name)} -->\n```\w+\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert found is not None
    return found[1]


class Shell:
    """A folder with an app in it, and a `sojourn dev` that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "app.py"
        self.app.write_text(readme_block("app.py"))
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._process: subprocess.Popen[str] | None = None

    def dev(self) -> None:
        self.lines.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sojourn.cli", "dev", "app.py"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()
        self.hear(rf"runs {APP}")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                with self._said:
                    self.lines.append(line.rstrip())
                    self._said.notify_all()

    def hear(self, pattern: str, since: int = 0) -> int:
        """Wait until `sojourn dev` says it; how many lines it had said then."""

        def said() -> int | None:
            return next(
                (n + 1 for n, line in enumerate(self.lines) if n >= since and re.search(pattern, line)), None
            )

        with self._said:
            found = self._said.wait_for(said, timeout=40)
        assert found is not None, f"never said {pattern!r}:\n" + "\n".join(self.lines)
        return found

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(timeout=40)
        self._listener.join(timeout=40)
        return code

    def run(self, line: str, *, code: int = 0) -> str:
        """One command; what it printed on standard output."""
        done = self.command(line)
        assert done.exit_code == code, f"{line}: exit {done.exit_code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def interrupt(self) -> None:
        """Ctrl-C."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> int:
        """The exit code, within that time."""
        assert self._process is not None
        return self._process.wait(seconds)

    def command(self, line: str, typed: str | None = None) -> Result:
        """One command, in this process: a tenth of a second instead of half of one."""
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(cli, shlex.split(line), input=typed, env={"COLUMNS": "160"})

    def json(self, line: str, *, code: int = 0) -> Any:
        return json.loads(self.run(f"{line} --json", code=code))

    def start(self, user: str) -> str:
        """An onboarding that waits for its approval."""
        actor = f"user-{user}"
        self.run(f"start onboard {user} --id {actor}")
        self.until(
            lambda: self.json(f"describe {actor}")["index"]["wait"].startswith("receive"), f"{actor} waits"
        )
        return actor

    def until(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain until {what}"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("readme"))
    shell.dev()
    yield shell
    assert shell.stop() == 0, "\n".join(shell.lines)


def test_the_commands_of_the_readme_print_what_it_says(shell: Shell) -> None:
    lines = readme_block("terminal").splitlines()
    assert lines[0] == "$ sojourn dev app.py"
    printed = ""
    for line in lines[1:]:
        if line.startswith("$ sojourn "):
            words = [sys.executable, "-m", "sojourn.cli", *shlex.split(line.removeprefix("$ sojourn "))]
            printed = subprocess.run(
                words, cwd=shell.folder, stdout=subprocess.PIPE, text=True, timeout=60, check=True
            ).stdout
        else:
            assert printed.strip() == line


def test_stack_shows_the_line_of_the_source_at_which_a_workflow_sleeps(shell: Shell) -> None:
    actor = shell.start("stack")
    branch = shell.json(f"stack {actor}")["branches"][0]
    text = shell.app.read_text().splitlines()
    assert branch[-1]["function"] == "onboard"
    assert branch[-1]["source"] == text[branch[-1]["line"] - 1].strip()
    assert "approval.receive" in branch[-1]["source"]
    assert branch[-1]["source"] in shell.run(f"stack {actor}")


def test_a_raw_message_on_the_mailbox_subject_is_a_signal(shell: Shell) -> None:
    actor = shell.start("raw")
    dev = DevFile.read(shell.folder)
    assert dev is not None
    asyncio.run(_publish(dev.server, f"sj.default.mail.{actor}.approval", b'{"ok": true}'))
    assert shell.json(f"result {actor}") == "account of raw"


async def _publish(server: str, subject: str, payload: bytes) -> None:
    client = await nats.connect(server)
    await client.publish(subject, payload)
    await client.flush()
    await client.close()


@pytest.mark.parametrize(
    "line",
    [
        "list",
        "nodes",
        "check",
        "doctor",
        "dead list",
        "topology check",
        "topology apply --app dev",
        "list --held pin",
        "list --waiting-for approval --older-than 0s --status suspended --status running --limit 0",
        "census",
        "census --by wait",
        "census --by workflow --workflow onboard",
        "versions list",
    ],
)
def test_every_command_about_all_prints_one_json_document(shell: Shell, line: str) -> None:
    assert shell.json(line) is not None
    assert shell.run(line)


def test_describe_says_in_one_sentence_what_it_waits_for(shell: Shell) -> None:
    actor = shell.start("described")
    document = shell.json(f"describe {actor}")
    assert document["answered"]
    assert f"{actor} (onboard) waits: receive approval" in document["sentence"]
    for_people = " ".join(shell.run(f"describe {actor}").split())
    assert f"{actor} (onboard) waits: receive approval until" in for_people
    assert "(in 3d)" in for_people


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("describe nobody", Exit.NOT_FOUND, "no actor 'nobody'"),
        ("stack nobody", Exit.NOT_FOUND, "no actor 'nobody'"),
        ("result nobody", Exit.NOT_FOUND, "no actor 'nobody'"),
        ("start onbord x", Exit.NOT_FOUND, "did you mean 'onboard'"),
        ("start onboard 5", Exit.REFUSED, "expected str, received int"),
        ("start onboard mallory --wait", Exit.FAILED, "rejected: checks failed (user mallory)"),
        ("describe 'not an id'", Exit.USAGE, "1 to 128 characters"),
        ("start onboard '{user: ada}'", Exit.USAGE, "expected JSON"),
        ("dead show 999", Exit.NOT_FOUND, "no dead letter 999"),
        ("topology apply --app other", Exit.REFUSED, "app"),
        ("topology apply --app dev --partitions 8", Exit.REFUSED, "partitions"),
        ("nodes -n elsewhere", Exit.UNREACHABLE, "topology apply"),
        ("nodes -s nats://127.0.0.1:9", Exit.UNREACHABLE, "no connection"),
        ("dev app.py", Exit.REFUSED, "runs in this folder already"),
        ("node nowhere --key-file .sojourn/key", Exit.USAGE, "no module named 'nowhere'"),
        ("node app.py --key-file nowhere", Exit.FAILED, "nowhere"),
        ("node app.py --deployment 1.4.2", Exit.USAGE, "write 1-4-2"),
        ("strat onboard", Exit.USAGE, "Did you mean `start`"),
    ],
)
def test_a_failure_has_its_exit_code_and_says_what_to_do(
    shell: Shell, line: str, code: Exit, words: str
) -> None:
    done = shell.command(line)
    assert (done.exit_code, words in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_with_json_is_json_on_standard_error(shell: Shell) -> None:
    done = shell.command("start onboard mallory --wait --json")
    assert json.loads(done.stderr) == {
        "error": "Rejected",
        "message": "rejected: checks failed (user mallory)",
        "exit": 1,
        "facts": {"user": "mallory"},
    }


def test_a_second_start_of_an_id_is_refused_or_joined_as_asked(shell: Shell) -> None:
    actor = shell.start("twice")
    refused = shell.command(f"start onboard twice --id {actor}")
    assert refused.exit_code == Exit.REFUSED
    assert "was started before" in refused.stderr
    joined = shell.json(f"start onboard twice --id {actor} --if-exists join")
    assert joined["id"] == actor


def test_waiting_for_a_result_ends_in_the_time_given(shell: Shell) -> None:
    actor = shell.start("slow")
    late = shell.command(f"result {actor} --timeout 200ms")
    assert late.exit_code == Exit.TIMED_OUT
    assert "it is suspended" in " ".join(late.stderr.split())


def test_mail_that_is_not_consumed_in_time_says_why(shell: Shell) -> None:
    actor = shell.start("unread")
    shell.run(f"pause {actor}")
    assert [one["id"] for one in shell.json("list --status suspended") if one["id"] == actor] == []
    late = shell.command(f"signal {actor} approval true --wait consumed --timeout 300ms")
    assert late.exit_code == Exit.TIMED_OUT
    assert f"{actor} (onboard) is paused" in " ".join(late.stderr.split())
    shell.run(f"terminate {actor}")


def test_paused_mail_waits_and_resume_takes_it(shell: Shell) -> None:
    actor = shell.start("paused")
    shell.run(f"pause {actor} --reason 'audit'")
    shell.run(f"signal {actor} approval '{{\"ok\": true}}'")
    assert [found["id"] for found in shell.json("list --held paused")] == [actor]
    described = shell.json(f"describe {actor}")
    assert "is paused: audit" in described["sentence"]
    assert described["details"]["asked_by"] == operator()
    shell.run(f"resume {actor}")
    assert shell.json(f"result {actor}") == "account of paused"


def test_what_a_list_finds_is_piped_into_a_verb(shell: Shell) -> None:
    actors = [shell.start(f"piped-{n}") for n in range(3)]
    shell.run(f"pause {actors[0]} {actors[1]} {actors[2]} --reason gateway")
    ids = shell.run("list --held paused --ids")
    assert sorted(ids.splitlines()) == actors
    done = shell.command("resume -", ids)
    assert (done.exit_code, done.stdout) == (0, "3 actors: asked to resume\n")
    assert shell.run("list --held paused --ids") == ""
    assert shell.command("resume -", "").exit_code == 0


def test_of_many_actors_all_are_tried_and_those_that_fail_are_named(shell: Shell) -> None:
    actors = [shell.start(f"many-{n}") for n in range(2)]
    done = shell.command(f"cancel {actors[0]} nobody {actors[1]}")
    assert done.exit_code == Exit.NOT_FOUND
    assert "2 actors: asked to cancel" in done.stdout
    assert "no actor 'nobody'" in done.stdout
    assert "1 actor of 3 failed" in done.stdout
    answers = json.loads(shell.command(f"terminate {' '.join(actors)} 'no id' --json").stdout)
    assert [answer.get("changed") for answer in answers[:2]] == [False, False]
    assert answers[2]["exit"] == Exit.USAGE


@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
def test_an_actor_is_ended_and_a_second_time_changes_nothing(shell: Shell, verb: str, status: str) -> None:
    actor = shell.start(verb)
    assert shell.json(f"{verb} {actor} --reason 'no longer'") == {
        "id": actor,
        "request": verb,
        "changed": True,
    }
    assert shell.command(f"result {actor}").exit_code == Exit.FAILED
    described = shell.json(f"describe {actor}")
    assert described["index"]["status"] == status
    assert operator() in json.dumps(described["details"]), "whoever looks later learns who asked for it"
    assert shell.json(f"{verb} {actor}")["changed"] is False


def test_mail_that_does_not_fit_is_a_dead_letter_and_harms_nobody(shell: Shell) -> None:
    actor = shell.start("letters")
    shell.run(f'signal {actor} approval \'{{"ok": "perhaps"}}\'')
    shell.run(f"signal {actor} aproval true")
    shell.until(lambda: len(shell.json(f"dead list --actor {actor}")) == 2, "both are dead letters")
    letters = shell.json(f"dead list --actor {actor}")
    assert {letter["name"] for letter in letters} == {"approval", "aproval"}
    shown = shell.json(f"dead show {letters[-1]['letter']}")
    assert shown["payload"] == '{"ok":"perhaps"}'
    assert shown["reason"] in shell.run(f"dead show {letters[0]['letter']}")
    shell.run(f"signal {actor} approval '{{\"ok\": true}}'")
    assert shell.json(f"result {actor}") == "account of letters"


def test_a_dead_letter_is_sent_again_once_it_can_be_taken_and_is_gone_then(shell: Shell) -> None:
    actor = shell.start("again")
    shell.run(f"terminate {actor}")
    shell.run(f"signal {actor} approval '{{\"ok\": true}}'")
    shell.until(lambda: len(shell.json(f"dead list --actor {actor}")) == 1, "its mail came too late")
    shell.run(f"start onboard again --id {actor} --if-exists restart")
    letters = shell.run(f"dead list --actor {actor} --ids")
    done = shell.command("dead resend -", letters)
    assert (done.exit_code, done.stdout) == (0, "1 letter sent again\n")
    assert shell.json(f"result {actor}") == "account of again"
    assert shell.json(f"dead list --actor {actor}") == []
    assert shell.command("dead resend -", letters).exit_code == Exit.NOT_FOUND


def test_dead_letters_are_removed_and_what_is_no_mail_is_not_sent_again(shell: Shell) -> None:
    shell.command("start nothing --id never")
    shell.until(lambda: len(shell.json("dead list --actor never")) == 1, "a start of nothing is a letter")
    (letter,) = shell.json("dead list --ids --actor never")
    refused = shell.command(f"dead resend {letter}")
    assert refused.exit_code == Exit.REFUSED
    assert "is no mail from outside" in refused.stdout
    assert shell.json(f"dead remove {letter} 999999", code=Exit.NOT_FOUND) == {
        "done": [letter],
        "failed": {"999999": "no dead letter 999999"},
    }
    assert shell.json("dead list --actor never") == []
    assert shell.command("dead remove all").exit_code == Exit.USAGE


def test_changed_code_is_named_waits_unharmed_and_goes_on_when_it_is_back(shell: Shell) -> None:
    actor = shell.start("changed")
    written = shell.app.read_text()
    said = len(shell.lines)
    shell.app.write_text(written.replace('"not approved"', '"no"'))
    said = shell.hear(r"sleeping in code that has changed", said)
    shell.hear(actor, said)
    shell.run(f"pause {actor}")
    assert shell.json(f"resume {actor}")["kept"], "it is told that no node has the code"
    shell.run(f"signal {actor} approval '{{\"ok\": true}}'")
    shell.until(lambda: shell.json(f"describe {actor}")["index"].get("hold") == "pin", "it is held")
    assert "app:onboard" in shell.json(f"describe {actor}")["sentence"]
    said = len(shell.lines)
    shell.app.write_text("# a comment is no change\n\n" + written)
    shell.hear(rf"runs {APP}", said)
    assert shell.json(f"result {actor}") == "account of changed"
    shell.app.write_text(written)
    shell.hear(rf"runs {APP}", len(shell.lines) - 1)


def test_a_workflow_survives_the_end_of_its_server_and_node(tmp_path: Path) -> None:
    """Chapter 2 of the tutorial, the hard way: SIGKILL to `sojourn dev`, whose server and node go with it."""
    shell = Shell(tmp_path)
    shell.dev()
    actor = shell.start("survivor")
    dev = DevFile.read(shell.folder)
    assert dev is not None
    shell.until(lambda: shell.command("nodes").exit_code == 0, "its node owns every partition")
    node = shell.json("nodes")["nodes"][0]["pid"]
    assert shell.stop(signal.SIGKILL) == -signal.SIGKILL
    shell.until(lambda: not _lives(node), "its node is gone")
    assert DevFile.read(shell.folder) is None
    shell.dev()
    shell.run(f"signal {actor} approval '{{\"ok\": true}}'")
    assert shell.json(f"result {actor}") == "account of survivor"
    assert shell.stop(signal.SIGINT) == 0


def test_a_node_that_does_not_answer_is_silent_while_its_lease_lasts(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.dev()
    before = shell.json("nodes")["nodes"][0]
    assert before["answers"] is True
    os.kill(before["pid"], signal.SIGSTOP)
    after = shell.json("nodes")
    assert [(node["node"], node["answers"]) for node in after["nodes"]] == [(before["node"], False)]
    assert f"no answer from {before['node']}" in shell.run("doctor", code=Exit.FAILED)
    os.kill(before["pid"], signal.SIGCONT)
    assert shell.stop(signal.SIGINT) == 0


def test_dev_starts_another_node_for_one_that_was_killed_and_is_ready_when_that_serves(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    shell.dev()
    assert not shell.json("nodes")["ownerless"], "ready means that every partition is served"
    actor = shell.start("orphan")
    killed = shell.json("nodes")["nodes"][0]
    os.kill(killed["pid"], signal.SIGKILL)
    said = shell.hear(r"was killed \(SIGKILL\); starting another")
    shell.hear(rf"runs {APP}", said)
    assert [node["answers"] for node in shell.json("nodes")["nodes"]] == [True]
    shell.run(f"signal {actor} approval '{{\"ok\": true}}'")
    assert shell.json(f"result {actor}") == "account of orphan"
    assert shell.stop(signal.SIGINT) == 0


def test_a_second_ctrl_c_leaves_at_once_and_the_first_says_so(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.app.write_text(
        "import asyncio\n"
        "from sojourn import step, workflow\n\n"
        "@step\nasync def long() -> None:\n    await asyncio.sleep(3600)\n\n"
        "@workflow\nasync def onboard(name: str) -> None:\n    await long()\n"
    )
    shell.dev()
    shell.run("start onboard ada --id a")
    shell.until(lambda: shell.json("describe a")["details"]["running"], "its step runs")
    shell.interrupt()
    shell.hear("Ctrl-C again leaves at once")
    shell.interrupt()
    shell.hear("the node has left at once")
    assert shell.wait(seconds=60.0) == 0


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
