"""What would fail when it runs, found before: awaits across which a resource or a large value is alive, and awaits of what
needs an event loop (`await asyncio.sleep(1)`), which a workflow has not.

For `sojourn check`. The source says what a variable is given (`conn = socket.socket()`, `with open(p) as f`);
the bytecode's live variables (`liveness`, the same that decide what a frame stores) say whether it can still
be read after an await. So a finding names the line of the await, and a resource that is closed and forgotten
before it is none.

This is a check of what can be seen in one function. A resource that arrives as an argument or an attribute is
found when a frame is captured; the testing kit does that at every suspension.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from .identity import nested_code, plain_function
from .liveness import live_mask
from .slots import slot_names

_IN_STEP = "open it inside a step or after the await"
_OWN_LOOP = "it belongs to an event loop; use Sojourn's counterpart, or keep it inside a step"
_THREADS = "a workflow has no threads; keep it inside a step"

# Where the class or function that is called comes from, "" for all of a module; first match.
_RESOURCES = (
    ("asyncio", "sleep", ""), ("asyncio", "", _OWN_LOOP), ("threading", "", _THREADS), ("_thread", "",
    _THREADS), ("queue", "", _THREADS), ("_queue", "", _THREADS), ("multiprocessing", "", _THREADS),
    ("concurrent", "", _THREADS), ("socket", "", _IN_STEP), ("_socket", "", _IN_STEP), ("ssl", "", _IN_STEP),
    ("_io", "open", _IN_STEP), ("io", "open", _IN_STEP), ("sqlite3", "", _IN_STEP), ("_sqlite3", "",
    _IN_STEP), ("subprocess", "Popen", _IN_STEP), ("tempfile", "", _IN_STEP), ("selectors", "", _IN_STEP),
    ("http", "", _IN_STEP), ("smtplib", "", _IN_STEP), ("ftplib", "", _IN_STEP), ("mmap", "", _IN_STEP),
    ("requests", "", _IN_STEP), ("httpx", "", _IN_STEP), ("aiohttp", "", _IN_STEP), ("psycopg", "", _IN_STEP),
    ("psycopg2", "", _IN_STEP), ("asyncpg", "", _IN_STEP), ("redis", "", _IN_STEP), ("pymongo", "", _IN_STEP),
    ("sqlalchemy", "create_engine", _IN_STEP), ("nats", "", _IN_STEP), ("boto3", "", _IN_STEP), ("botocore",
    "", _IN_STEP), ("grpc", "", _IN_STEP),
)  # fmt: skip
_LARGE_CALLS = frozenset(
    ("read_bytes", "read_text", "read", "readlines", "fetchall", "read_csv", "read_parquet", "read_json")
)
_LARGE_LITERAL = 16 * 1024
_KEEP_OUTSIDE = "keep it outside (an object store, a file) and hold a reference, or drop it before the await"


# Libraries whose functions need an event loop, and what to do instead of awaiting one.
_LOOPS = ("asyncio", "anyio", "trio")
_COUNTERPARTS = {name: f"use sojourn.{name}" for name in ("sleep", "gather", "wait")}
_COUNTERPARTS["wait_for"] = "use sojourn.timeout"


@dataclass(frozen=True, slots=True)
class Finding:
    """One await that would fail, or store more than it should. `line` is that of the await."""

    module: str
    function: str
    file: str
    line: int
    variable: str
    kind: Literal["resource", "large", "foreign"]
    what: str  # what the variable is given, or what is awaited, as the source says it
    remedy: str

    def __str__(self) -> str:
        if self.kind == "foreign":
            return (
                f"{self.file}:{self.line}: `{self.what}` in `{self.function}` needs an event loop, and a workflow has none; "
                f"{self.remedy}"
            )
        alive = "is alive" if self.kind == "resource" else "may be large and is stored"
        name = f"`{self.variable}` ({self.what})" if self.variable else f"`{self.what}`"
        return (
            f"{self.file}:{self.line}: {name} in `{self.function}` {alive} across this await; {self.remedy}"
        )


@dataclass(frozen=True, slots=True)
class _Given:
    """A variable (or "" for a `with` without a name) and what it is given, and the lines of the `with` body."""

    variable: str
    kind: Literal["resource", "large"]
    what: str
    remedy: str
    line: int
    body: range | None


def check_function(function: Any) -> list[Finding]:
    """The findings for a function (a workflow, a helper, a method) and what is nested in it, in order of lines.

    Empty when its source is not to be had. Raises TypeError for what is no function.
    """
    plain = plain_function(function)
    try:
        lines, first = inspect.getsourcelines(plain)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return []
    ast.increment_lineno(tree, first - 1)
    names = _names_of(plain)
    found: list[Finding] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef)):
            for code in nested_code(plain.__code__):
                if code.co_name == node.name and _starts_at(code, node):
                    found += _in_one(code, node, names, plain.__module__)
    return sorted(set(found), key=lambda finding: (finding.line, finding.variable))


def check_module(module: types.ModuleType) -> list[Finding]:
    """The findings for every async function and method that a module defines."""
    found: list[Finding] = []
    for value in list(vars(module).values()):
        own = isinstance(value, type) and value.__module__ == module.__name__
        for member in list(vars(value).values()) if own else [value]:
            try:
                plain = plain_function(member)
            except TypeError:
                continue
            if plain.__module__ == module.__name__:
                found += check_function(plain)
    return sorted(set(found), key=lambda finding: (finding.line, finding.variable))


def _starts_at(code: types.CodeType, node: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    decorated = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return decorated <= code.co_firstlineno <= node.lineno


def _names_of(function: types.FunctionType) -> dict[str, Any]:
    names = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    return names


def _in_one(
    code: types.CodeType, node: ast.AsyncFunctionDef | ast.FunctionDef, names: dict[str, Any], module: str
) -> Iterator[Finding]:
    known = _with_local_imports(node, names)
    for what, line, remedy in _foreign(node, known):
        yield Finding(module, code.co_qualname, code.co_filename, line, "", "foreign", what, remedy)
    given = list(_given(node, known))
    if not given:
        return
    slots = slot_names(code)
    for offset, line in _suspensions(code):
        mask = live_mask(code, offset)
        alive = {name for index, name in enumerate(slots) if mask >> index & 1}
        for each in given:
            inside = each.body is not None and line in each.body
            read_later = each.variable in alive and (each.line <= line or _may_repeat(node, each.line, line))
            if inside or read_later:
                yield Finding(
                    module,
                    code.co_qualname,
                    code.co_filename,
                    line,
                    each.variable,
                    each.kind,
                    each.what,
                    each.remedy,
                )


def _may_repeat(node: ast.AST, given: int, line: int) -> bool:
    """Whether a loop leads from the line where a variable is given its value back to an earlier await."""
    loops = (each for each in ast.walk(node) if isinstance(each, (ast.While, ast.For, ast.AsyncFor)))
    return any(each.lineno <= line < given <= (each.end_lineno or 0) for each in loops)


def _suspensions(code: types.CodeType) -> Iterator[tuple[int, int]]:
    """Offset and line of each place where the code can be suspended."""
    line = code.co_firstlineno
    starts = {start: number for start, _, number in code.co_lines() if number is not None}
    for each in dis.get_instructions(code):
        line = starts.get(each.offset, line)
        if each.opname == "YIELD_VALUE":
            yield each.offset, line


def _foreign(node: ast.AST, names: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Awaits of another library's functions that need its event loop: what is awaited, the line, and what to do."""
    for each in _own(node):
        if isinstance(each, ast.Await) and isinstance(each.value, ast.Call):
            module, name = _home(_object(each.value.func, names))
            if module.partition(".")[0] in _LOOPS:
                yield ast.unparse(each.value)[:60], each.lineno, _COUNTERPARTS.get(name, "do it in a step")


