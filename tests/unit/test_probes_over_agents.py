"""What probes find of agents: the agent is the unit, groups are compared, and false alarms stay rare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis.probes.over_agents import OverAgentsConfig, main, weights_of
from core.artefacts import Result, new_run
from core.contracts import UserError
from core.stats import contrast

Agent = Callable[..., Path]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """A run of analysis.probes as it would be of an agent with these advantages over the observation."""

    def write(name: str, values: dict[str, float], *, stage: str = "probes", weights: str = "") -> Path:
        result = Result()
        result.tables["targets"] = [{"target": t, "everything_minus_all": v / 2} for t, v in values.items()]
        result.tables["inputs"] = [{"target": t, "kind": "number", "input": i, "score": s} for t, v in values.items()
                                   for i, s in (("h", 0.5 + v), ("obs", 0.5))]  # fmt: skip
        result.tables["inputs"].append(
            {"target": "a random number a life", "kind": "control", "input": "h", "score": 0}
        )
        result.tables["advantages"] = [{"target": t, "input": "h", "over": "obs", "probe": "linear", "advantage": v}
                                       for t, v in values.items()]  # fmt: skip
        with new_run(tmp_path / name, stage, {}) as run:
            result.save(run.path)
            run.facts = {"agent": weights or name}
        return tmp_path / name

    return write


def compared(tmp_path: Path, *words: str, **settings: Any) -> Result:
    out = tmp_path / "out"
    main(OverAgentsConfig(probes=words, out=out, overwrite=True, **settings))
    assert (out / "over_agents.png").stat().st_size > 5000
    return Result.load(out)


def test_a_contrast_is_student_s_of_one_group_and_welch_s_of_two() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=5), 3 * rng.normal(size=3), rng.normal(size=4)
    mine, theirs = contrast([a, b], [1, 0]), scipy_stats.ttest_1samp(a, 0)
    assert np.isclose(mine.p, theirs.pvalue) and mine.n == 5
    assert np.allclose(mine.estimate(0.9).interval, theirs.confidence_interval(0.9))
    mine, welch = contrast([a, b, c], [1, -1, 0]), scipy_stats.ttest_ind(a, b, equal_var=False)
    assert np.isclose(mine.p, welch.pvalue) and mine.n == 8
    assert np.allclose(mine.estimate().interval, welch.confidence_interval())


def test_a_contrast_of_four_groups_of_three_covers_what_it_should(record_property: Callable[..., None]) -> None:
    """Three agents each, of spreads that differ by four times."""
    rng = np.random.default_rng(1)
    scale = np.array([1.0, 2.0, 0.5, 1.5])
    covered = []
    for _ in range(4000):
        found = contrast(list(rng.normal(size=(4, 3)) * scale[:, None]), [1, -1, -1, 1]).estimate()
        covered.append(found.low <= 0 <= found.high)
    record_property("covered", float(np.mean(covered)))
    assert 0.94 < np.mean(covered) < 0.98  # Satterthwaite's degrees are on the safe side for so few


@pytest.mark.parametrize(("sizes", "spreads"), [((2, 8), (3, 1)), ((2, 20), (1, 1)), ((2, 2), (1, 1))])
def test_a_contrast_with_a_group_of_two_has_no_false_alarms(
    sizes: tuple[int, int], spreads: tuple[float, float]
) -> None:
    """With Welch's own degrees of freedom .11, .12 and .02 were significant at .05."""
    rng = np.random.default_rng(0)
    drawn = ([rng.normal(scale=d, size=n) for n, d in zip(sizes, spreads, strict=True)] for _ in range(2000))
    assert np.mean([contrast(groups, [1, -1]).p <= 0.05 for groups in drawn]) <= 0.03


def test_one_agent_has_no_interval_and_equal_ones_no_width() -> None:
    alone = contrast([np.array([2.0]), np.array([1.0, 3.0])], [1, 0])
    assert alone.value == 2 and np.isnan(alone.estimate().low) and np.isnan(alone.p)
    same = contrast([np.full(3, 2.0), np.full(3, 2.0)], [1, -1])
    assert same.estimate().interval == (0, 0) and same.p == 1


