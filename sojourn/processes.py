"""Node processes as `sojourn dev` and `sojourn demo` start them: with the parent's interpreter, never outliving the parent.

A node that is asked to end (SIGTERM) drains; one that does not within its time is killed. Where the kernel can (Linux), a
node gets SIGTERM when its parent is killed, by the same small wrapper as the embedded server's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Literal

from sojourn.broker.server import dying_with_parent

DRAIN_SECONDS: Final = 30.0
"""How long a node may take to drain before it is killed."""


class NodeProcess:
    """One `sojourn node` (or `sojourn worker`) as a child process. Its output goes to `log`, or to the parent's own when that is
    None.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        command: Literal["node", "worker"] = "node",
    ) -> None:
        self.name = name
        self.log = log
        self._command = dying_with_parent([sys.executable, "-m", "sojourn.cli", command, *arguments])
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._output: IO[bytes] | None = None

    def __repr__(self) -> str:
        return f"<NodeProcess {self.name} {f'pid {self.pid}' if self.running else 'stopped'}>"

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, or before it was started. Negative: the signal that ended it."""
        return self._process.returncode if self._process is not None else None

    @property
    def killed(self) -> str:
        """Name of the signal that ended it, such as "SIGKILL"; empty when none did."""
        code = self.code
        return signal.Signals(-code).name if code is not None and code < 0 else ""

    @property
    def pid(self) -> int:
        """Process id; 0 before it was started. It stays after the end, for whoever wrote it down."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start it. Whether it is ready is the broker's to say (`node.<id>`)."""
        self._output = self.log.open("ab") if self.log is not None else None
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env={**os.environ, **self._environment},
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which ends this in its own order
        )

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None, "it was never started"
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash would be. Fine when it has ended."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM: it drains. Fine when it has ended."""
        self._signal(signal.SIGTERM)

    async def stop(self, seconds: float = DRAIN_SECONDS) -> int:
        """Drain it and wait; kill it when that takes longer than `seconds`. Its exit code; 0 when it was never started."""
        if self._process is None:
            return 0
        self.terminate()
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()
        finally:
            if self._output is not None:
                self._output.close()

    def last_words(self, characters: int = 2_000) -> str:
        """The end of its log."""
        if self.log is None or not self.log.exists():
            return ""
        return self.log.read_text(errors="replace")[-characters:]

    def _signal(self, which: signal.Signals) -> None:
        if self.running:
            # Not by the process object: that polls first, and takes the exit code of one that has just ended by itself from
            # the loop's watcher, which then tells of 255.
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)
