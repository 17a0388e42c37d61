"""`python -m tests.model`: see README.md. It needs no dependencies; PyPy is five to ten times faster and gives the same answers."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import Any

from .explore import Result, explore, walk
from .rules import Config
from .scenarios import GROUPS, SCENARIOS, SEVERAL, SINGLE, VARIANTS
from .states import Budget


def main() -> int:
    options = _options()
    results: list[Result] = []
    wrong = 0
    if options.what == "one":
        cfg = Config(
            SCENARIOS[options.scenario],
            Budget(*map(int, options.budget.split(","))),
            eager=options.eager,
            **dict(_rule(word) for word in options.rule),
        )
        results.append(_shown(cfg, options))
        wrong = bool(results[0].violation)
    elif options.what == "broken":
        for variant in VARIANTS:
            if options.quick and not variant.quick:
                continue
            cfg = Config(SCENARIOS[variant.scenario], variant.budget, eager=variant.eager, **variant.rules)
            print(f"== {variant.name}")
            result = _shown(cfg, options, trace=options.trace, walks=variant.walks)
            results.append(result)
            wrong += not result.violation
        print(f"{len(results) - wrong} of {len(results)} wrong variants gave a counterexample")
    else:
        for group in options.groups.split(","):
            for budgets, eager in _budgets(options.faults):
                for budget in budgets:
                    for scenario in GROUPS[group]:
                        result = _shown(Config(scenario, budget, eager=eager), options)
                        results.append(result)
                        wrong += bool(result.violation)
    _summary(results)
    return 1 if wrong else 0


def _budgets(faults: str) -> list[tuple[tuple[Budget, ...], bool]]:
    chosen = []
    if "single" in faults:
        chosen.append((SINGLE, False))
    if "several" in faults:
        chosen.append((SEVERAL, True))
    return chosen


def _shown(cfg: Config, options: argparse.Namespace, *, trace: bool = True, walks: int = 0) -> Result:
    walks = walks or options.walks
    if walks:
        result = walk(cfg, seed=options.seed, walks=walks, seconds=options.seconds)
    else:
        result = explore(cfg, seconds=options.seconds, max_states=options.states)
    print(result.line())
    if trace:
        for line in result.trace:
            print("     " + line)
    sys.stdout.flush()
    return result


def _summary(results: list[Result]) -> None:
    complete = sum(result.complete for result in results)
    found = sum(bool(result.violation) for result in results)
    states, seconds = sum(result.states for result in results), sum(result.seconds for result in results)
    print(
        f"{len(results)} searches on {platform.python_implementation()}: {states:,} states in {seconds:,.0f} s; "
        f"{complete} complete, {len(results) - complete - found} stopped at a bound, {found} with a counterexample"
    )


def _rule(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    return name, {"True": True, "False": False}.get(value, value)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument(
        "what", choices=("full", "broken", "one"), help="all scenarios, the wrong variants, or one search"
    )
    parser.add_argument("--groups", default=",".join(GROUPS), help="of scenarios, with commas")
    parser.add_argument(
        "--faults", default="single", help="single, several, or single,several (coarser deliveries)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="for one search")
    parser.add_argument("--states", type=int, default=6_000_000, help="for one search")
    parser.add_argument("--walks", type=int, default=0, help="random walks instead of the search: how many")
    parser.add_argument("--seed", type=int, default=1, help="of the walks")
    parser.add_argument("--quick", action="store_true", help="only the variants of the suite")
    parser.add_argument("--trace", action="store_true", help="print the shortest trace of each variant")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="for one search")
    parser.add_argument("--budget", default="0,0,0,0,0", help="crash,stale,cut,late,move")
    parser.add_argument("--eager", action="store_true", help="coarser deliveries")
    parser.add_argument("--rule", action="append", default=[], help="RULE=VALUE, for one search; repeatable")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
