from __future__ import annotations

import re
from pathlib import Path

import checked_programs
import frame_programs
import pytest
from sojourn.codecs import check


def expected() -> set[tuple[int, str]]:
    lines = Path(checked_programs.__file__).read_text().splitlines()
    marked = ((number, re.search(r"# finding: (\w+)", line)) for number, line in enumerate(lines, 1))
    return {(number, match[1]) for number, match in marked if match}


def test_exactly_the_awaits_over_a_resource_or_a_large_value_are_found() -> None:
    found = check.check_module(checked_programs)
    assert {(finding.line, finding.variable) for finding in found} == expected()


def test_a_finding_says_where_what_and_what_to_do() -> None:
    (finding,) = check.check_function(checked_programs.uses_a_socket)
    assert finding.kind == "resource"
    assert finding.function == "uses_a_socket"
    assert str(finding).startswith(f"{checked_programs.__file__}:{finding.line}: `conn` (socket.socket())")
    assert "inside a step" in str(finding)


def test_programs_without_resources_have_no_findings() -> None:
    assert check.check_module(frame_programs) == []


def test_only_functions_can_be_checked() -> None:
    with pytest.raises(TypeError, match="expected a function"):
        check.check_function(3)
