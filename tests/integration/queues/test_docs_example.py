"""The program of docs/how-to/queued-steps.md runs as the page says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from sojourn.actors.registry import Registry
from sojourn.broker.server import EmbeddedServer

from tests.kits.queues_kit import shop

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[3] / "docs/how-to/queued-steps.md"


async def test_the_pages_program_runs(
    nats_server: EmbeddedServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = re.search(r"<!-- run: thumbnails.py -->\n```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    assert text is not None
    fresh = Registry()
    for name in ("registry", "step", "workflow", "lifespan"):
        monkeypatch.setattr(importlib.import_module(f"sojourn.actors.{name}"), "default_registry", fresh)
    path = tmp_path / "thumbnails.py"
    path.write_text(text[1])
    spec = importlib.util.spec_from_file_location("thumbnails", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "thumbnails", module)
    spec.loader.exec_module(module)

    async with shop(nats_server.url, namespace, fresh) as made:
        await made.node()
        await made.worker("gpu", concurrency=2)
        handle = await made.client.start(module.album(["a.jpg", "b.jpg", "c.jpg"]))
        album = await handle.result(20)

    assert [one.picture for one in album] == ["a.jpg", "b.jpg", "c.jpg"]
    assert all(one.bytes > 0 for one in album)
