"""Every rendered object against the schemas of Kubernetes 1.28 to 1.37, strictly; and against checkov."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from chart_kit import CHART, CI_VALUES, TOOLS, Objects, render, render_text

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
WHOLE = bool(os.environ.get("CHART_SCAN"))
CHECKED = VERSIONS if WHOLE else [VERSIONS[0], VERSIONS[-1]]
"""The first and the last in the everyday run, all with `make chart`."""
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Of other projects' schemas, which that package does not have."""
CHECKOV = "checkov==3.3.30"


@cache
def rendered(file: Path) -> Objects:
    return render(file)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # the validator's own, of the library it reads schemas with
@pytest.mark.parametrize("version", CHECKED)
@pytest.mark.parametrize("file", CI_VALUES, ids=lambda file: file.stem)
def test_objects_are_valid(file: Path, version: str) -> None:
    for one in rendered(file):
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_validator_would_notice() -> None:
    broken: Any = json.loads(json.dumps(rendered(CI_VALUES[0]).of("Deployment")[0]))
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_an_older_kubernetes_is_refused() -> None:
    done = render_text(CHART / "ci/external.yaml", arguments=["--kube-version", "1.27.0"], check=False)
    assert "requires kubeVersion: >=1.28.0-0" in done.stderr


SKIPPED = {
    "CKV_K8S_43": "images by digest: `image.digest` and `nats.image.digest` do that; a tag is the everyday",
    "CKV_K8S_15": "pull always: a tag names one version for ever here, so what is on the host is it; `image.pullPolicy` changes it",
    "CKV_K8S_38": "a token is mounted where the API server is talked to (setup, janitor, leave), each with a role of its own",
}


@pytest.mark.skipif(not WHOLE, reason="takes 290 MB: `make chart` runs it")
@pytest.mark.timeout(600)
def test_checkov_finds_nothing_that_has_no_reason(tmp_path: Path) -> None:
    folder = TOOLS / "checkov"
    if not (folder / "bin/checkov").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
            subprocess.run([str(folder / "bin/pip"), "-q", "install", CHECKOV], check=True, timeout=400)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"checkov cannot be installed: {error}")
    for file in CI_VALUES:
        (tmp_path / f"{file.stem}.yaml").write_text(render_text(file).stdout)
    done = subprocess.run(
        [
            str(folder / "bin/checkov"), "--directory", str(tmp_path), "--framework", "kubernetes", "--output", "json",
            "--compact", "--quiet", "--skip-download", "--skip-check", ",".join(SKIPPED),
        ],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    failed = [
        f"{one['check_id']} {one['check_name']}: {one['resource']}"
        for one in report["results"]["failed_checks"]
    ]
    assert not failed, "\n".join(failed)
    assert report["summary"]["passed"] > 500
