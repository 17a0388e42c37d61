"""JetStream's wire format as pure functions: values of the seam to headers and JSON, and back. No socket, no
clock.

The server is strict about JSON (an unknown field is refused with 10025, tried on 2.15.1), so every name
here is one it knows. Sources: ADR-1 (API), ADR-31 (direct get), ADR-43 (TTL), ADR-50 (batch), ADR-51
(schedules).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import orjson
from sojourn.broker.errors import (
    MailboxFull,
    OutcomeUnknown,
    Refused,
    StreamNotFound,
    WrongLastSequence,
)
from sojourn.broker.seam import (
    Ack,
    ConsumerConfig,
    Headers,
    Publish,
    Stored,
    StreamConfig,
    StreamInfo,
)

Json: TypeAlias = dict[str, Any]
"""A JSON object from the server; its fields are checked where they are read."""

WRONG_LAST_SEQUENCE = 10071
WRONG_LAST_SEQUENCE_IN_FLIGHT = 10164
STORE_FAILED = 10077
DUPLICATE_IN_FLIGHT = 10158
"""A message of the same id is under way to the replicas: perhaps an earlier try of this very one."""
NO_MESSAGE_FOUND = 10037
NO_MESSAGE_TO_DELETE = 10057
NO_SUCH_SEQUENCE = 10043
"""What a delete is told of a message that is gone from between others; the first and the last have the code above."""
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
TOO_MANY_REQUESTS = 429
UNAVAILABLE = 503

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# writes
def publish_headers(message: Publish) -> dict[str, str] | None:
    """The headers of a message to be stored; None when it needs none."""
    headers = dict(message.headers)
    if message.expect_last is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(message.expect_last)
        if message.expect_filter is not None:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = message.expect_filter
    if message.ttl is not None:
        headers["Nats-TTL"] = f"{message.ttl}s"
    if message.rollup:
        headers["Nats-Rollup"] = "sub"
    if message.msg_id is not None:
        headers["Nats-Msg-Id"] = message.msg_id
    if message.schedule_at is not None and message.schedule_target is not None:
        headers["Nats-Schedule"] = f"@at {rfc3339(message.schedule_at)}"
        headers["Nats-Schedule-Target"] = message.schedule_target
    if message.cancel_schedule is not None:
        headers["Nats-Schedule-Next"] = "purge"
        headers["Nats-Scheduler"] = message.cancel_schedule
    return headers or None


def parse_ack(data: bytes, message: Publish) -> Ack:
    """The answer to a stored message. Raises as `Broker.publish`."""
    answer = _object(data, "publish", message.subject)
    error = answer.get("error")
    if error is not None:
        raise publish_error(error, message)
    return Ack(answer["stream"], answer["seq"], answer.get("duplicate", False))


def publish_error(error: Json, message: Publish) -> Exception:
    """The exception for a refused publish.

    503 and 429 mean that the server cannot do it *now* (no leader, store closing, too many batches): they are
    an unknown outcome to the caller, which reads and tries again, except for the full stream, which is final.
    So is the copy that is under way: it may be stored yet (tried), or get lost with its leader.
    """
    code, description = error.get("err_code", 0), error.get("description", "")
    if code in (WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_IN_FLIGHT):
        actual = description.rpartition(": ")[2]
        return WrongLastSequence(
            int(actual) if actual.isdigit() else None, message.expect_last, message.subject
        )
    if code == STORE_FAILED and description.startswith("maximum"):
        return MailboxFull(message.subject, description)
    if error.get("code") in (UNAVAILABLE, TOO_MANY_REQUESTS) or code == DUPLICATE_IN_FLIGHT:
        return OutcomeUnknown("publish", message.subject, f"{description} ({code})")
    return Refused(code, description, message.subject)


def api_error(error: Json, operation: str, subject: str, stream: str) -> Exception:
    """The exception for an error answer of the JetStream API."""
    code, description = error.get("err_code", 0), error.get("description", "")
    if code == STREAM_NOT_FOUND:
        return StreamNotFound(stream)
    if error.get("code") in (UNAVAILABLE, TOO_MANY_REQUESTS):
        return OutcomeUnknown(operation, subject, f"{description} ({code})")
    return Refused(code, description, subject)


def parse_answer(data: bytes, operation: str, subject: str) -> Json:
    """An API answer as an object. An unreadable one is an unknown outcome."""
    return _object(data, operation, subject)


def _object(data: bytes, operation: str, subject: str) -> Json:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise OutcomeUnknown(operation, subject, f"the answer is not JSON ({len(data)} bytes)") from error
    if not isinstance(answer, dict):
        raise OutcomeUnknown(operation, subject, f"expected a JSON object, received {type(answer).__name__}")
    return answer


# stored messages
def parse_stored(stream: str, message: Json) -> Stored:
    """A message out of a `STREAM.MSG.GET` answer."""
    raw_headers = message.get("hdrs")
    data = message.get("data")
    return Stored(
        stream=stream,
        seq=message["seq"],
        subject=message["subject"],
        payload=base64.b64decode(data) if data else b"",
        headers=parse_headers(base64.b64decode(raw_headers)) if raw_headers else {},
        time=unix_nanoseconds(message["time"]) / 1e9,
    )


def parse_headers(raw: bytes) -> dict[str, str]:
    """A header block as stored: `NATS/1.0`, then a name and a value per line. Broken lines are skipped."""
    headers: dict[str, str] = {}
    for line in raw.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.strip().decode("ascii", "replace")] = value.strip().decode("utf-8", "replace")
    return headers


_DIRECT = frozenset(
    (
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
    )
)


def parse_direct(headers: Mapping[str, str], payload: bytes) -> Stored:
    """A message out of a direct-get answer, whose own facts ride in headers."""
    return Stored(
        stream=headers["Nats-Stream"],
        seq=int(headers["Nats-Sequence"]),
        subject=headers["Nats-Subject"],
        payload=payload,
        headers={name: value for name, value in headers.items() if name not in _DIRECT},
        time=unix_nanoseconds(headers["Nats-Time-Stamp"]) / 1e9,
    )


def is_whole(answers: Sequence[Mapping[str, str]]) -> bool:
    """Whether nothing is missing in the headers of a batch of direct gets, the closing 204 included: each names the sequence before it.

    They come from any server; when the route from there is cut and comes back meanwhile, what was on it is lost, and the end may arrive.
    """
    before = "0"
    for headers in answers:
        if headers.get("Nats-Last-Sequence") != before:
            return False
        before = headers.get("Nats-Sequence", "")
    return True


def parse_delivery(reply: str) -> tuple[str, int, int, int, int]:
    """Stream, deliveries so far, stream sequence, consumer sequence, time (Unix ns) out of an ack subject.

    `$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>`, or the longer form
    with domain and account hash before the stream (ADR-15).
    """
    parts = reply.split(".")
    if len(parts) >= 11:
        parts = parts[:2] + parts[4:]
    return parts[2], int(parts[4]), int(parts[5]), int(parts[6]), int(parts[7])


def encode_headers(headers: Headers) -> dict[str, str] | None:
    """Headers of a plain message."""
    return dict(headers) or None


# time
def rfc3339(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=round(at * 1e6))).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_nanoseconds(text: str) -> int:
    """An RFC 3339 time of the server as Unix nanoseconds (it gives nine digits, Python's parser takes six)."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"expected an RFC 3339 time, received {text[:60]!r}")
    main, digits, zone = found.groups(default="")
    seconds = round((datetime.fromisoformat(main + zone.replace("Z", "+00:00")) - _EPOCH).total_seconds())
    return seconds * 1_000_000_000 + int(digits.ljust(9, "0"))


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


# streams and consumers
def stream_to_json(config: StreamConfig) -> Json:
    """The configuration as the API takes it."""
    fields: Json = {
        "name": config.name,
        "subjects": list(config.subjects),
        "retention": config.retention,
        "discard": config.discard,
        "storage": "file",
        "num_replicas": config.replicas,
        "max_msgs": -1,
        "max_msgs_per_subject": config.max_msgs_per_subject,
        "discard_new_per_subject": config.discard_new_per_subject,
        "max_bytes": config.max_bytes,
        "max_age": _nanoseconds(config.max_age),
        "max_consumers": config.max_consumers,
        "max_msg_size": config.max_msg_size,
        "duplicate_window": _nanoseconds(config.duplicate_window),
        "allow_msg_schedules": config.allow_schedules,
        "allow_msg_ttl": config.allow_ttl,
        "allow_atomic": config.allow_atomic,
        "allow_rollup_hdrs": config.allow_rollup,
        "allow_direct": config.allow_direct,
        "deny_purge": config.deny_purge,
    }
    if config.transform is not None:
        fields["subject_transform"] = {"src": config.transform[0], "dest": config.transform[1]}
    if config.republish is not None:
        source, destination = config.republish
        fields["republish"] = {"src": source, "dest": destination, "headers_only": True}
    if config.marker_ttl is not None:
        fields["subject_delete_marker_ttl"] = _nanoseconds(config.marker_ttl)
    return fields


def stream_from_json(fields: Json) -> StreamConfig:
    """What the server has, in the seam's words."""
    transform, republish = fields.get("subject_transform"), fields.get("republish")
    marker_ttl = fields.get("subject_delete_marker_ttl", 0)
    return StreamConfig(
        name=fields["name"],
        subjects=tuple(fields.get("subjects") or ()),
        retention=fields["retention"],
        discard=fields["discard"],
        replicas=fields["num_replicas"],
        max_msgs_per_subject=fields.get("max_msgs_per_subject", -1),
        discard_new_per_subject=fields.get("discard_new_per_subject", False),
        max_bytes=fields["max_bytes"],
        max_age=fields["max_age"] / 1e9,
        max_consumers=fields["max_consumers"],
        max_msg_size=fields.get("max_msg_size", -1),
        duplicate_window=fields.get("duplicate_window", 0) / 1e9,
        transform=(transform["src"], transform["dest"]) if transform else None,
        republish=(republish["src"], republish["dest"]) if republish else None,
        allow_schedules=fields.get("allow_msg_schedules", False),
        allow_ttl=fields.get("allow_msg_ttl", False),
        allow_atomic=fields.get("allow_atomic", False),
        allow_rollup=fields.get("allow_rollup_hdrs", False),
        allow_direct=fields.get("allow_direct", False),
        deny_purge=fields.get("deny_purge", False),
        marker_ttl=marker_ttl / 1e9 if marker_ttl else None,
    )


def knows_no_leader(answer: Json) -> bool:
    """Whether an `INFO` answer is the word of one replica, not of the leader.

    A replica that has not heard of a leader for some seconds answers for itself, beside the leader that the others have:
    what it says may be old (seen on 2.15.1 after a full disk, as a stream that went back). Its answer names its group, and no leader.
    """
    cluster = answer.get("cluster") or {}
    return "raft_group" in cluster and not cluster.get("leader")


def parse_stream_info(answer: Json) -> StreamInfo:
    """State of a stream out of a `STREAM.INFO` answer."""
    state = answer["state"]
    return StreamInfo(
        name=answer["config"]["name"],
        created=unix_nanoseconds(answer["created"]),
        first_seq=state["first_seq"],
        last_seq=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        now=unix_nanoseconds(answer["ts"]) / 1e9,
    )


def consumer_to_json(stream: str, config: ConsumerConfig) -> Json:
    """A request to create this durable pull consumer; the same one again is fine."""
    fields: Json = {
        "name": config.name,
        "durable_name": config.name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": _nanoseconds(config.ack_wait),
        "max_ack_pending": config.max_ack_pending,
        "max_deliver": -1,
        "filter_subjects": list(config.filters),
    }
    if config.inactive_threshold is not None:
        fields["inactive_threshold"] = _nanoseconds(config.inactive_threshold)
    if config.max_waiting is not None:
        fields["max_waiting"] = config.max_waiting
    return {"stream_name": stream, "action": "create", "config": fields}
