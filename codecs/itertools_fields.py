"""Iterators of `itertools`, field by field.

Python deprecated their pickling in 3.12 and removed it in 3.14, so they are read and written here. Each type
is described by one letter for each word after the object head:

    o  an object, or null        i  a number                   g  who the current group is (borrowed)
    w  a number of half a word   a  a C array of numbers       r  a result that is only reused: not stored
    t  a tuple with nulls in it  v  as many objects as were    .  internal state: not ours
                                    read, nulls after them

Nothing is believed: before the first use of a type its description is compared with a sample. It must be as
long as the type and the objects read must be those that the garbage collector sees. A type that differs
cannot be stored, and says so. A fresh iterator, over nothing, is made first and filled afterwards, so cycles
end at the memo.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .identity import CannotCapture
from .slots import clear, object_at, put

if TYPE_CHECKING:
    from .pickler import FramePickler

_HEAD, _WORD = 16, 8
_TEE_LINKS = 57

_Tee: type = type(itertools.tee(())[0])
_TeeData: Any = getattr(itertools, "_tee_dataobject", None)  # private, the only way to name these types
_Grouper: Any = getattr(itertools, "_grouper", None)


_LISTS: list[Any] = [[1], [2]]


class _Kind(NamedTuple):
    name: str  # part of the stored format
    words: tuple[
        str, ...
    ]  # one for each Python whose fields differ: the one that is as long as the type counts
    fresh: Callable[..., Any]  # makes one to fill, from `arguments`
    sample: Callable[[], Any]
    arguments: Callable[[list[Any]], tuple[Any, ...]] = lambda words: ()


def _true(*_: Any) -> bool:
    return True


def _pair(one: Any, two: Any) -> Any:
    return [one, two]


def _started(iterator: Any) -> Any:
    next(iterator)
    return iterator


def _a_group(iterable: Any = "ab") -> Any:
    return next(itertools.groupby(iterable))[1]


def _of_pool(words: list[Any]) -> tuple[int, int]:
    pool, chosen = words[0][0], words[-2]
    return len(pool), chosen


_KINDS: dict[type, _Kind] = {
    itertools.accumulate: _Kind(
        "accumulate",
        ("oooo", "oooo."),
        lambda: itertools.accumulate(()),
        lambda: _started(itertools.accumulate(_LISTS, _pair)),
    ),
    itertools.chain: _Kind("chain", ("oo",), itertools.chain, lambda: _started(itertools.chain([1, 2], [3]))),
    itertools.compress: _Kind(
        "compress", ("oo",), lambda: itertools.compress((), ()), lambda: itertools.compress([1], [2])
    ),
    itertools.count: _Kind("count", ("ioo",), itertools.count, lambda: itertools.count(0.25, 0.5)),
    itertools.cycle: _Kind(
        "cycle", ("ooiw", "ooi"), lambda: itertools.cycle(()), lambda: _started(itertools.cycle([1, 2]))
    ),
    itertools.dropwhile: _Kind(
        "dropwhile", ("oow",), lambda: itertools.dropwhile(_true, ()), lambda: itertools.dropwhile(_true, [1])
    ),
    itertools.takewhile: _Kind(
        "takewhile", ("oow",), lambda: itertools.takewhile(_true, ()), lambda: itertools.takewhile(_true, [1])
    ),
    itertools.filterfalse: _Kind(
        "filterfalse",
        ("oo",),
        lambda: itertools.filterfalse(_true, ()),
        lambda: itertools.filterfalse(_true, [1]),
    ),
    itertools.groupby: _Kind(
        "groupby",
        ("ooooog", "ooooog."),
        lambda: itertools.groupby(()),
        lambda: _started(itertools.groupby(_LISTS, len)),
    ),
    _Grouper: _Kind("grouper", ("oo",), _a_group, _a_group),
    itertools.islice: _Kind(
        "islice", ("oiiii",), lambda: itertools.islice((), 1), lambda: itertools.islice([1, 2], 1, 2)
    ),
    itertools.pairwise: _Kind(
        "pairwise", ("oo", "oor"), lambda: itertools.pairwise(()), lambda: itertools.pairwise([1, 2])
    ),
    itertools.repeat: _Kind("repeat", ("oi",), lambda: itertools.repeat(0), lambda: itertools.repeat([], 3)),
    itertools.starmap: _Kind(
        "starmap", ("oo",), lambda: itertools.starmap(_true, ()), lambda: itertools.starmap(_true, _LISTS)
    ),
    itertools.zip_longest: _Kind(
        "zip_longest",
        ("iitro",),
        lambda size: itertools.zip_longest(*([()] * size)),
        lambda: itertools.zip_longest([1], [2], fillvalue=[]),
        lambda words: (words[0],),
    ),
    itertools.permutations: _Kind(
        "permutations",
        ("oaaoiw",),
        lambda n, r: itertools.permutations(range(n), r),
        lambda: _started(itertools.permutations([1, 2, 3], 2)),
        _of_pool,
    ),
    itertools.combinations: _Kind(
        "combinations",
        ("oaoiw",),
        lambda n, r: itertools.combinations(range(n), r),
        lambda: _started(itertools.combinations([1, 2, 3], 2)),
        _of_pool,
    ),
    itertools.combinations_with_replacement: _Kind(
        "combinations_with_replacement",
        ("oaoiw",),
        lambda n, r: itertools.combinations_with_replacement(range(n), r),
        lambda: _started(itertools.combinations_with_replacement([1, 2, 3], 2)),
        _of_pool,
    ),
    itertools.product: _Kind(
        "product",
        ("oaow",),
        lambda n: itertools.product(*([(0,)] * n)),
        lambda: _started(itertools.product([1, 2], [3])),
        lambda words: (len(words[0][0]),),
    ),
    _Tee: _Kind("tee", ("ow.", "ow.."), lambda: itertools.tee(())[0], lambda: itertools.tee([1])[0]),
    _TeeData: _Kind(
        "tee_data",
        ("owo" + "v" * _TEE_LINKS,),
        lambda: _TeeData((), [], None),
        lambda: _TeeData(iter([[1]]), [[2], [3]], None),
    ),
}
_batched: Any = getattr(itertools, "batched", None)  # from 3.12
if _batched is not None:
    _KINDS[_batched] = _Kind("batched", ("oi", "oiw"), lambda: _batched((), 1), lambda: _batched([1, 2], 2))
TYPES = tuple(_KINDS)
_NAMED = {kind.name: kind for kind in _KINDS.values()}
_verified: dict[str, str] = {}


def reduce_itertools(_: FramePickler, iterator: Any) -> Any:
    """By the values of its fields."""
    kind = _KINDS[type(iterator)]
    words = _words_of(kind, type(iterator))
    state = _read(iterator, words)
    while state and state[-1] == ():
        state.pop()  # null at the end is what a fresh one has: `tee` has fifty of them
    arguments = kind.arguments(state) if "a" in words or kind.name == "zip_longest" else ()
    return make_itertools, (kind.name, *arguments), state, None, None, fill_itertools


def _words_of(kind: _Kind, actual: type) -> str:
    words = _verified.get(kind.name)
    if words is None:
        words = _verify(kind, actual)
        _verified[kind.name] = words
    return words


def _verify(kind: _Kind, actual: type) -> str:
    count = (actual.__basicsize__ - _HEAD) // _WORD
    sample = kind.sample()
    for words in kind.words:
        if len(words) == count:
            read = {_word(sample, at) for at in _objects(sample, words)} - {0}
            seen = {id(each) for each in gc.get_referents(sample) if each is not actual}
            if seen == read:
                return words
    raise CannotCapture(
        f"itertools.{kind.name}", "this Python keeps it in a way that is not known; use a loop instead"
    )


def _objects(iterator: Any, words: str) -> list[int]:
    """The words of an iterator that hold an object or null."""
    counted = _word(iterator, 1) & 0xFFFFFFFF if "v" in words else 0
    first = words.find("v")
    return [
        at for at, letter in enumerate(words) if letter in "otr" or (letter == "v" and at - first < counted)
    ]


def _word(iterator: Any, at: int) -> int:
    value: int = ctypes.c_ssize_t.from_address(id(iterator) + _HEAD + at * _WORD).value
    return value


def _read(iterator: Any, words: str) -> list[Any]:
    state: list[Any] = []
    objects = _objects(iterator, words)
    for at, letter in enumerate(words):
        address = id(iterator) + _HEAD + at * _WORD
        word = ctypes.c_ssize_t.from_address(address).value
        if letter == "t":
            state.append(_with_nulls(word))
        elif letter in "ov":
            word = word if at in objects else 0
            state.append((ctypes.py_object.from_address(address).value,) if word else ())
        elif letter == "i":
            state.append(word)
        elif letter == "w":
            state.append(word & 0xFFFFFFFF)
        elif letter == "g":
            state.append(0)
        elif letter == "a":
            state.append(_array(word, _length(iterator, words, at)))
    if words == _verified.get("grouper") and type(iterator) is _Grouper:
        # The last word of the iterator it belongs to says whether this is the current group.
        state.append(int(_word(state[0][0], 5) == id(iterator)))
    return state


_TUPLE_ITEMS = tuple.__basicsize__


def _with_nulls(address: int) -> list[Any]:
    """The items of a tuple, each in a tuple of its own, and an empty one for null:

    an exhausted iterator is dropped from it.
    """
    count = ctypes.c_ssize_t.from_address(address + 16).value
    places = range(address + _TUPLE_ITEMS, address + _TUPLE_ITEMS + count * _WORD, _WORD)
    return [
        (ctypes.py_object.from_address(place).value,) if ctypes.c_ssize_t.from_address(place).value else ()
        for place in places
    ]


def _fill_tuple(address: int, items: list[Any]) -> None:
    """Write into the tuple of a fresh `zip_longest`, which nobody else can see."""
    if ctypes.c_ssize_t.from_address(address + 16).value != len(items):
        raise ValueError("an iterator of itertools does not have the number of parts that were stored")
    for index, item in enumerate(items):
        place = address + _TUPLE_ITEMS + index * _WORD
        put(place, item[0]) if item else clear(place)


def _length(iterator: Any, words: str, at: int) -> int:
    """How long the array at word `at` is:

    the whole pool for the first of two, else what is chosen at a time.
    """
    pool = object_at(id(iterator) + _HEAD)
    if words == "oaow" or (words.count("a") == 2 and at == 1):
        return len(pool)
    return _word(iterator, len(words) - 2)


def _array(address: int, length: int) -> tuple[int, ...]:
    return tuple((ctypes.c_ssize_t * length).from_address(address)) if address else ()


def make_itertools(name: str, *arguments: int) -> Any:
    """An iterator of that kind over nothing."""
    return _NAMED[name].fresh(*arguments)


def fill_itertools(iterator: Any, state: list[Any]) -> None:
    """Write the captured fields. Raises ValueError when they do not fit."""
    kind = _KINDS[type(iterator)]
    words = _words_of(kind, type(iterator))
    stored = [(at, letter) for at, letter in enumerate(words) if letter not in ".r"]
    for (at, letter), value in zip(stored, state, strict=False):
        address = id(iterator) + _HEAD + at * _WORD
        if letter == "t":
            _fill_tuple(_word(iterator, at), value)
        elif letter in "ov":
            if letter == "v":
                ctypes.c_ssize_t.from_address(
                    address
                ).value = 0  # a fresh one has read nothing: memory nobody wrote
            put(address, value[0]) if value else clear(address)
        elif letter == "i":
            ctypes.c_ssize_t.from_address(address).value = value
        elif letter == "w":
            ctypes.c_int32.from_address(address).value = value
        elif letter == "a":
            _write_array(iterator, words, at, value)
    if type(iterator) is _Grouper and state[-1]:
        ctypes.c_ssize_t.from_address(id(state[0][0]) + _HEAD + 5 * _WORD).value = id(iterator)


def _write_array(iterator: Any, words: str, at: int, value: tuple[int, ...]) -> None:
    address = _word(iterator, at)
    if not value:
        return
    length = len(value)
    if not address:
        raise ValueError("an iterator of itertools has no room for what it held")
    room = (ctypes.c_ssize_t * length).from_address(address)
    for index, number in enumerate(value):
        room[index] = number
