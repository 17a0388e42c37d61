"""mypy and pyright find the public face rightly typed, and every mistake of `mistakes.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ["tests/typing/api.py", "tests/typing/mistakes.py"]


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a checker of this environment, with the links that show it the package (`make types`)."""
    found = shutil.which(tool, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{tool} is not installed here: it comes with `make lint`, which checks the same files")
    subprocess.run(["make", "-s", "types"], cwd=ROOT, check=True)
    return subprocess.run([found, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.timeout(300)
def test_mypy_agrees() -> None:
    done = run("mypy", "--follow-imports=silent", *FILES)
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(300)
def test_pyright_agrees() -> None:
    done = run("pyright", *FILES)
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(300)
def test_a_mistake_without_its_comment_is_found_by_both(tmp_path: Path) -> None:
    """The checkers really look: the same file without comments has an error on each of these lines."""
    lines = (ROOT / "tests/typing/mistakes.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# type: ignore" in line}
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(line.split("  # type: ignore")[0] for line in lines))
    done = run("mypy", "--follow-imports=silent", "--strict", str(bare))
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == wrong
    assert len(wrong) >= 25
