"""An actor's public facts in one message header, for watchers and views.

The server can republish headers without the record, so whoever waits for a change learns it cheaply. One
header, `Sj-Index: actor=order-42&run=...`, percent-encoded ASCII: one header costs a third of ten in
client and server (the client checks each by a regular expression). No decision is ever taken from headers:
they are not under the seal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from sojourn.broker.seam import Headers
from sojourn.codecs.record import Index

INDEX = "Sj-Index"
MAX_TEXT = 200
"""Stage, wait, and reason are cut to this many characters."""
MAX_HEADER = 4096


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What a watcher learns from headers.

    Strings are as the actor's owner wrote them: escape before printing.
    """

    actor: str
    run: str
    workflow: str
    status: str
    transition: int
    created: float
    updated: float
    deployment: str = ""
    stage: str = ""
    wait: str = ""
    hold: str = ""
    reason: str = ""
    lane: str = ""
    parent: str = ""
    node: str = ""
    tags: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    """Stages, waits and names repeat: encoding them was half of the header's cost."""
    return quote(text[:MAX_TEXT])


def index_headers(index: Index) -> Headers:
    """The header for this index."""
    fields = [
        f"actor={index.actor}&run={index.run}&workflow={_quoted(index.workflow)}&status={index.status.value}"
        f"&transition={index.transition}&created={index.created:.3f}&updated={index.updated:.3f}"
    ]
    if text := index.deployment:
        fields.append("deployment=" + _quoted(text))
    if text := index.stage:
        fields.append("stage=" + _quoted(text))
    if text := index.wait:
        fields.append("wait=" + _quoted(text))
    if text := index.hold:
        fields.append(f"hold={_quoted(text)}&reason={_quoted(index.hold_reason)}")
    if text := index.lane:
        fields.append("lane=" + _quoted(text))
    if text := index.parent:
        fields.append("parent=" + _quoted(text))
    if text := index.node:
        fields.append("node=" + _quoted(text))
    if index.tags:
        fields.append("tags=" + ",".join(quote(tag[:MAX_TEXT], safe="") for tag in index.tags))
    header = "&".join(fields)
    while len(header) > MAX_HEADER and len(fields) > 1:  # tags first, then what stands last
        fields.pop()
        header = "&".join(fields)
    return {INDEX: header}


def parse_index_headers(headers: Headers) -> IndexFacts | None:
    """The facts out of a message's headers, or None when it has none or they are not well formed."""
    header = headers.get(INDEX)
    if header is None or len(header) > 2 * MAX_HEADER:
        return None
    raw = dict(pair.split("=", 1) for pair in header.split("&") if "=" in pair)
    text = {name: unquote(value) for name, value in raw.items() if name != "tags"}
    try:
        return IndexFacts(
            actor=text["actor"],
            run=text["run"],
            workflow=text["workflow"],
            status=text["status"],
            transition=int(text["transition"]),
            created=float(text["created"]),
            updated=float(text["updated"]),
            deployment=text.get("deployment", ""),
            stage=text.get("stage", ""),
            wait=text.get("wait", ""),
            hold=text.get("hold", ""),
            reason=text.get("reason", ""),
            lane=text.get("lane", ""),
            parent=text.get("parent", ""),
            node=text.get("node", ""),
            tags=tuple(unquote(tag) for tag in raw["tags"].split(",")) if raw.get("tags") else (),
        )
    except (KeyError, ValueError):
        return None
