"""A workflow suspended by one version of the code is resumed only by a node that has that code."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit import KITS, cluster

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

V1 = """
from acceptance_app import effect, go
from sojourn import workflow


@workflow
async def versioned() -> int:
    await effect("before")
    answer = await go.receive()
    return answer + 1000
"""
CHANGED = V1.replace("1000", "2000")
SAME = V1.replace("@workflow", "# moved by a comment\n\n\n@workflow").replace(
    '    await effect("before")', '    """With a docstring."""\n\n    await effect("before")  # and this'
)


def _version(place: Path, name: str, text: str) -> Path:
    folder = place / name
    folder.mkdir()
    (folder / "versioned_app.py").write_text(text)
    (folder / "acceptance_app.py").write_text((KITS / "acceptance_app.py").read_text())
    return folder


async def test_a_changed_constant_is_refused_unharmed_and_completes_on_its_own_version(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await made.add("v1", app="versioned_app", path=_version(tmp_path, "one", V1))
        (actor,) = await made.start_many("versioned", [[]], "v")
        await made.until_index(actor, lambda index: index.wait.startswith("receive"))
        made.nodes["v1"].terminate()
        assert await made.nodes["v1"].wait() == 0
        await made.add("v2", app="versioned_app", path=_version(tmp_path, "two", CHANGED))
        await made.signal_many([actor], "go", b"1")
        held = await made.until_index(actor, lambda index: index.hold == "pin")
        assert "versioned" in held.hold_reason
        description = await made.client.handle(actor).describe()
        assert "versioned" in description.sentence
        made.nodes["v2"].terminate()
        assert await made.nodes["v2"].wait() == 0
        await made.add("v1b", app="versioned_app", path=tmp_path / "one")
        assert await made.results([actor]) == [1001]


async def test_a_comment_a_docstring_and_a_moved_line_are_no_change(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await made.add("v1", app="versioned_app", path=_version(tmp_path, "one", V1))
        (actor,) = await made.start_many("versioned", [[]], "v")
        await made.until_index(actor, lambda index: index.wait.startswith("receive"))
        made.nodes["v1"].terminate()
        assert await made.nodes["v1"].wait() == 0
        await made.add("v2", app="versioned_app", path=_version(tmp_path, "two", SAME))
        await made.signal_many([actor], "go", b"1")
        assert await made.results([actor]) == [1001]
