"""The worker as a process is seen: its pages, its refusals, and `sojourn dev`, which has one beside its node."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from sojourn.actors.registry import Registry
from sojourn.broker.errors import StreamNotFound
from sojourn.broker.nats import NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.cluster.node import OtherApp
from sojourn.cluster.worker import NothingToDo, Worker, WorkerOptions

from sojourn.cli.app import cli
from tests.kits.queues_kit import Shop

from . import queue_app as app

pytestmark = pytest.mark.integration
SECONDS = 20
PAGE = Path(__file__).parents[3] / "docs/how-to/queued-steps.md"


async def read(url: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def test_the_pages_say_how_it_is(shop: Shop) -> None:
    await shop.node()
    worker = await shop.worker(health_port=0, worker_id="w1")
    assert await read(f"{worker.health_address}/livez") == (200, "alive\n")
    assert await read(f"{worker.health_address}/readyz") == (200, "takes tasks, 0 tasks run\n")

    handle = await shop.client.start(app.waiting(1))
    assert await asyncio.to_thread(app.begun.wait, SECONDS)
    assert (
        'sojourn_step_queue_running{worker="w1",queue="gpu"} 1'
        in (await read(f"{worker.health_address}/metrics"))[1]
    )
    worker.drain()
    status, text = await read(f"{worker.health_address}/readyz")
    assert (status, text) == (503, "leaving: 1 tasks run\n")
    app.go.set()
    assert await handle.result(SECONDS) == 2
    await shop.ended(worker)
    assert 'finished_total{worker="w1",queue="gpu",outcome="ok"} 1' in worker.metrics.text()


async def test_it_is_not_ready_while_it_is_not_connected(own_server: EmbeddedServer, namespace: str) -> None:
    from tests.kits.queues_kit import shop as new_shop

    app.forget()
    async with new_shop(own_server.url, namespace, app.R) as made:
        await made.node()
        worker = await made.worker(health_port=0)
        handle = await made.client.start(app.waiting(1))
        assert await asyncio.to_thread(app.begun.wait, SECONDS)
        await own_server.kill()
        async with asyncio.timeout(SECONDS):
            while (await read(f"{worker.health_address}/readyz"))[0] != 503:
                continue
        app.go.set()
        await own_server.restart()

        assert await handle.result(SECONDS) == 2
        assert (await read(f"{worker.health_address}/readyz"))[0] == 200


def options(url: str, namespace: str, *queues: str, **more: object) -> WorkerOptions:
    return WorkerOptions(  # type: ignore[arg-type]  # options by name
        **{
            "app": "shop",
            "queues": queues,
            "nats": NatsOptions(servers=url),
            "namespace": namespace,
            "registry": app.R,
            "health_port": None,
            **more,
        }
    )


def test_a_queue_that_no_step_names_is_refused_with_those_there_are() -> None:
    with pytest.raises(NothingToDo) as caught:
        Worker(options("nats://none", "n", "gpus"))
    assert str(caught.value) == (
        "app 'shop' has no step for queue 'gpus': its steps name cpu, gpu; "
        'write @step(queue="gpus"), or serve another --queue'
    )
    with pytest.raises(NothingToDo, match="has no step for a worker: none of its steps names one"):
        Worker(options("nats://none", "n", registry=Registry([app.local])))
    with pytest.raises(ValueError, match="concurrency: expected 1 to 1000, received 0"):
        Worker(options("nats://none", "n", "gpu", concurrency=0))


async def test_a_namespace_of_another_app_or_of_none_is_refused(
    shop: Shop, nats_server: EmbeddedServer
) -> None:
    with pytest.raises(OtherApp):
        await Worker(options(shop.url, shop.subjects.namespace, "gpu", app_name="another")).run()
    with pytest.raises(StreamNotFound):
        await Worker(options(shop.url, "nothing-here", "gpu")).run()


async def test_it_waits_for_a_node_that_makes_its_queue(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    worker = await shop.worker(health_port=0, concurrency=3)
    async with asyncio.timeout(SECONDS):
        while (await read(f"{worker.health_address}/readyz")) != (503, "no task can be had of queue gpu\n"):
            continue

    await shop.node()

    assert await (await shop.client.start(app.developed("x"))).result(SECONDS) == "x, attempt 1"
    assert (await read(f"{worker.health_address}/readyz"))[0] == 200
    said = [record.getMessage() for record in caplog.records if "can be had" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith("(a node of this app makes the queue when it starts)")


def test_the_command_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "an_app_with_a_queue.py").write_text(
        "from sojourn import step\n\n\n@step(queue='gpu')\ndef f() -> int:\n    return 1\n"
    )

    def run(line: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, shlex.split(line), env={"COLUMNS": "160"})
        return done.exit_code, done.stderr

    code, said = run("worker an_app_with_a_queue.py --queue cpu")
    assert code == 1
    assert "has no step for queue 'cpu': its steps name" in said
    code, said = run("worker an_app_with_a_queue.py --queue gpu --server nats://127.0.0.1:1")
    assert code == 3
    code, said = run("roles config --role worker")
    assert code == 2
    assert "--queue NAME" in said


async def test_dev_runs_a_worker_beside_its_node(tmp_path: Path) -> None:
    text = re.search(r"<!-- run: thumbnails.py -->\n```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    assert text is not None
    (tmp_path / "thumbnails.py").write_text(text[1])
    words = [sys.executable, "-m", "sojourn.cli"]
    dev = await asyncio.create_subprocess_exec(
        *words, "dev", "thumbnails.py", "--no-reload", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert dev.stdout is not None
        async with asyncio.timeout(60):
            while b"takes steps of gpu" not in await dev.stdout.readline():
                continue
            for line in ("start album '[\"a.jpg\"]' --id a1", "result a1 --timeout 20s --json"):
                command = await asyncio.create_subprocess_exec(
                    *words, *shlex.split(line), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
                )
                said, _ = await command.communicate()
                assert command.returncode == 0
        assert b"a.jpg" in said
    finally:
        dev.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(dev.wait(), 40) == 0
