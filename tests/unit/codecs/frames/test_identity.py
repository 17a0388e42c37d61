from __future__ import annotations

import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import frame_programs
import pytest
from frame_programs import tick
from sojourn.codecs import frames, identity
from sojourn.codecs.errors import PinNotSatisfied

NAME = "module_under_change"


def module(source: str, name: str = NAME) -> types.ModuleType:
    """Replace the module by one made from `source`, as a new deployment would."""
    made = types.ModuleType(name)
    made.tick = tick  # type: ignore[attr-defined]
    sys.modules[name] = made
    exec(compile(textwrap.dedent(source), f"{name}.py", "exec"), made.__dict__)
    return made


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]
    identity._moved.clear()
    identity.forget()


FIRST = '''
RATE = 3

def other():
    return 1

async def work(value, scale=2):
    """Says what it does."""
    limit = 10
    def inner(x, y=5):
        return x + y + limit
    for i in range(3):
        value += await tick(i) or 0   # a comment
    return value * scale, inner(1)
'''


def stored() -> frames.Frame:
    target = sys.modules[NAME].work(1)
    target.send(None)
    frame = frames.dump(target)
    frames.discard(target)
    return frame


def finish(target: Any) -> Any:
    try:
        while True:
            target.send(None)
    except StopIteration as stop:
        return stop.value


