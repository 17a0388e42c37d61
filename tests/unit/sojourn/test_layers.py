"""Imports point one way, and the package is what the tree says (ADR 0002)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LAYERS = ("codecs", "broker", "actors", "cluster", "sojourn")
"""Lower first; a layer may import itself and those before it."""
CLUSTER = ("tenure", "deployments", "mail", "steps", "hosting", "holding", "")
"""Folders of the cluster layer, lower first; the last is the layer's own. For type checking alone any may name any."""


def modules(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


def imported(path: Path, layer: str, *, typing: bool = True) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything of Sojourn that a module imports, at any depth. `typing`: for type checking too."""
    package = "sojourn" if layer == "sojourn" else f"sojourn.{layer}"
    inside = [package, *path.relative_to(ROOT / layer).parent.parts]
    tree = ast.parse(path.read_text())
    unread = (
        set()
        if typing
        else {id(node) for block in tree.body if _is_typing(block) for node in ast.walk(block)}
    )
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "sojourn":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ".".join(inside).split(".")
                base = ".".join(parts[: len(parts) - node.level + 1] + ([base] if base else []))
            if base == "sojourn":
                yield from ((node.lineno, f"sojourn.{alias.name}") for alias in node.names)
            elif base.startswith("sojourn."):
                yield node.lineno, base


def _is_typing(block: ast.stmt) -> bool:
    return isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"


def layer_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS[:-1] else "sojourn"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_lower_ones(layer: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(layer)
        for line, name in imported(path, layer)
        if layer_of(name) not in allowed
    ]
    assert upward == [], f"{layer} may import {', '.join(allowed)} only"


@pytest.mark.parametrize("folder", CLUSTER[:-1])
def test_a_folder_of_the_cluster_loads_only_itself_and_lower_ones(folder: str) -> None:
    allowed = CLUSTER[: CLUSTER.index(folder) + 1]
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "cluster" / folder).glob("*.py"))
        for line, name in imported(path, "cluster", typing=False)
        if name.startswith("sojourn.cluster") and folder_of(name) not in allowed
    ]
    assert upward == [], f"{folder} may import {', '.join(allowed)} only"


def folder_of(name: str) -> str:
    parts = name.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in CLUSTER else ""


def test_nothing_but_the_demo_imports_the_examples() -> None:
    """An example is a leaf: users copy it, so nothing may grow on it."""
    importing = [
        str(path.relative_to(ROOT))
        for layer in LAYERS
        for path in modules(layer)
        for _, name in imported(path, layer)
        if name.startswith("sojourn.examples") and "demo" not in path.parts
    ]
    assert importing == []


def test_every_package_of_the_tree_is_installed() -> None:
    """Folders with an `__init__.py` are exactly what pyproject.toml lists."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = setuptools["package-dir"]

    def folder(package: str) -> str:
        if package in folders:
            return str(folders[package])
        parent, _, own = package.rpartition(".")
        return f"{folder(parent)}/{own}"

    listed = {folder(package) for package in setuptools["packages"]}
    present = {
        str(path.parent.relative_to(ROOT))
        for top in (*LAYERS, "examples")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert listed == present


def test_importing_the_public_face_loads_no_layer() -> None:
    """A client that only signals must not pay for the engine: `import sojourn` alone loads none of it (PEP
    562).
    """
    import subprocess
    import sys

    script = "import sojourn, sys; print([n for n in sys.modules if n.startswith('sojourn.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"
