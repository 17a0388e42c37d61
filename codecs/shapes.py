"""Shapes of data classes: what must be equal for a stored instance to mean the same here.

The shape of a class is its fields, in order, with their annotations as text: of a dataclass, a msgspec
`Struct`, an attrs or pydantic class, a `NamedTuple`, or a plain class with `__slots__`. Methods, defaults and
docstrings are no part of it. Classes without declared fields have no shape and are not pinned.

    module:Qualified.Name~0123456789abcdef
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
import types
from collections.abc import Iterable
from typing import Any

from .globals import place_in
from .identity import CodeNotFound, attribute, import_module, on_forget, present_name


def shape_of(kind: type) -> str | None:
    """The shape of a class as a part of a pin, or None when it declares no fields or has no name to be found
    by.
    """
    if kind.__module__ == "builtins":
        return None
    where: tuple[str, str] | None = kind.__module__, kind.__qualname__
    if "<locals>" in kind.__qualname__:
        where = place_in(kind.__module__, kind)
    if where is None:
        return None
    fields = _fields(kind)
    if fields is None:
        return None
    digest = hashlib.blake2b(digest_size=8, person=b"sj-shape")
    for name, annotation in fields:
        digest.update(f"{name}:{annotation};".encode())
    return f"{where[0]}:{where[1]}~{digest.hexdigest()}"


def _fields(kind: type) -> list[tuple[str, str]] | None:
    if dataclasses.is_dataclass(kind):
        return [(each.name, _text(each.type)) for each in dataclasses.fields(kind)]
    for name in ("__struct_fields__", "__attrs_attrs__", "model_fields", "_fields"):
        declared = getattr(kind, name, None)
        if name == "_fields" and not issubclass(kind, tuple):
            continue
        if isinstance(declared, (tuple, list, dict)):
            return [(each, _annotation(kind, each)) for each in _names(declared)]
    return _slots(kind)


def _names(declared: Iterable[Any]) -> Iterable[str]:
    return (each if isinstance(each, str) else each.name for each in declared)


def _slots(kind: type) -> list[tuple[str, str]] | None:
    declared = [base.__dict__["__slots__"] for base in reversed(kind.__mro__) if "__slots__" in base.__dict__]
    names = [name for each in declared for name in ([each] if isinstance(each, str) else each)]
    return [(name, _annotation(kind, name)) for name in names] if names else None


def _annotation(kind: type, name: str) -> str:
    for base in kind.__mro__:
        annotations = vars(base).get("__annotations__") or _lazy_annotations(base)
        if name in annotations:
            return _text(annotations[name])
    return ""


def _lazy_annotations(base: type) -> dict[str, Any]:
    """From 3.14 annotations are computed when asked for, and may then name what is not there."""
    if sys.version_info < (3, 14) or base is object:
        return {}
    try:
        import annotationlib  # type: ignore[import-not-found, unused-ignore]  # CPython 3.14 and later only

        texts: dict[str, str] = annotationlib.get_annotations(base, format=annotationlib.Format.STRING)
        found: dict[str, Any] = {
            name: steady(text) for name, text in texts.items()
        }  # of a lambda it tells the address
    except Exception:  # a user's annotation may raise anything; the field's name still counts
        return {}
    return found


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__
    return steady(repr(annotation))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SET = re.compile(r"\{([^{}:]*, [^{}:]*)\}")


def steady(text: str) -> str:
    """What `repr` tells, the same in each process: without addresses (`Annotated[int, AfterValidator(check)]` has one), and sets in
    one order.
    """
    if "{" in text:
        text = _SET.sub(lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    return _ADDRESS.sub("", text)


_good: dict[str, tuple[types.ModuleType, str, Any]] = {}
_CACHE_LIMIT = 20_000
on_forget.append(_good.clear)


def check_shape(stored: str) -> str | None:
    """None when the class in `stored` has that shape in this process, else the reason.

    That it has is cached while its module holds the same object under the first part of its name.
    """
    known = _good.get(stored)
    if known is not None:
        module, root, value = known
        if sys.modules.get(module.__name__) is module and vars(module).get(root) is value:
            return None
    if len(_good) >= _CACHE_LIMIT:
        _good.clear()
    return _checked(stored)


def _checked(stored: str) -> str | None:
    place, _, wanted = stored.rpartition("~")
    old_module, _, old_name = place.partition(":")
    module_name, name = present_name(old_module, old_name)
    try:
        module = import_module(module_name, place)
        kind = attribute(module, name)
    except CodeNotFound as error:
        return str(error)
    if not isinstance(kind, type):
        return f"class `{place}` was not found (stored shape {wanted})"
    root = name.partition(".")[0]
    _good.pop(stored, None)
    present = (shape_of(kind) or "~no declared fields").rpartition("~")[2]
    if present != wanted:
        return f"the fields of `{place}` have changed (stored shape {wanted}, present {present})"
    _good[stored] = (module, root, vars(module).get(root))
    return None