SAME = {
    "nothing": FIRST,
    "a comment": FIRST.replace("# a comment", "# another one"),
    "moved lines": "\n\n\n" + FIRST,
    "another docstring": FIRST.replace("Says what it does.", "Says it better, and at length."),
    "no docstring": FIRST.replace('    """Says what it does."""\n', ""),
    "reformatted": FIRST.replace(
        "value * scale, inner(1)", "(\n        value * scale,\n        inner(1),\n    )"
    ),
    "another function": FIRST.replace("return 1", "return 2"),
    "a new function before it": "def newer():\n    pass\n" + FIRST,
    "a global's value": FIRST.replace("RATE = 3", "RATE = 4"),
    "annotations": FIRST.replace("(value, scale=2)", "(value: int, scale: int = 2) -> object"),
}
CHANGED = {
    "a constant": FIRST.replace("limit = 10", "limit = 11"),
    "the type of a constant": FIRST.replace("limit = 10", "limit = 10.0"),
    "a constant that compares equal": FIRST.replace("or 0", "or False"),
    "an operator": FIRST.replace("value * scale", "value - scale"),
    "a global name": FIRST.replace("range(3)", "reversed(3)"),
    "a variable name": FIRST.replace("limit", "most"),
    "a new argument": FIRST.replace("scale=2", "scale=2, more=3"),
    "a keyword-only argument": FIRST.replace("scale=2", "*, scale=2"),
    "a nested function": FIRST.replace("x + y + limit", "x - y + limit"),
    "a default of a nested function": FIRST.replace("y=5", "y=6"),
    "a nested function's name": FIRST.replace("inner", "deeper"),
    "a statement before the await": FIRST.replace("    limit", "    print\n    limit"),
    "a handler": FIRST.replace("    return value", "    try:\n        pass\n    finally:\n        value\n    return value"),
    "a generator instead": FIRST.replace("return value * scale, inner(1)", "yield value"),
    "not async": FIRST.replace("async def", "def").replace("await tick(i)", "tick(i)"),
    "it is gone": FIRST.replace("def work", "def play"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_a_change_that_alters_nothing_is_accepted(what: str) -> None:
    module(FIRST)
    frame = stored()
    module(SAME[what])
    assert frames.satisfied(frame.pin) == []
    assert finish(frames.load(frame.data, frame.pin)) == (2, 16)


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_of_what_would_run_is_refused_and_the_frame_unharmed(what: str) -> None:
    module(FIRST)
    frame = stored()
    present = identity.identity(sys.modules[NAME].work.__code__)
    module(CHANGED[what])
    with pytest.raises(PinNotSatisfied) as caught:
        frames.load(frame.data, frame.pin)
    assert "module_under_change:work" in caught.value.reasons[0]
    assert present in caught.value.reasons[0]
    missing = [each.identity for each in frames.satisfied(frame.pin)]
    assert missing == caught.value.missing
    assert set(missing) <= set(frame.pin)
    with pytest.raises(PinNotSatisfied):
        frames.load(frame.data)  # the frame itself says what it needs
    module(FIRST)
    assert finish(frames.load(frame.data, frame.pin)) == (2, 16)


def test_a_renamed_function_is_found_by_a_declared_alias() -> None:
    module(FIRST)
    frame = stored()
    module(FIRST.replace("def work", "def labour"))
    assert frames.satisfied(frame.pin)
    frames.register_moved({f"{NAME}:work": f"{NAME}:labour"})
    copy: Any = frames.load(frame.data, frame.pin)
    assert copy.__qualname__ == "labour"
    assert frames.dump(copy).pin[0].startswith(f"{NAME}:labour#")
    assert finish(copy) == (2, 16)


def test_a_renamed_module_is_found_by_a_declared_alias() -> None:
    module(FIRST)
    frame = stored()
    del sys.modules[NAME]
    module(FIRST, NAME + "_newer")
    assert "cannot be imported" in frames.satisfied(frame.pin)[0].reason
    frames.register_moved({NAME: NAME + "_newer"})
    assert finish(frames.load(frame.data, frame.pin)) == (2, 16)


def test_an_alias_must_have_one_form_and_lead_elsewhere() -> None:
    with pytest.raises(ValueError, match="both"):
        frames.register_moved({"a:b": "c"})
    with pytest.raises(ValueError, match="itself"):
        frames.register_moved({"a": "a"})


CLASSES = """
import dataclasses, enum
from typing import NamedTuple
import msgspec

@dataclasses.dataclass
class Data:
    x: int
    y: str = "y"
    def method(self):
        return self.x

class Struct(msgspec.Struct):
    x: int

class Named(NamedTuple):
    x: int

class Slotted:
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x

class Plain:
    pass

async def work(value, scale=2):
    held = [Data(1), Struct(2), Named(3), Slotted(4), Plain()]
    await tick()
    return [each.x for each in held[:4]]
"""


def test_data_classes_held_by_a_frame_are_pinned_by_their_shape() -> None:
    module(CLASSES)
    shapes = [part.partition("~")[0] for part in stored().pin if "~" in part]
    assert shapes == [f"{NAME}:{kind}" for kind in ("Data", "Named", "Slotted", "Struct")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x: int\n    y", "x: float\n    y"),
        ('y: str = "y"', 'z: str = "y"'),
        ('    y: str = "y"\n', ""),
        ("Struct):\n    x: int", "Struct):\n    x: int\n    z: int = 0"),
        ("NamedTuple):\n    x: int", "NamedTuple):\n    y: int"),
        ('("x",)', '("x", "y")'),
        ("class Data", "class Date"),
    ],
)
def test_another_shape_is_refused(old: str, new: str) -> None:
    module(CLASSES)
    frame = stored()
    changed = CLASSES.replace(old, new)
    assert changed != CLASSES
    module(changed)
    missing = frames.satisfied(frame.pin)
    assert [each.identity for each in missing if "~" in each.identity] == [
        each.identity for each in missing if "#" not in each.identity
    ]
    assert any("shape" in each.reason for each in missing)
    with pytest.raises(PinNotSatisfied):
        frames.load(frame.data, frame.pin)


def test_methods_and_defaults_are_no_part_of_a_shape() -> None:
    module(CLASSES)
    frame = stored()
    module(CLASSES.replace("return self.x", "return -self.x").replace('= "y"', '= "z"'))
    assert finish(frames.load(frame.data, frame.pin)) == [1, 2, 3, 4]


def test_any_error_of_restoring_means_that_this_process_cannot() -> None:
    module(CLASSES)
    frame = stored()
    del module(CLASSES).Plain
    with pytest.raises(PinNotSatisfied, match="Plain"):
        frames.load(frame.data)


def test_the_pin_is_sorted_and_names_everything_awaited() -> None:
    target: Any = frame_programs.managers([])
    target.send(None)
    pin = frames.dump(target).pin
    frames.discard(target)
    assert list(pin) == sorted(pin)
    assert [part.partition("#")[0] for part in pin] == [
        "frame_programs:Managed.__aenter__",
        "frame_programs:managers",
    ]


def test_an_unknown_format_or_python_is_refused_before_anything_is_read() -> None:
    module(FIRST)
    data = stored().data
    for broken, words in (
        (b"XX" + data[2:], "format"),
        (data[:2] + b"\x63" + data[3:], "format"),
        (data[:3] + b"\x63" + data[4:], "Python 3.99"),
        (data[:6], "format"),
        (data[:4] + b"\xff\xff\x00\x00" + data[8:], "cut short"),
        (b"", "format"),
    ):
        with pytest.raises(PinNotSatisfied, match=words):
            frames.load(broken)


def test_a_fingerprint_lists_the_function_and_what_is_nested_in_it() -> None:
    made = module(FIRST)
    frame = stored()
    prints = frames.fingerprint_of(made.work)
    assert set(frame.pin) <= set(prints)
    assert [each.partition("#")[0] for each in prints] == [f"{NAME}:work", f"{NAME}:work.<locals>.inner"]
    lines = frames.source_lines(made.work)
    assert [place.line for place in lines.values()] == [7, 10]


def test_a_wrapped_function_is_found_under_its_wrapper() -> None:
    class Wrapper:
        def __init__(self, function: Any) -> None:
            self.__wrapped__ = function

        def __call__(self, *args: Any) -> Any:
            return self.__wrapped__(*args)

    made = module(FIRST)
    made.work = Wrapper(made.work)  # type: ignore[attr-defined]
    frame = stored()
    assert frame.pin[0].startswith(f"{NAME}:work#")
    assert frames.fingerprint_of(made.work)[0] == frame.pin[0]
    assert finish(frames.load(frame.data, frame.pin)) == (2, 16)


def test_reloading_the_same_code_keeps_frames_resumable_and_a_live_one_capturable() -> None:
    module(FIRST)
    target = sys.modules[NAME].work(1)
    target.send(None)
    exec(compile(FIRST, "reloaded.py", "exec"), vars(sys.modules[NAME]))  # as importlib.reload does
    frame = frames.dump(target)
    frames.discard(target)
    assert finish(frames.load(frame.data, frame.pin)) == (2, 16)


ENUM = """
import enum
class Colour(enum.Enum):
    RED = enum.auto()
    BLUE = enum.auto()
class Right(enum.IntFlag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()
async def work(value, scale=2):
    held = [Colour.RED, Right.READ | Right.RUN]
    await tick()
    return [each.name for each in held]
"""


def test_a_member_of_an_enumeration_is_the_same_one_after_another_was_added_before_it() -> None:
    module(ENUM)
    frame = stored()
    module(
        ENUM.replace("    RED", "    NEW = enum.auto()\n    RED").replace(
            "    READ", "    SEE = enum.auto()\n    READ"
        )
    )
    assert finish(frames.load(frame.data, frame.pin)) == ["RED", "READ|RUN"]


def test_a_member_that_was_renamed_is_found_by_its_value_and_one_that_is_gone_is_missed() -> None:
    source = ENUM.replace("enum.auto()", '"red"', 1).replace("enum.auto()", '"blue"', 1)
    module(source)
    frame = stored()
    renamed = module(source)
    exec(
        "class Colour(enum.Enum):\n    CRIMSON = 'red'\nclass Right(enum.IntFlag):\n    SEE, WRITE, RUN = 1, 2, 4",
        vars(renamed),
    )
    assert finish(frames.load(frame.data, frame.pin)) == ["CRIMSON", "SEE|RUN"]
    exec("class Colour(enum.Enum):\n    CRIMSON = 'dark red'", vars(renamed))
    with pytest.raises(PinNotSatisfied, match="'red' is not a valid Colour"):
        frames.load(frame.data, frame.pin)


def test_a_number_too_large_for_decimal_is_a_constant_like_any_other() -> None:
    source = FIRST.replace("limit = 10", f"limit = 0x{'1' * 5000}")
    module(source)
    frame = stored()
    assert frames.satisfied(frame.pin) == []
    module(source.replace("limit = 0x1", "limit = 0x2"))
    assert [each.identity for each in frames.satisfied(frame.pin)] == list(frame.pin)[:1]


CLASS = """
async def work(value, scale=2):
    class Inner:
        x = 5
        def method(self):
            return self.x
    await tick()
    return Inner().method()
"""


@pytest.mark.parametrize("lines", [1, 250, 300, 70_000])
def test_a_function_with_a_class_in_it_may_be_moved(lines: int) -> None:
    module(CLASS)
    frame = stored()
    module("\n" * lines + CLASS)
    assert finish(frames.load(frame.data, frame.pin)) == 5
    module(CLASS.replace("x = 5", "x = 6"))
    assert frames.satisfied(frame.pin)


def test_one_code_in_two_modules_runs_in_each_as_before() -> None:
    """A loader of plugins compiles once and executes it for each: same code objects, other globals."""
    source = """
    async def work(value, scale=2):
        held = lambda: WHO
        await tick()
        return WHO, held()
    """
    code = compile(textwrap.dedent(source), "plugin.py", "exec", dont_inherit=True)
    ends = {}
    for name in (NAME, NAME + "_other"):
        made = types.ModuleType(name)
        made.tick, made.WHO = tick, name  # type: ignore[attr-defined]
        sys.modules[name] = made
        exec(code, made.__dict__)
    for name in (NAME, NAME + "_other", NAME):
        target = sys.modules[name].work(1)
        target.send(None)
        frame = frames.dump(target)
        frames.discard(target)
        ends[name] = finish(frames.load(frame.data, frame.pin))
    assert ends == {name: (name, name) for name in (NAME, NAME + "_other")}
    nowhere: dict[str, Any] = {"tick": tick, "WHO": "nobody", "__name__": NAME}
    exec(code, nowhere)
    target = nowhere["work"](1)
    target.send(None)
    with pytest.raises(frames.CannotSuspend, match="no module"):
        frames.dump(target)
    frames.discard(target)
