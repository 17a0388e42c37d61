"""A frame whose head is damaged is refused before anything is unpickled. (What comes from a broker is read only after
its record's seal holds, so the pickle itself is never a stranger's.)

`SOJOURN_MUTATIONS=1000000` runs that many, in processes of their own, so that a crash is seen as one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MUTATIONS = int(os.environ.get("SOJOURN_MUTATIONS", "2000"))
SEED = int(os.environ.get("SOJOURN_MUTATIONS_SEED", random.SystemRandom().randrange(1 << 32)))

SCRIPT = textwrap.dedent(
    """
    import faulthandler, gc, random, resource, sys, warnings
    faulthandler.enable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    sys.unraisablehook = lambda _: None
    import frame_programs
    from sojourn.codecs import frames
    """
)


@pytest.mark.timeout(7200)
def test_a_damaged_frame_header_is_refused_without_being_unpickled() -> None:
    """Every mutation of what stands before the pickle is refused by its form or by the pin."""
    script = SCRIPT + textwrap.dedent(
        f"""
        from sojourn.codecs.errors import PinNotSatisfied
        chooser = random.Random({SEED})
        target = frame_programs.managers([])
        target.send(None)
        data = frames.dump(target).data
        head = 8 + int.from_bytes(data[4:8], "little")
        refused = 0
        for _ in range({MUTATIONS}):
            broken = bytearray(data)
            for _ in range(1 + chooser.randrange(3)):
                broken[chooser.randrange(head)] = chooser.randrange(256)
            if bytes(broken) == data:
                refused += 1
                continue
            try:
                frames.load(bytes(broken))
            except PinNotSatisfied:
                refused += 1
        assert refused == {MUTATIONS}, refused
        print("refused", refused)
        """
    )
    print(f"seed {SEED}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=7000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"refused {MUTATIONS}" in done.stdout