def test_what_differs_between_groups_is_found_and_what_does_not_is_not(agent: Agent, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    words = []
    for name, health in (("normal", 0.0), ("scarce", 0.3)):
        for i in range(4):
            values = {"health": health, "row": 0.2, "col": 0.0}
            made = agent(f"{name}_{i}", {t: v + 0.002 * float(rng.normal()) for t, v in values.items()})
            words.append(f"{name}={made}")
    result = compared(tmp_path, *words)
    said = {(r["measure"], r["target"], r["group"]): r["verdict"] for r in result.tables["groups"]}
    for measure in ("beyond", "h - obs"):
        assert [said[measure, "health", g] for g in ("normal", "scarce")] == ["no", "yes"]
        assert {said[measure, "row", g] for g in ("normal", "scarce")} == {"yes"}
        assert {said[measure, "col", g] for g in ("normal", "scarce")} == {"no"}
    rows = {r["target"]: r for r in result.tables["contrasts"] if r["measure"] == "h - obs"}
    assert {t: r["verdict"] for t, r in rows.items()} == {"health": "yes", "row": "no", "col": "no"}
    assert rows["health"]["contrast"] == "scarce - normal" and rows["health"]["n"] == 8
    assert abs(rows["health"]["value"] - 0.3) < 0.01
    assert len(result.tables["agents"]) == 2 * 3 * 8


def test_agents_whose_runs_have_one_name_are_told_apart(agent: Agent, tmp_path: Path) -> None:
    """runs/a/probes and runs/b/probes were both "probes" in agents.csv."""
    words = [f"normal={agent(f'{name}/probes', {'health': 0.1 * i})}" for i, name in enumerate("abc")]
    result = compared(tmp_path, *words, measures=("h",))
    assert result.notes["groups"] == {"normal": ["a/probes", "b/probes", "c/probes"]}
    assert [row["agent"] for row in result.tables["agents"]] == ["a/probes", "b/probes", "c/probes"]


def test_a_contrast_of_differences(agent: Agent, tmp_path: Path) -> None:
    words = [f"{name}={agent(f'{name}{i}', {'x': v + 0.001 * i})}"
             for name, v in (("a", 0.5), ("b", 0.2), ("c", 0.4), ("d", 0.3)) for i in range(3)]  # fmt: skip
    result = compared(tmp_path, *words, contrasts=("a - b - c + d",), measures=("h",))
    (row,) = result.tables["contrasts"]
    assert np.isclose(row["value"], 0.2) and row["n"] == 12 and row["verdict"] == "yes"


def test_false_alarms_of_three_against_three(record_property: Callable[..., None]) -> None:
    """Differences that are none are called some in at most five of a hundred."""
    from analysis.probes.over_agents import judge, row_of

    rng = np.random.default_rng(3)
    rows = [{"measure": str(i), **row_of(list(rng.normal(0, 0.1, (2, 3))), [-1, 1])} for i in range(2000)]
    judge(rows, 1e-9, both_ways=True)
    alarms = float(np.mean([row["verdict"] == "yes" for row in rows]))
    record_property("false_alarms", alarms)
    assert 0.01 < alarms < 0.06


def test_a_target_that_some_agent_lacks_has_no_row(agent: Agent, tmp_path: Path) -> None:
    one, two = agent("one", {"x": 0.1, "y": 0.1}), agent("two", {"x": 0.2})
    result = compared(tmp_path, f"a={one}", f"b={two}", measures=("h",))
    assert {row["target"] for row in result.tables["contrasts"]} == {"x"}
    assert all(row["value_low"] is None and row["verdict"] == "open" for row in result.tables["contrasts"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"measures": ("h - time",)}, "has no 'h - time'.*it has: beyond, h, obs, h - obs"),
        ({"targets": ("z",)}, "--targets z: not read of every agent"),
        ({"contrasts": ("a - c",)}, "no group c"),
        ({"contrasts": ("a * b",)}, "write groups with"),
        ({"contrasts": ("a + b",)}, "as many groups must be taken away"),
        ({"smallest": 2.0}, "--smallest must lie between 0 and 1"),
    ],
)
def test_what_means_nothing_is_refused(agent: Agent, tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    words = (f"a={agent('one', {'x': 0.1})}", f"b={agent('two', {'x': 0.2})}")
    with pytest.raises(UserError, match=said):
        compared(tmp_path, *words, **settings)


def test_what_is_no_agent_or_counts_twice_is_refused(agent: Agent, tmp_path: Path) -> None:
    one = agent("one", {"x": 0.1})
    again = agent("again", {"x": 0.1}, weights="one")
    other = agent("other", {"x": 0.1}, stage="events")
    for words, said in (
        ((), "nothing to compare"), (("one",), "one: write NAME=DIR"), ((f"a={other}",), "is a run of events"),
        ((f"a={one}", f"b={again}"), "are of one agent; an agent counts once"),
        ((f"a={one}", f"b={one}"), "are of one agent"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            compared(tmp_path, *words)


def test_weights_add_up() -> None:
    assert weights_of("b - a", ["a", "b"]) == [-1, 1]
    assert weights_of("- a+b -c+ d", ["a", "b", "c", "d"]) == [-1, 1, -1, 1]
