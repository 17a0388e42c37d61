"""The identity hash of code: equal when a frame that stands in one would go on alike in the other.

It covers the Python minor version, every instruction with its offset, the *values* of the constants (typed: `1`, `1.0`
and `True` differ), names, variable names, argument counts, flags, the exception table, and all of that for nested
code. It leaves out file, lines, docstrings and the function's own name.
"""

from __future__ import annotations

import dis
import hashlib
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

_HAS_CONST = frozenset(dis.hasconst)
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_LOAD_SMALL_INT = dis.opmap.get("LOAD_SMALL_INT", -1)
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
    digest.update(_bytes_of(code))
    if len(_identities) >= _CACHE_LIMIT:
        _identities.clear()
    _identities[id(code)] = (code, digest.hexdigest())
    return digest.hexdigest()


def _bytes_of(code: types.CodeType) -> bytes:
    """What is hashed of a code object. The last ones are kept: a nested function is hashed alone and with those around it."""
    known = _bytes.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    parts: list[bytes] = []
    _feed_code(parts.append, code)
    made = b"".join(parts)
    if len(_bytes) >= _BYTES_LIMIT:
        _bytes.clear()
    _bytes[id(code)] = (code, made)
    return made


_BYTES_LIMIT = 64
_bytes: dict[int, tuple[types.CodeType, bytes]] = {}


def _feed_code(feed: Callable[[bytes], None], code: types.CodeType) -> None:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_DOC_FLAG)
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    feed(b"(%d %d %d %d" % counts)
    feed(repr(names).encode())
    feed(code.co_exceptiontable)
    feed(b"".join(_instructions(code)))
    feed(b")")


def _instructions(code: types.CodeType) -> list[bytes]:
    """`@offset:opcode,argument`, or `@offset:opcode=constant`, of each instruction and cache entry; b"" for a prefix.

    All at once from a table, and the few that need a look anew: every function of a deployment is hashed when it starts.
    """
    raw = code.co_code
    count = len(raw) // 2
    while len(_PLACES) < count:
        _PLACES.append(b"@%d:" % (2 * len(_PLACES)))
    words = struct.unpack(f"<{count}H", raw)
    told = [place + text for place, text in zip(_PLACES, map(_TEXTS.__getitem__, words), strict=False)]
    special = raw[::2].translate(_SPECIAL)
    at = special.find(1)
    while at >= 0:
        op, arg = raw[2 * at], raw[2 * at + 1]
        while op == _EXTENDED_ARG:
            told[at] = b""
            at += 1
            op, arg = raw[2 * at], arg << 8 | raw[2 * at + 1]
        if op in _HAS_CONST:
            parts = [b"%s%d=" % (_PLACES[at], op)]
            if not _is_documentation(code, raw, 2 * at):
                _feed_constant(parts.append, code.co_consts[arg])
            told[at] = b"".join(parts)
        else:
            told[at] = b"%s%d,%d" % (_PLACES[at], op, arg)
        at = special.find(1, at + 1)
    if "__firstlineno__" in code.co_names:
        _forget_small_lines(code, raw, told)
    return told


def _forget_small_lines(code: types.CodeType, raw: bytes, told: list[bytes]) -> None:
    """From 3.14 a class body takes its first line, when that is below 256, out of the instruction and not the constants."""
    for at in range(0, len(raw) - 2, 2):
        if (
            raw[at] == _LOAD_SMALL_INT
            and raw[at + 2] == _STORE_NAME
            and code.co_names[raw[at + 3]] in _DOC_NAMES
        ):
            told[at // 2] = b"%s%d=" % (_PLACES[at // 2], _LOAD_CONST)


class _Texts(dict[int, bytes]):
    """`opcode,argument` of an instruction, made when it is first met; at most 65,536."""

    def __missing__(self, word: int) -> bytes:
        text = self[word] = b"%d,%d" % (word & 255, word >> 8)
        return text


_TEXTS = _Texts()
_PLACES: list[bytes] = []
"""`@offset:` of each instruction, as far as the longest function so far."""
_SPECIAL = bytes(op in _HAS_CONST or op == _EXTENDED_ARG for op in range(256))

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


_LARGE = 14_000
"""Bits of a number from which Python may refuse to write it in decimal (4,300 digits)."""


def _feed_constant(feed: Callable[[bytes], None], value: Any) -> None:
    kind = type(value)
    if kind is types.CodeType:
        feed(b"code " + value.co_name.encode())
        feed(_bytes_of(value))
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
    elif kind is int and value.bit_length() > _LARGE:
        feed(b"int %x" % value)
    else:
        text = repr(value).encode("utf-8", "surrogatepass")
        feed(b"%s%d:" % (kind.__name__.encode(), len(text)) + text)


def _constant_bytes(value: Any) -> bytes:
    parts: list[bytes] = []
    _feed_constant(parts.append, value)
    return b"".join(parts)
