"""Sets and dictionaries whose members cannot tell their hash yet: rings that pickle restores in an order that does not work.

An object gets its attributes after everything in them is restored. When it stands in a set that it leads to, the set is filled
before, and asks for a hash that is made of attributes which are not there (`keyed` gives those at once that cannot lead back;
this is for the others). So where a restore fails in a `__hash__` or `__eq__`, it is done once more, in Python: what a set or
dictionary does not take waits until everything else is there.

What consumes such a container when it is handed over (`Counter` is made from a dictionary) would miss what waits: then the
restore fails as it did.
"""

from __future__ import annotations

import operator
import pickle
import traceback
from collections.abc import Callable
from typing import Any, ClassVar

from .coroutines import fill
from .functions import fill_cell, fill_function

_Python: Any = pickle._Unpickler  # the C one fills containers itself


def is_ring(error: BaseException) -> bool:
    """Whether a restore failed because somebody asked for a hash too early."""
    names = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name in ("__hash__", "__eq__") for name in names)


_KEEPERS: tuple[Any, ...] = (fill, fill_cell, fill_function)
"""They do not look into what they are given."""


class PatientUnpickler(_Python):  # type: ignore[misc]  # of the class above
    """Fills sets and dictionaries last where it must."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(_Python.dispatch)

    def load(self) -> Any:
        """The graph; raises what a hash raises that cannot be told at the end either."""
        self.late: dict[int, tuple[Any, Callable[..., Any], list[tuple[Any, ...]]]] = {}
        graph = super().load()
        for target, put, items in self.late.values():
            for item in items:
                put(target, *item)
        return graph

    def _put(self, target: Any, put: Callable[..., Any], items: list[tuple[Any, ...]]) -> None:
        """All or, from the first that is not taken, later: the order of a dictionary stays."""
        if id(target) in self.late:
            self.late[id(target)][2].extend(items)
            return
        for index, item in enumerate(items):
            try:
                put(target, *item)
            except (
                Exception
            ):  # whatever a user's `__hash__` raises; the end will tell whether it was too early
                self.late[id(target)] = target, put, items[index:]
                return

    def _add_items(self) -> None:
        items = self.pop_mark()
        self._put(self.stack[-1], _add, [(item,) for item in items])

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._put(self.stack[-1], operator.setitem, list(zip(items[::2], items[1::2], strict=True)))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put(self.stack[-1], operator.setitem, [(key, value)])

    def _reduce(self) -> None:
        function, arguments = self.stack[-2:]
        if function not in _KEEPERS and self._waits(arguments):
            raise pickle.UnpicklingError("what is made of a set or dictionary needs all that is in it")
        _Python.load_reduce(self)

    def _waits(self, value: Any) -> bool:
        return id(value) in self.late or (type(value) is tuple and any(map(self._waits, value)))

    dispatch[pickle.ADDITEMS[0]] = _add_items
    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.REDUCE[0]] = _reduce


def _add(target: Any, item: Any) -> None:
    target.add(item)