def _given(node: ast.AST, names: dict[str, Any]) -> Iterator[_Given]:
    for each in _own(node):
        if isinstance(each, (ast.With, ast.AsyncWith)):
            for item in each.items:
                body = range(each.body[0].lineno, (each.body[-1].end_lineno or each.body[-1].lineno) + 1)
                name = item.optional_vars.id if isinstance(item.optional_vars, ast.Name) else ""
                remedy = _resource(item.context_expr, names)
                if remedy:
                    yield _Given(
                        name, "resource", ast.unparse(item.context_expr)[:60], remedy, each.lineno, body
                    )
        elif isinstance(each, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield from _assigned(target.id, each.value, each.lineno, names)


def _assigned(name: str, value: ast.expr, line: int, names: dict[str, Any]) -> Iterator[_Given]:
    what = ast.unparse(value)[:60]
    remedy = _resource(value, names)
    if remedy:
        yield _Given(name, "resource", what, remedy, line, None)
    elif _is_large(value):
        yield _Given(name, "large", what, _KEEP_OUTSIDE, line, None)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions nested in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        yield child
        yield from _own(child)


def _with_local_imports(node: ast.AST, names: dict[str, Any]) -> dict[str, Any]:
    found = dict(names)
    for each in _own(node):
        if isinstance(each, ast.Import):
            for alias in each.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or top] = _imported(top)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            for alias in each.names:
                found[alias.asname or alias.name] = getattr(_imported(each.module), alias.name, None)
    return found


@lru_cache(maxsize=256)
def _imported(name: str) -> Any:
    """A module that is loaded already: a check imports nothing that the program has not."""
    import sys

    return sys.modules.get(name)


def _resource(value: ast.expr, names: dict[str, Any]) -> str:
    """The remedy when `value` calls something that opens a resource, else an empty text."""
    call = value.value if isinstance(value, ast.Await) else value
    if not isinstance(call, ast.Call):
        return ""
    called = _object(call.func, names)
    module, name = _home(called)
    for prefix, only, remedy in _RESOURCES:
        if (module == prefix or module.startswith(prefix + ".")) and only in ("", name):
            return "" if isinstance(called, type) and issubclass(called, BaseException) else remedy
    return ""


def _home(called: Any) -> tuple[str, str]:
    if called is None:
        return "", ""
    module = getattr(called, "__module__", None)
    name = getattr(called, "__name__", "")
    return (module if isinstance(module, str) else ""), (name if isinstance(name, str) else "")


def _object(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        builtins = names.get("__builtins__")
        space = builtins if isinstance(builtins, dict) else vars(builtins) if builtins is not None else {}
        return names.get(node.id, space.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _object(node.value, names)
        # Only of modules and classes: an attribute of an instance may be computed, and would run.
        return (
            inspect.getattr_static(owner, node.attr, None)
            if isinstance(owner, (type, types.ModuleType))
            else None
        )
    return None


def _is_large(value: ast.expr) -> bool:
    call = value.value if isinstance(value, ast.Await) else value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return call.func.attr in _LARGE_CALLS
    if isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes)):
        return len(value.value) > _LARGE_LITERAL
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        sides = [side.value for side in (value.left, value.right) if isinstance(side, ast.Constant)]
        return any(isinstance(side, int) and side > _LARGE_LITERAL for side in sides)
    return False
