"""The server's rules for subjects, for the in-memory twin: matching, overlapping filters, transforms
(ADR-36).

Compiled patterns and parsed templates are cached in bounded caches: a twin that serves a simulation asks
the same few filters a million times.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sojourn.broker.subjects import fnv_partition


def matches(subject: str, pattern: str) -> bool:
    """Whether a subject falls under a filter (`*` one token, `>` one or more at the end)."""
    return pattern == subject or _compiled(pattern).fullmatch(subject) is not None


def overlap(first: str, second: str) -> bool:
    """Whether some subject could match both filters."""
    a, b = first.split("."), second.split(".")
    for left, right in zip(a, b, strict=False):
        if left == ">" or right == ">":
            return True
        if left != right and left != "*" and right != "*":
            return False
    return len(a) == len(b)


def transform(subject: str, rule: tuple[str, str]) -> str:
    """The subject under which the server stores a message; itself when the rule's source does not match."""
    source, destination = rule
    pattern = _captures(source).fullmatch(subject)
    if pattern is None:
        return subject
    wildcards = pattern.groups()
    return ".".join(_mapped(part, wildcards) for part in destination.split("."))


def _mapped(part: str, wildcards: tuple[str, ...]) -> str:
    call = _CALL.fullmatch(part)
    if call is None:
        return part
    numbers = [int(n) for n in call["numbers"].split(",")]
    if call["function"] == "wildcard":
        return wildcards[numbers[0] - 1]
    chosen = "".join(wildcards[n - 1] for n in numbers[1:])
    return str(fnv_partition(chosen, numbers[0]))


_CALL = re.compile(r"\{\{(?P<function>wildcard|partition)\((?P<numbers>[0-9,]+)\)\}\}")


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_expression(pattern, r"[^.]+", r".+"), re.DOTALL)


@lru_cache(maxsize=256)
def _captures(pattern: str) -> re.Pattern[str]:
    return re.compile(_expression(pattern, r"([^.]+)", r"(.+)"), re.DOTALL)


def _expression(pattern: str, one: str, rest: str) -> str:
    tokens = pattern.split(".")
    return r"\.".join(one if t == "*" else rest if t == ">" else re.escape(t) for t in tokens)
