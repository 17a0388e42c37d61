"""`.sojourn/dev.json`: how a running `sojourn dev` tells the other commands in its folder where its server
is.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

FOLDER: Final = ".sojourn"
_NAME: Final = "dev.json"


@dataclass(frozen=True, slots=True)
class DevFile:
    """Address and namespace of a running `sojourn dev`, and its process."""

    server: str
    namespace: str
    pid: int

    @classmethod
    def read(cls, folder: Path) -> DevFile | None:
        """What is running in `folder`, or None: no file, not ours, or its process is gone."""
        try:
            found = orjson.loads((folder / FOLDER / _NAME).read_bytes())
            dev = cls(str(found["server"]), str(found["namespace"]), int(found["pid"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return dev if process_lives(dev.pid) else None

    def serves(self, server: str, namespace: str) -> bool:
        """Whether this is the server and namespace that are meant."""
        return namespace == self.namespace and _address(self.server) in map(_address, server.split(","))

    def write(self, folder: Path) -> None:
        """Leave it in `folder`/.sojourn."""
        place = folder / FOLDER
        place.mkdir(exist_ok=True)
        (place / _NAME).write_bytes(orjson.dumps(asdict(self)))

    @staticmethod
    def remove(folder: Path) -> None:
        """Take it away; fine when it is not there."""
        (folder / FOLDER / _NAME).unlink(missing_ok=True)


def _address(server: str) -> str:
    """A server's address in one spelling."""
    return server.strip().removeprefix("nats://").rstrip("/").replace("localhost:", "127.0.0.1:")


def process_lives(pid: int) -> bool:
    """Whether there is such a process on this machine, and it has not ended: one that its parent has not asked about yet (in a
    container whose first process does not) is still listed.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # no Linux, or it has gone just now
        return True
    return stat.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])
