"""What is damaged is refused before anything is unpickled: a record by its seal, a frame's head by its form or its pin.
(What comes from a broker is read only after its record's seal holds, so the pickle itself is never a stranger's.)

`SOJOURN_MUTATIONS=1000000` makes that many of each, in processes of their own, so that a crash is seen as one;
`SOJOURN_MUTATIONS_SEED` sets the seed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

MUTATIONS = int(os.environ.get("SOJOURN_MUTATIONS", "3000"))
SEED = int(os.environ.get("SOJOURN_MUTATIONS_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["records", "heads"])
def test_what_is_damaged_is_refused_without_a_crash_and_reaches_no_unpickler(kind: str) -> None:
    print(f"seed {SEED}")
    program = Path(__file__).with_name("mutations.py")
    words = [sys.executable, "-X", "faulthandler", str(program), kind, str(MUTATIONS), str(SEED)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=7000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"refused {MUTATIONS}" in done.stdout
