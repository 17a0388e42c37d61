"""Every test here is of the chart or the images; without their packages it says how to get them."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
WHY = "needs the packages of requirements/chart.lock: `make chart` installs them"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chart)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return None


pytest.importorskip("yaml", reason=WHY)
pytest.importorskip("kubernetes_validate", reason=WHY)
