"""The identity hash of code: equal when a frame that stands in one would go on alike in the other.

It covers the Python minor version, every instruction with its offset, the *values* of the constants (typed: `1`, `1.0`
and `True` differ), names, variable names, argument counts, flags, the exception table, and all of that for nested
code. It leaves out file, lines, docstrings and the function's own name.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import types
from collections.abc import Callable
from typing import Any

_HAS_CONST = frozenset(dis.hasconst)
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_STORE_NAME = dis.opmap["STORE_NAME"]
_DOC_NAMES = frozenset(("__doc__", "__firstlineno__", "__static_attributes__"))
_CACHE_LIMIT = 20_000

_identities: dict[int, tuple[types.CodeType, str]] = {}


def identity(code: types.CodeType) -> str:
    """The identity hash of a code object:

    16 hexadecimal digits, the same across patch releases of a Python minor. Cached.
    """
    known = _identities.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    digest = hashlib.blake2b(digest_size=8, person=b"sj-code")
    digest.update(b"%d.%d" % sys.version_info[:2])
    parts: list[bytes] = []
    _feed_code(parts.append, code)
    digest.update(b"".join(parts))
    if len(_identities) >= _CACHE_LIMIT:
        _identities.clear()
    _identities[id(code)] = (code, digest.hexdigest())
    return digest.hexdigest()


def _feed_code(feed: Callable[[bytes], None], code: types.CodeType) -> None:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_DOC_FLAG)
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    feed(b"(%d %d %d %d" % counts)
    feed(repr(names).encode())
    feed(code.co_exceptiontable)
    raw = code.co_code
    arg = 0
    for at in range(0, len(raw), 2):
        op = raw[at]
        arg = arg << 8 | raw[at + 1]
        if op == _EXTENDED_ARG:
            continue
        if op in _HAS_CONST:
            feed(b"@%d:%d=" % (at, op))
            if not _is_documentation(code, raw, at):
                _feed_constant(feed, code.co_consts[arg])
        else:
            feed(b"@%d:%d,%d" % (at, op, arg))
        arg = 0
    feed(b")")


_DOC_FLAG = 0x4000000  # CO_HAS_DOCSTRING, from 3.13


def _is_documentation(code: types.CodeType, raw: bytes, at: int) -> bool:
    """Whether the constant loaded at `at` is stored as the docstring, first line or attribute list of a class
    body.
    """
    return (
        raw[at] == _LOAD_CONST
        and at + 3 < len(raw)
        and raw[at + 2] == _STORE_NAME
        and code.co_names[raw[at + 3]] in _DOC_NAMES
    )


def _feed_constant(feed: Callable[[bytes], None], value: Any) -> None:
    kind = type(value)
    if kind is types.CodeType:
        feed(b"code " + value.co_name.encode())
        _feed_code(feed, value)
    elif kind is tuple:
        feed(b"tuple%d[" % len(value))
        for item in value:
            _feed_constant(feed, item)
        feed(b"]")
    elif kind is frozenset:
        feed(b"set%d[" % len(value))
        for part in sorted(_constant_bytes(item) for item in value):
            feed(part)
        feed(b"]")
    elif kind is slice:
        feed(b"slice")
        _feed_constant(feed, (value.start, value.stop, value.step))
    else:
        text = repr(value).encode("utf-8", "surrogatepass")
        feed(b"%s%d:" % (kind.__name__.encode(), len(text)) + text)


def _constant_bytes(value: Any) -> bytes:
    parts: list[bytes] = []
    _feed_constant(parts.append, value)
    return b"".join(parts)
