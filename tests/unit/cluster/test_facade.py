"""What `sojourn.cluster` offers to the layer above."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sojourn.cluster as cluster


def test_every_name_of_the_facade_exists_and_is_documented() -> None:
    assert sorted(cluster._WHERE) == cluster.__all__ == dir(cluster)
    assert all((getattr(cluster, name).__doc__ or "").strip() for name in cluster.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nod'"):
        cluster.Nod  # noqa: B018 - reading it is the test


def test_reading_views_does_not_load_the_engine() -> None:
    code = "import sys, sojourn.cluster; sojourn.cluster.Directory; print('sojourn.actors.engine' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
