"""The short form of the search: every scenario with every single fault, bounded, and the wrong variants that are found quickly."""

from __future__ import annotations

import pytest

from .explore import explore, walk
from .rules import Config
from .scenarios import GROUPS, SCENARIOS, SEVERAL, SINGLE, VARIANTS, Variant

STATES = 900
"""Per search. A bound in states, not in seconds, so that the same is searched on every machine."""


@pytest.mark.parametrize("group", tuple(GROUPS))
def test_the_rules_as_implemented_break_nothing_within_the_bound(group: str) -> None:
    for scenario in GROUPS[group]:
        for budget in SINGLE:
            result = explore(Config(scenario, budget), max_states=STATES)
            assert not result.violation, "\n".join((result.line(), *result.trace))


@pytest.mark.parametrize("name", ["early", "locals", "refused", "becomechild"])
def test_small_scenarios_are_searched_to_the_end(name: str) -> None:
    result = explore(Config(SCENARIOS[name], SINGLE[0]))
    assert (result.violation, result.complete) == ("", True)
    assert result.ends


@pytest.mark.parametrize(
    "variant",
    [variant for variant in VARIANTS if variant.quick],
    ids=lambda variant: variant.name.replace(" ", "-"),
)
def test_a_rule_taken_away_is_found_out(variant: Variant) -> None:
    cfg = Config(SCENARIOS[variant.scenario], variant.budget, eager=variant.eager, **variant.rules)
    result = explore(cfg, max_states=15_000)
    assert result.violation, result.line()
    assert result.trace


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no such rule"):
        Config(SCENARIOS["mail"], SINGLE[0], nonsense=True)


def test_random_walks_reach_the_end_of_every_scenario() -> None:
    for scenario in SCENARIOS.values():
        result = walk(Config(scenario, SEVERAL[-1]), seed=1, walks=4)
        assert not result.violation, "\n".join((result.line(), *result.trace))
        assert result.ends, result.line()
