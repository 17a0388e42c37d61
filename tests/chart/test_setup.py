"""The secrets that the setup job makes: what they hold, that they are made once, and that a real server takes them."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chart_kit import CHART
from sojourn.broker.server import EmbeddedServer
from sojourn.codecs.keyring import Keyring

SOJOURN = str(Path(sys.executable).parent / "sojourn")
ENVIRONMENT = {
    "KUBE_NAMESPACE": "apps", "NAME": "sojourn", "INSTANCE": "rel", "SOJOURN_NAMESPACE": "shop",
    "KEYS_ENTRY": "key", "KEYS_SECRET": "rel-keys",
    "NATS_AUTH_SECRET": "rel-nats-auth", "NATS_TLS_SECRET": "rel-nats-tls", "NATS_HOST": "rel-nats",
    "NATS_ROUTES": "rel-nats-0.rel-nats-headless:6222,rel-nats-1.rel-nats-headless:6222",
    "NATS_QUEUES": "mail:mail,GPU_large:gpu-large-1c2f20",
}  # fmt: skip


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The job's script as a module, with what the chart gives it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(Path(SOJOURN).parent), prepend=":")
    monkeypatch.syspath_prepend(str(CHART / "files"))
    spec = importlib.util.spec_from_file_location("chart_setup", CHART / "files/setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("cli", "kube"):
        sys.modules.pop(name, None)


def test_the_keys_are_a_file_that_nodes_read(setup: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(setup.keys()["key"])
    path.chmod(0o440)
    assert len(Keyring.from_file(path).ids) == 1


def test_each_role_has_a_user_and_the_routes_name_every_server(setup: ModuleType) -> None:
    made = setup.nats_users()
    roles = {entry.removesuffix("-password") for entry in made if entry.endswith("-password")}
    people = {"admin", "node", "starter", "signaller", "reader", "operator"}
    assert roles == {*people, "worker-mail", "worker-gpu-large-1c2f20"}
    assert made["worker-gpu-large-1c2f20-user"] == "worker-GPU_large"
    assert made["routes.conf"].count("nats-route://route:") == 2
    assert "rel-nats-1.rel-nats-headless:6222" in made["routes.conf"]
    assert made["node-password"] in made["accounts.conf"]


async def test_a_server_takes_users_and_certificate_and_a_client_checks_it(
    setup: ModuleType, tmp_path: Path
) -> None:
    users, files = setup.nats_users(), setup.certificate()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    tls = ", ".join(
        f'{entry}: "{tmp_path / name}"'
        for entry, name in (("cert_file", "tls.crt"), ("key_file", "tls.key"), ("ca_file", "ca.crt"))
    )
    configuration = f"tls {{ {tls} }}\n{users['accounts.conf']}"
    async with EmbeddedServer(extra_config=configuration) as server:
        where = {
            "SOJOURN_SERVER": server.url.replace("nats://", "tls://"), "SOJOURN_NAMESPACE": "shop", "SOJOURN_ROLE": "admin",
            "SOJOURN_USER": users["admin-user"], "SOJOURN_PASSWORD": users["admin-password"],
            "PATH": str(Path(SOJOURN).parent), "HOME": str(tmp_path),
        }  # fmt: skip
        checked = {**where, "SOJOURN_TLS_CA": str(tmp_path / "ca.crt")}
        assert (await _run(checked, "topology", "apply"))[0] == 0
        assert (await _run(checked, "topology", "check"))[0] == 0
        code, message = await _run({**where, "SOJOURN_TLS_CA": "system"}, "topology", "check")
        assert code == 3
        assert "certificate verify failed" in message.replace("\n", " ")


async def _run(env: dict[str, str], *words: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        SOJOURN, *words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode()


class Answers:
    """An API server's answers, and what it was asked."""

    def __init__(self, setup: ModuleType, existing: set[str], data: dict[str, str] | None = None) -> None:
        self._refused = setup.Refused
        self._existing = existing
        self._data = {entry: base64.b64encode(text.encode()).decode() for entry, text in (data or {}).items()}
        self.made: list[Any] = []
        self.changed: list[Any] = []

    def ask(self, method: str, group: str, kind: str, name: str = "", body: Any = None) -> Any:
        if method == "GET":
            if name not in self._existing:
                raise self._refused(404, "GET", "not found")
            return {"metadata": {"name": name, "resourceVersion": "7"}, "data": dict(self._data)}
        if method == "PUT":
            self.changed.append(body)
        if method == "POST":
            if body["metadata"]["name"] in self._existing:
                raise self._refused(409, "POST", "exists")
            self.made.append(body)
        return {}


