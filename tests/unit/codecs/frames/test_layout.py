from __future__ import annotations

import dataclasses
import subprocess
import sys
import sysconfig
import textwrap
from typing import Any

import pytest
from sojourn.codecs import layout
from sojourn.codecs.errors import UnsupportedInterpreter

HERE = layout._KNOWN[sys.version_info.minor]


def test_the_layout_of_this_interpreter_holds() -> None:
    layout._verify(HERE)
    assert layout.current() is HERE


@pytest.mark.parametrize(
    "wrong",
    [
        {"exception": HERE.exception + 8},
        {"exception": HERE.exception - 8},
        {"state": HERE.state + 1},
        {"state": HERE.state - 3},
        {"pointer_back": HERE.top_back, "top_back": HERE.pointer_back},
        {"pointer_back": HERE.pointer_back + 8},
        {"top_back": HERE.top_back + 8},
        {"states": {key + 7: value for key, value in HERE.states.items()}},
        {"flags": HERE.flags - 24},
        {"flags": HERE.flags + 1},
    ],
    ids=str,
)
def test_a_wrong_layout_is_noticed_by_reading_and_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedInterpreter, match="is not where it was expected"):
        layout._verify(dataclasses.replace(HERE, **wrong))


def test_an_unknown_minor_is_refused_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(layout._KNOWN, sys.version_info.minor)
    with pytest.raises(
        UnsupportedInterpreter, match=r"its frame layout is not known; CPython 3\.11 to 3\.15 are"
    ):
        layout._known_layout()


def test_a_free_threaded_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: 1)
    with pytest.raises(UnsupportedInterpreter, match="free-threaded"):
        layout._known_layout()


def test_a_debug_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettotalrefcount", int, raising=False)
    with pytest.raises(UnsupportedInterpreter, match="debug"):
        layout._known_layout()


def test_another_implementation_imports_and_is_refused_at_the_first_capture() -> None:
    """With what another implementation lacks taken away: the C interface, and the sizes of types it does not tell."""
    script = textwrap.dedent(
        """
        import ctypes, sys, itertools
        del ctypes.pythonapi, itertools._tee_dataobject, itertools._grouper
        sys.implementation.name = "other"
        from sojourn.codecs import frames
        async def workflow(): pass
        coroutine = workflow()
        try:
            frames.dump(coroutine)
        except frames.UnsupportedInterpreter as error:
            print(error)
        coroutine.close()
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("workflows cannot run on other 3.")
    assert done.stdout.count("\n") == 1