def test_only_what_is_missing_is_made(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = Answers(setup, {"rel-keys", "rel-nats-tls"})
    monkeypatch.setattr(setup, "Kube", lambda: answers)
    assert setup.main() == 0
    assert [one["metadata"]["name"] for one in answers.made] == ["rel-nats-auth"]
    printed = capsys.readouterr().out
    assert "secret rel-keys is there and stays as it is" in printed
    for value in answers.made[0]["data"].values():
        assert value not in printed


def test_argo_cd_neither_prunes_the_secrets_nor_deletes_them_with_the_app(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They carry the label by which it may know what is an app's, and are not in Git: without a word it would prune the keys."""
    answers = Answers(setup, set())
    monkeypatch.setattr(setup, "Kube", lambda: answers)
    assert setup.main() == 0
    assert len(answers.made) == 3
    for one in answers.made:
        options = one["metadata"]["annotations"]["argocd.argoproj.io/sync-options"].split(",")
        assert {"Prune=false", "Delete=false"} <= set(options)


def test_a_secret_that_another_job_made_meanwhile_is_left(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.create(Answers(setup, {"rel-keys"}), "rel-keys", {"key": "x"})
    assert "made by somebody else meanwhile" in capsys.readouterr().out


def _text(secret: Any) -> dict[str, str]:
    return {entry: base64.b64decode(text).decode() for entry, text in secret["data"].items()}


def test_a_queue_that_is_new_gets_a_user_and_every_other_entry_stays_as_it_is(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = setup.nats_users({"mail": "mail", "old=": "old-8af0c1"})
    answers = Answers(setup, {"rel-keys", "rel-nats-tls", "rel-nats-auth"}, before)
    monkeypatch.setattr(setup, "Kube", lambda: answers)
    assert setup.main() == 0
    assert not answers.made
    (changed,) = answers.changed
    assert changed["metadata"]["resourceVersion"] == "7", (
        "the API server refuses it if somebody else was faster"
    )
    after = _text(changed)
    gone = {entry for entry in before if before[entry] != after[entry]}
    assert gone == {"accounts.conf"}
    assert after.keys() - before.keys() == {
        "worker-gpu-large-1c2f20-user",
        "worker-gpu-large-1c2f20-password",
    }
    for entry, text in after.items():
        if entry.endswith("-password"):
            assert text in after["accounts.conf"], (
                "the server knows every user, those of queues that are no longer named too"
            )
            assert text not in capsys.readouterr().out


def test_users_that_are_all_there_are_left(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = Answers(setup, {"rel-keys", "rel-nats-tls", "rel-nats-auth"}, setup.nats_users())
    monkeypatch.setattr(setup, "Kube", lambda: answers)
    assert setup.main() == 0
    assert not answers.made
    assert not answers.changed
    assert capsys.readouterr().out.count("stays as it is") == 3


async def test_a_worker_of_one_queue_sees_the_topology_and_no_other_queue_on_a_real_server(
    setup: ModuleType, tmp_path: Path
) -> None:
    users = setup.nats_users()
    async with EmbeddedServer(extra_config=users["accounts.conf"]) as server:

        async def run(role: str, user: str, *words: str) -> tuple[int | None, str]:
            where = {
                "SOJOURN_SERVER": server.url, "SOJOURN_NAMESPACE": "shop", "SOJOURN_ROLE": role,
                "SOJOURN_USER": users[f"{user}-user"], "SOJOURN_PASSWORD": users[f"{user}-password"],
                "PATH": str(Path(SOJOURN).parent), "HOME": str(tmp_path),
            }  # fmt: skip
            return await _run(where, *words)

        assert (await run("worker", "worker-mail", "topology", "check"))[0] != 0, (
            "nothing is applied yet: it waits"
        )
        assert (await run("admin", "admin", "topology", "apply"))[0] == 0
        assert (await run("worker", "worker-mail", "topology", "check"))[0] == 0
        assert (await run("worker", "worker-mail", "list"))[0] == 6
        assert (await run("worker", "worker-mail", "start", "order"))[0] == 6
        code, text = await run("node", "node", "queues", "--json")
        assert (code, json.loads(text)) == (0, {"queues": []})
