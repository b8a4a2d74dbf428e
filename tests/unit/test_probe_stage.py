"""The probes' stage on planted rows: what is read, what is only time or a confounder, and what the controls say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from analysis.probes.__main__ import given_of, summary
from analysis.probes.baselines import joined
from analysis.probes.config import ProbesConfig
from analysis.probes.rows import Chosen, Rows, bent, thinned, unbent, value_of
from analysis.probes.scores import ADDED, BEYOND, LEARNT, added_verdict, kind_of, last_reached, null_of, probe, verdict
from analysis.shared.probe_fits import (
    FoldedRidge,
    MlpOptions,
    auroc,
    exchanged_units,
    folds_of,
    mlp_predict,
    partial_out,
    polynomial,
    told_by_few,
)
from analysis.shared.units import choose_unit, say_shared, shared_by
from core.contracts import UserError
from core.stats import least_units

GIVEN = ("tick", "row")
NOISE = 0.5


def slow(rng: np.random.Generator, steps: int, size: int, keep: float = 0.8) -> np.ndarray:
    """Unit-variance series [T, size]."""
    x = rng.standard_normal((steps, size))
    for t in range(1, steps):
        x[t] = keep * x[t - 1] + np.sqrt(1 - keep**2) * x[t]
    return x


def planted(seed: int, *, units: int = 12, lives: int = 3, steps: int = 40) -> Rows:
    """States that hold four factors of their own, time and place (bent, as by a network), and noise.

    ``own`` is a factor plus noise; ``through`` depends on time and place alone, on neither linearly; ``xor`` is the
    product of two factors' signs; ``elsewhere`` is as slow and unrelated; ``flag`` is whether a factor is positive.
    """
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((6, 16))
    parts: dict[str, list[np.ndarray]] = {}
    for unit in range(units):
        for k in range(lives):
            n = int(rng.integers(steps // 2, steps + 1))
            t, own = np.arange(n), slow(rng, n, 4)
            row = 10 * slow(rng, n, 1)[:, 0]
            bent = np.stack([np.sin(row / 6), np.abs(row) / 8 + t / steps, np.exp(-t / 10), t / steps * row / 10], 1)
            found = {
                "x": np.column_stack([own, bent @ mix[:4] / 2 + NOISE * rng.standard_normal((n, 16))]),
                "tick": t, "row": row,
                "own": own[:, 0] + 0.5 * rng.standard_normal(n),
                "through": 2 * np.exp(-t / 10) + np.sin(row / 6) + 0.5 * rng.standard_normal(n),
                "xor": np.sign(own[:, 1]) * np.sign(own[:, 2]),
                "elsewhere": slow(rng, n, 1)[:, 0],
                "flag": (own[:, 3] > 0).astype(float),
                "still": np.full(n, 3.0),
                "rare": (np.full(n, unit == 0 and k == 0) & (t == 3)).astype(float),
                "unit": np.full(n, unit), "life": np.full(n, unit * lives + k), "t": t,
            }  # fmt: skip
            for name, values in found.items():
                parts.setdefault(name, []).append(values)
    whole = {name: np.concatenate(p) for name, p in parts.items()}
    named = ("tick", "row", "own", "through", "xor", "elsewhere", "flag", "still", "rare")
    quantities = {name: whole[name].astype(float) for name in named}
    groups = {"life": whole["life"], "world": whole["unit"]}
    index = np.stack([whole["life"], whole["t"]], 1)
    return Rows(whole["x"].astype(np.float32), quantities, None, index, whole["t"], groups)


UNSHOWN = "not shown to be more than time alone predicts"


def by_target(result: Any) -> dict[str, dict[str, Any]]:
    return {row["target"]: row for row in result.tables["targets"]}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    rows = planted(0, units=16, lives=4, steps=60)
    net = MlpOptions(epochs=40, patience=10, batch=64, rate=3e-3)
    config = ProbesConfig(shuffles=99, resamples=200, smallest=0.2, net=net)  # of 16 units 14 % can be like no other
    return by_target(probe(rows, list(rows.quantities), GIVEN, "world", config))


def test_short_lives_are_read_where_not_every_step_is() -> None:
    """They were left out whole, so that of early deaths nothing was known."""
    steps = {0: np.arange(40), **{e: np.arange(4) for e in range(1, 41)}, 41: np.arange(12)}
    found = thinned(steps, 8)
    np.testing.assert_array_equal(found[0], [4, 12, 20, 28, 36])
    np.testing.assert_array_equal(found[41], [4])
    assert list(found) == sorted(found) and sum(len(found[e]) for e in found if 0 < e < 41) == 40 * 4 // 8
    assert {int(t) for e in found if 0 < e < 41 for t in found[e]} == {0, 1, 2, 3}
    whole = thinned(steps, 1)
    assert all(np.array_equal(whole[e], steps[e]) for e in steps) and not thinned({}, 3)


def test_a_number_that_stands_for_none_is_refused() -> None:
    """Its square is none, so that R^2 was none either and a quantity that is read plainly was not shown to be."""
    far = {"distance": np.array([1.0, 1.7e308]), "near": np.array([1.0, np.nan])}
    chosen = Chosen({0: np.arange(2)}, {0: far}, {})
    with pytest.raises(UserError, match=r"distance is as large as 1.7e\+308, too large to be read; leave it out"):
        value_of(chosen, "distance", np.arange(2))
    np.testing.assert_array_equal(value_of(chosen, "near", np.arange(2)), far["near"])


def test_each_planted_target_gets_its_verdict(found: dict[str, dict[str, Any]]) -> None:
    assert {name: row["verdict"] for name, row in found.items()} == {
        "tick": "read; it is time itself",
        "row": "read beyond what is given",
        "own": "read beyond what is given",
        "through": "read; not beyond what is given",
        "xor": "not shown to be read",
        "elsewhere": "not shown to be read",
        "flag": "read beyond what is given",
        "still": "constant",
        "rare": "too rare to tell",
    }


@pytest.mark.parametrize(
    ("low", "high_90", "q", "says"),
    [
        (0.03, 0.09, 0.01, "read beyond what is given"),
        (0.03, 0.09, 0.2, "read; open whether beyond what is given"),  # exchanged targets reach it
        (0.01, 0.05, 0.01, "read; open whether beyond what is given"),  # more than nothing, perhaps not of interest
        (-0.02, 0.05, 0.5, "read; open whether beyond what is given"),  # nothing found, and something could be missed
        (-0.02, 0.015, 0.5, "read; not beyond what is given"),
        (0.005, 0.015, 0.01, "read; not beyond what is given"),  # surely more than nothing, and surely too little
        (None, None, None, "read; open whether beyond what is given"),
    ],
)
def test_beyond_what_is_given_has_a_smallest_size(low: float, high_90: float, q: float, says: str) -> None:
    row = {"units_varying": 16, "linear_low": 0.3, "linear_q": 0.01, "time": 0.1, "partial": 0.0}
    row["with_time_minus_time_q"] = 0.01
    row |= {"partial_low": low, "partial_high_90": high_90, "partial_q": q}
    assert verdict(row, True, 0.02) == says


@pytest.mark.parametrize("seed", range(3))
def test_states_that_know_time_alone_do_not_say_how_long_an_episode_will_be(seed: int) -> None:
    """The label goes with the length, so late steps are of one label: exchanged labels do not keep that."""
    rng = np.random.default_rng(seed)
    length = rng.geometric(1 / 25, 30) + 5
    unit, t = np.repeat(np.arange(30), length), np.concatenate([np.arange(n) for n in length])
    label = (length > np.median(length)).astype(float)[unit]
    x = np.stack([t / 25, np.minimum(t, 10) / 10, np.maximum(t - 30, 0) / 30, rng.standard_normal(len(t))], 1)
    rows = Rows(x.astype(np.float32), {"label": label}, None, np.stack([unit, t], 1), t, {"life": unit})
    found = by_target(probe(rows, ["label"], (), "life", ProbesConfig(shuffles=99, resamples=199, mlp=False)))
    assert found["label"]["verdict"] == "not shown to be more than time alone predicts"


def test_mediation_takes_what_is_only_a_confounders_and_leaves_the_rest(found: dict[str, dict[str, Any]]) -> None:
    through, own = found["through"], found["own"]
    assert through["linear"] > 0.4 and through["linear_low"] > 0.3 and through["linear_q"] <= 0.05
    assert abs(through["partial"]) < 0.02 and through["partial_q"] > 0.05 and through["unique"] < 0.02
    assert own["partial"] == pytest.approx(1 / 1.25, abs=0.04)  # variance 1 of 1.25 is in the states
    assert own["unique"] == pytest.approx(own["partial"], abs=0.03) and own["unique_low"] > 0.7
    assert abs(own["given"]) < 0.05


def test_the_network_beats_the_line_on_a_product_of_signs_only(found: dict[str, dict[str, Any]]) -> None:
    xor, own = found["xor"], found["own"]
    assert xor["mlp"] > 0.4 > 0.05 > xor["linear"]
    assert xor["mlp_minus_linear_low"] > 0.3 and xor["mlp_minus_linear_q"] <= 0.05
    assert abs(own["mlp_minus_linear"]) < 0.02 and own["mlp_shuffled"] < 0.05
    assert own["mlp_minus_linear_q"] > 0.05 and found["elsewhere"]["mlp_minus_linear_q"] > 0.05


def test_chance_is_chance_and_time_alone_knows_time(found: dict[str, dict[str, Any]]) -> None:
    elsewhere, tick = found["elsewhere"], found["tick"]
    assert elsewhere["linear"] < 0.03 and elsewhere["mlp"] < 0.03 and elsewhere["linear_q"] > 0.05
    assert tick["time"] > 0.999 and found["own"]["linear_minus_time"] > 0.6
    assert found["own"]["linear_minus_time_q"] <= 0.05
    assert found["flag"]["kind"] == "binary" and found["flag"]["auroc_linear"] > 0.95
    assert found["flag"]["auroc_linear_low"] <= found["flag"]["auroc_linear"] <= found["flag"]["auroc_linear_high"]
    assert "auroc_linear" not in found["own"]
    assert found["rare"]["linear_q"] is None and found["rare"]["units_varying"] == 1  # not in the family of tests


def test_mediation_keeps_its_level_and_its_power() -> None:
    """What runs through time and place alone, and what is unrelated, over seeds; and what is not removed."""
    p: dict[str, list[float]] = {"through": [], "elsewhere": [], "own": []}
    for seed in range(40):
        rows = planted(100 + seed, units=10, lives=2, steps=24)
        config = ProbesConfig(shuffles=39, resamples=99, mlp=False, folds=3, seed=seed)
        found = by_target(probe(rows, list(p), GIVEN, "world", config))
        for name in p:
            p[name].append(found[name]["partial_p"])
    assert np.mean(np.array(p["own"]) <= 0.05) == 1
    for name in ("through", "elsewhere"):
        assert np.mean(np.array(p[name]) <= 0.05) <= 0.15  # binomial, 40 runs at 0.05: P(more) < 4e-3


def test_too_few_exchanges_to_show_any_quantity_by_itself_are_said() -> None:
    """19 exchanges give p .05 at best, which one of four quantities cannot pass alone; 79 can, as the note says."""
    names = ("own", "xor", "elsewhere", "through")
    for shuffles, q, said in (
        (19, 0.05, "4 quantities (against exchanged ones) are tested together and p is never below 0.05: at least 4 "
         "must reach that for one to count; one alone could with --shuffles 79, or with fewer --targets"),
        (79, 0.0, None),
    ):  # fmt: skip
        result = probe(planted(3), names, (), "world", ProbesConfig(shuffles=shuffles, resamples=99, mlp=False))
        own = by_target(result)["own"]
        assert result.notes["resolution"] == ([] if said is None else [said])
        assert own["linear"] > 0.7 and own["linear_p"] == pytest.approx(1 / (1 + shuffles))
        assert own["linear_q"] > q and own["verdict"] == ("read" if said is None else UNSHOWN)


def test_a_constant_of_a_world_is_read_where_the_split_lets_lives_of_it_apart() -> None:
    rows = planted(3)
    known = np.eye(12)[rows.groups["world"]]  # states in which a world is recognised
    rows = rows._replace(x_NF=np.column_stack([rows.x_NF, known]).astype(np.float32))
    config = ProbesConfig(shuffles=19, resamples=99, mlp=False)
    r2 = {
        unit: {c["constant_per"]: c["r2"] for c in probe(rows, ["own"], (), unit, config).tables["controls"]}
        for unit in ("life", "world")
    }
    assert r2["life"]["life"] < 0.6 and r2["life"]["world"] > 0.9  # leaks, and the control says so
    assert r2["world"]["life"] < 0.05 and r2["world"]["world"] < 0.05
    said = {unit: summary(probe(rows, ["own"], (), unit, config), Path()) for unit in ("life", "world")}
    assert "warning: these lives share" in said["life"] and "--unit world" in said["life"]
    assert "warning" not in said["world"]


def test_a_constant_of_the_only_world_is_no_control() -> None:
    """A number that never changes has a variance of 1e-30 or so by rounding, and R^2 1 of it says nothing."""
    rows = planted(3)
    rows = rows._replace(groups={**rows.groups, "world": np.zeros(len(rows.x_NF), np.int64)})
    config = ProbesConfig(shuffles=19, resamples=99, mlp=False)
    controls = probe(rows, ["own"], (), "life", config).tables["controls"]
    assert [c["constant_per"] for c in controls] == ["life"]


def test_an_exchange_that_leaves_no_spread_is_undefined() -> None:
    rng = np.random.default_rng(0)
    y, fold = np.where(np.arange(300) < 10, 1.0, 0.1), np.arange(300) % 3
    donors = np.stack([np.full(300, 50), np.roll(np.arange(300), 5)], 1)  # always 0.1; as it was
    null = null_of(FoldedRidge(rng.standard_normal((300, 4)), fold), y, donors)
    assert np.isnan(null[0]) and np.isfinite(null[1])


def test_a_confounder_is_given_the_others() -> None:
    rows = planted(4)
    fold = folds_of(rows.groups["world"], 5, np.random.default_rng(0))
    config = ProbesConfig(shuffles=19, resamples=99, mlp=False)
    found = by_target(probe(rows, ["tick", "own"], ("tick",), "world", config))
    assert found["tick"]["partial"] is None and found["tick"]["given"] is None  # nothing is left to give
    assert found["own"]["partial"] is not None
    z = np.stack([rows.quantities[g] for g in GIVEN], 1)
    (left,) = partial_out(z, fold, np.random.default_rng(0), rows.quantities["through"][:, None])
    assert left.var() == pytest.approx(0.25, abs=0.05)  # its noise is all that stays


def test_partialling_out_follows_bends_and_products() -> None:
    rng = np.random.default_rng(0)
    z = np.column_stack([rng.uniform(0, 60, 4000), rng.normal(30, 9, 4000), rng.random(4000) < 0.2])
    y = np.stack([np.sin(z[:, 0] / 5), (z[:, 1] > 35) * z[:, 2] + z[:, 0] * z[:, 1] / 2000, np.floor(z[:, 0] / 20)], 1)
    (left,) = partial_out(z, np.arange(4000) % 4, rng, y)
    assert (1 - (left**2).mean(0) / y.var(0) > [0.98, 0.95, 0.95]).all()
    assert [polynomial(z[:, :1].repeat(c, 1)).shape[1] for c in (1, 2, 4, 9)] == [5, 20, 125, 54]


def confounded(seed: int, *, units: int, steps: int, within: bool = False) -> Rows:
    """States and two quantities that hold steep functions of z and noise of their own, and one, ``own``, that the
    states hold beside it; z is one number a unit (or one a step)."""
    rng = np.random.default_rng(seed)
    unit, t = np.repeat(np.arange(units), steps), np.tile(np.arange(steps), units)
    z = rng.uniform(-1, 1, units * steps) if within else rng.uniform(-1, 1, units)[unit]

    def of_z(size: int) -> np.ndarray:
        bent: np.ndarray = np.sin(z[:, None] * rng.uniform(2, 6, size) + rng.uniform(0, 6, size))
        return bent + 0.3 * rng.standard_normal((len(z), size))

    y, x, own = of_z(2), of_z(6), rng.standard_normal(len(z))
    quantities = {"z": z, "a": y[:, 0], "b": y[:, 1], "own": own + 0.3 * rng.standard_normal(len(z))}
    return Rows(
        np.column_stack([x, own]).astype(np.float32), quantities, None, np.stack([unit, t], 1), t, {"life": unit}
    )


def test_beyond_what_few_units_tell_of_a_confounder_is_open() -> None:
    """With 24 values of z its steep functions stay on both sides, and are read there: that is no finding."""
    config = ProbesConfig(shuffles=99, resamples=199, mlp=False, smallest=0.15)
    targets, left = ("a", "b", "own"), []
    for seed in range(6):
        result = probe(confounded(seed, units=24, steps=30), targets, ("z",), "life", config)
        for row in result.tables["targets"]:
            assert row["verdict"] in (
                "not shown to be read",
                "read; open whether beyond what is given: too few units for z",
            )
            left += [row["partial"]] if row["target"] != "own" else []
        assert "z: nearly the same all through a unit" in summary(result, Path())
    assert np.max(left) > 0.3, "else there is nothing to be open about"
    for rows in (confounded(0, units=24, steps=30, within=True), confounded(0, units=120, steps=10)):
        result = probe(rows, targets, ("z",), "life", config)
        said = [row["verdict"] for row in result.tables["targets"]]
        assert said == ["read; not beyond what is given"] * 2 + ["read beyond what is given"]
        assert "nearly the same" not in summary(result, Path())


def test_a_confounder_is_told_by_units_where_it_is_the_same_all_through_them() -> None:
    rng = np.random.default_rng(0)

    def few(units: int, *columns: np.ndarray) -> list[bool]:
        z = np.stack([c if len(c) > units else c[np.repeat(np.arange(units), 20)] for c in columns], 1)
        return [bool(x) for x in told_by_few(z, np.repeat(np.arange(units), 20))]

    number, another, two = rng.random(99), rng.random(99), np.arange(99) % 2
    along, still = rng.random(99 * 20), np.ones(99)
    assert few(99, number) == [True] and few(99, number, along) == [True, False]
    assert few(99, number + 0.001) == [True] and few(99, still) == [False]
    nearly = np.repeat(number, 20) + 0.01 * along
    assert few(99, nearly) == [True]
    assert few(99, two) == [False] and few(10, two[:10]) == [True]  # five units of each value
    assert few(99, number, two) == [True, True]  # no other unit has both numbers
    assert few(100, rng.random(100)) == [False] and few(100, rng.random(100), rng.random(100)) == [True, True]
    assert few(99, number, another) == [True, True] and few(400, rng.random(400), rng.random(400)) == [False, False]


def test_exchanged_units_keep_time_and_come_from_elsewhere() -> None:
    rows = planted(5, units=7, lives=3)
    life, unit = rows.groups["life"], rows.groups["world"]
    for seed in range(5):
        donor = exchanged_units(life, unit, np.random.default_rng(seed))
        longest = {u: max(rows.time_N[unit != u]) for u in np.unique(unit)}
        reached = rows.time_N <= np.array([longest[u] for u in unit])
        assert (unit[donor] != unit).all()
        np.testing.assert_array_equal(rows.time_N[donor][reached], rows.time_N[reached])
        pairs = {(unit[i], unit[donor[i]]) for i in np.flatnonzero(rows.time_N == 0)}
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) == 7  # units go as a whole
    of_2 = exchanged_units(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 1]), np.random.default_rng(0))
    assert of_2.tolist() == [3, 4, 3, 0, 1]  # the third step begins again: nobody else lives so long
    assert len(np.unique([exchanged_units(life, unit, np.random.default_rng(s))[0] for s in range(20)])) > 3


def test_a_network_does_not_depend_on_the_other_targets() -> None:
    rows = planted(6)
    y = np.stack([rows.quantities[n] for n in ("xor", "own", "elsewhere")], 1)
    unit, options = rows.groups["world"], MlpOptions(epochs=4)
    fold = folds_of(unit, 3, np.random.default_rng(0))
    together = mlp_predict(rows.x_NF, y, fold, unit, options, 1)
    alone = mlp_predict(rows.x_NF, y[:, :1], fold, unit, options, 1)
    np.testing.assert_allclose(together[:, :1], alone, atol=1e-4)
    np.testing.assert_array_equal(together, mlp_predict(rows.x_NF, y, fold, unit, options, 1))


def test_no_unit_is_on_both_sides_of_a_network() -> None:
    """Numbers that belong to a unit, in states that tell which it is: learnt by heart, and of no use for others."""
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(9), 30)
    x = np.eye(9)[unit] + 0.1 * rng.standard_normal((270, 9))
    y = rng.standard_normal((9, 5))[unit]
    fold = folds_of(unit, 3, rng)
    said = mlp_predict(x, y, fold, np.arange(270), MlpOptions(epochs=60, patience=60, batch=16), 0)
    assert (1 - ((said - y) ** 2).sum(0) / (y.var(0) * len(y)) < 0.1).all()


def test_auroc_is_scikit_learns_with_weights_and_ties() -> None:
    rng = np.random.default_rng(0)
    score, positive, unit = np.round(rng.normal(size=300), 1), rng.random(300) < 0.3, rng.integers(9, size=300)
    weight = np.concatenate([np.ones((1, 9)), rng.multinomial(9, np.full(9, 1 / 9), 5)])
    want = [roc_auc_score(positive, score, sample_weight=w[unit]) for w in weight]
    np.testing.assert_allclose(auroc(score, positive, unit, weight), want)
    assert np.isnan(auroc(score, np.zeros(300, bool), unit, weight)).all()


def test_units_are_chosen_large_and_refused_when_few() -> None:
    many, few = np.arange(40) % 12, np.arange(40) % 3
    assert choose_unit({"life": np.arange(40), "world": many, "map": few}, "auto", 5, Path("runs/x")) == "world"
    assert choose_unit({"life": np.arange(40), "world": many, "map": many}, "auto", 5, Path("runs/x")) == "map"
    assert choose_unit({"life": np.arange(40)}, "auto", 5, Path("runs/x")) == "life"
    with pytest.raises(
        UserError, match=r"runs/x: 3 units \(map\) are too few; at least 5 .* record more, or use --unit life"
    ):
        choose_unit({"life": np.arange(40), "map": few}, "map", 5, Path("runs/x"))
    with pytest.raises(UserError, match="--unit world: neither the episodes' meta nor their truth says it"):
        choose_unit({"life": np.arange(40)}, "world", 5, Path("runs/x"))
    assert least_units(0.05, "permutation") == 4
    assert [kind_of(np.array(v)) for v in ([1.0, 1.0], [0.0, 2.0], [0.0, 1.0, 2.0])] == ["constant", "binary", "number"]


def test_lives_of_few_levels_are_said_to_share_them() -> None:
    groups = {"life": np.arange(40), "level": np.arange(40) % 6}
    unit = choose_unit(groups, "auto", 5, Path("runs/x"))
    said = say_shared(shared_by(groups, unit), unit)
    assert unit == "life" and "these lives share 6 levels" in said and "--unit level" in said
    assert say_shared(shared_by(groups, "level"), "level") == ""


def test_nothing_that_varies_is_refused() -> None:
    rows = planted(7)
    with pytest.raises(UserError, match="none of the 1 quantities ever changes"):
        probe(rows, ["still"], (), "world", ProbesConfig(shuffles=19, resamples=99))


# Baselines: the frame, time, previous actions


def remembering(seed: int, *, units: int = 30, steps: int = 60) -> Rows:
    """A state that holds a bent frame, the previous action, the step, and an average of earlier frames.

    ``kept`` is that average, ``shown`` is in the frame, ``bent`` is a bend of the frame that the frame's features hold
    as the state does, ``acted`` is the previous action and ``late`` the step; ``flag`` is whether ``kept`` is positive.
    A network with shuffled weights holds frame and step.
    """
    rng = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {}
    for unit in range(units):
        n = int(rng.integers(steps // 2, steps + 1))
        frame, action = rng.standard_normal((n, 3)), rng.integers(3, size=n)
        kept = np.zeros(n)
        for t in range(1, n):
            kept[t] = 0.8 * kept[t - 1] + frame[t - 1, 0]
        bend = np.abs(frame[:, 1])
        before = np.eye(3)[np.r_[0, action[:-1]]] * (np.arange(n) > 0)[:, None]
        state = np.column_stack([frame, bend, before, np.arange(n) / steps, kept])
        found = {
            "x": state + 0.02 * rng.standard_normal(state.shape), "frame": np.column_stack([frame, bend]),
            "action": before, "kept": kept, "shown": frame[:, 2] + 0.2 * rng.standard_normal(n),
            "bent": bend + 0.2 * rng.standard_normal(n), "acted": (before[:, 1] > 0).astype(float),
            "late": np.arange(n).astype(float), "flag": (kept > 0).astype(float),
            "unit": np.full(n, unit), "t": np.arange(n),
        }  # fmt: skip
        for name, values in found.items():
            parts.setdefault(name, []).append(values)
    whole = {name: np.concatenate(p) for name, p in parts.items()}
    quantities = {name: whole[name] for name in ("kept", "shown", "bent", "acted", "late", "flag")}
    baselines = joined(whole["frame"], whole["action"], whole["t"])
    baselines["random"] = whole["x"][:, [0, 1, 2, 7]] + 0.02 * rng.standard_normal((len(whole["x"]), 4))
    index, groups = np.stack([whole["unit"], whole["t"]], 1), {"life": whole["unit"]}
    return Rows(whole["x"].astype(np.float32), quantities, None, index, whole["t"], groups, baselines)


def test_memory_is_credited_with_what_only_it_knows() -> None:
    rows = remembering(0)
    config = ProbesConfig(shuffles=39, resamples=199, mlp=False, smallest=0.1)
    found = by_target(probe(rows, list(rows.quantities), (), "life", config))
    assert {name for name, row in found.items() if row["memory"] == BEYOND} == {"kept", "flag"}
    assert all(found[name]["memory"] == f"not {BEYOND}" for name in ("shown", "bent", "acted", "late"))
    assert {name for name, row in found.items() if row["learnt"] == LEARNT} == {"kept", "bent", "acted", "flag"}
    assert all(found[name]["learnt"] == f"not {LEARNT}" for name in ("shown", "late"))
    kept, acted, late = found["kept"], found["acted"], found["late"]
    assert kept["linear"] > 0.95 > 0.1 > kept["all"] and kept["linear_minus_frame_low"] > 0.8
    assert kept["everything_minus_all_low"] > 0.8 and kept["everything_minus_all_q"] <= 0.05
    assert acted["linear_minus_frame_low"] > 0.8 and acted["action"] > 0.99  # the frame lacks it, the action has it
    assert late["action"] < 0.1 and late["time"] > 0.99 and late["all"] > 0.99
    assert found["bent"]["frame"] > 0.8 and kept["linear_minus_random_low"] > 0.8
    flag = found["flag"]
    assert flag["auroc_linear"] > 0.95 > 0.65 > flag["auroc_frame"]
    assert flag["auroc_linear_minus_all_low"] > 0.2 and "auroc_linear_minus_all" not in kept


@pytest.mark.parametrize("column", ADDED)
@pytest.mark.parametrize(
    ("low", "high_90", "q", "says"),
    [
        (0.03, 0.09, 0.01, "{}"),
        (0.03, 0.09, 0.2, "open whether {}"),
        (0.01, 0.05, 0.01, "open whether {}"),
        (-0.02, 0.015, 0.5, "not {}"),
        (None, None, None, "open whether {}"),
    ],
)
def test_what_a_state_adds_has_a_smallest_size(low: float, high_90: float, q: float, says: str, column: str) -> None:
    name, words = ADDED[column]
    row = {"units_varying": 16, f"{name}_low": low, f"{name}_high_90": high_90, f"{name}_q": q}
    assert added_verdict(row, column, 0.02) == says.format(words)
    assert added_verdict(row | {"units_varying": 2}, column, 0.02) == "too rare to tell"


def test_a_quantity_is_read_where_it_has_a_value() -> None:
    rows = planted(8, units=16, lives=3)
    there = np.random.default_rng(0).random(len(rows.x_NF)) < 0.4
    few = np.isin(rows.groups["world"], (0, 1))
    quantities = rows.quantities | {
        "some": np.where(there, rows.quantities["own"], np.nan),
        "in two worlds": np.where(few, rows.quantities["own"], np.nan),
        "nowhere": np.full(len(there), np.nan),
        "still there": np.where(there, 3.0, np.nan),
    }
    rows = rows._replace(quantities=quantities)
    config = ProbesConfig(shuffles=99, resamples=99, mlp=False)
    names = ["own", "some", "in two worlds", "nowhere", "still there", "flag"]
    result = probe(rows, names, (), "world", config)
    found = by_target(result)
    assert [row["target"] for row in result.tables["targets"]] == names
    assert found["own"]["rows"] == len(there) and found["some"]["rows"] == there.sum()
    assert found["some"]["verdict"] == "read" and found["some"]["linear"] == pytest.approx(0.8, abs=0.06)
    alone = probe(rows.of(there), ["some"], (), "world", config).tables["targets"][0]
    assert found["some"]["linear"] == alone["linear"]
    assert found["in two worlds"]["verdict"] == "too rare to tell" and found["in two worlds"]["rows"] == few.sum()
    assert found["nowhere"]["verdict"] == "never there" and found["still there"]["verdict"] == "constant"
    assert result.notes["directions"] == ["own", "flag", "some"] and len(result.arrays["direction_read"]) == 3
    read = result.arrays["predicted_linear"]
    assert np.isnan(read[~there, 2]).all() and np.isfinite(read[there]).all()
    said = summary(result, Path())
    assert f"some                 R2 {found['some']['linear']:.2f}" in said and f"at {there.sum():,} steps" in said


def test_targets_of_other_steps_are_exchanged_by_time() -> None:
    rng = np.random.default_rng(0)
    step = np.concatenate([np.flatnonzero(rng.random(60) < 0.5) for _ in range(8)])
    life = np.cumsum(np.r_[0, np.diff(step) < 0])
    donor = exchanged_units(life, life, rng, step)
    assert (life[donor] != life).all()
    reached = step <= 50
    assert np.abs(step[donor] - step)[reached].mean() < 1.5 and np.abs(step[donor] - step)[reached].max() <= 8


def test_angles_are_read_on_a_circle() -> None:
    assert bent(["coin_dx", "coin_bearing"]) == ["coin_dx", "sin(coin_bearing)", "cos(coin_bearing)"]
    assert unbent("sin(coin_bearing)") == ("coin_bearing", "sin") and unbent("coin_dx") == ("coin_dx", "")


def test_a_few_long_lives_are_told() -> None:
    """One life of a thousand steps among short ones: time is not known where nobody else lives."""
    step, unit = np.concatenate([np.arange(60)] * 20 + [np.arange(1000)]), np.repeat(np.arange(21), [60] * 20 + [1000])
    assert last_reached(step, unit) == 59
    assert last_reached(step[step < 100], unit[step < 100]) is None  # hardly longer than the others
    assert last_reached(np.arange(90), np.arange(90) // 30) is None
    rows = planted(9)
    late = rows.index_N2[:, 1] + 200 * (rows.groups["life"] == 3)
    rows = rows._replace(index_N2=np.stack([rows.index_N2[:, 0], late], 1))
    said = summary(probe(rows, ["own"], (), "world", ProbesConfig(shuffles=19, resamples=99, mlp=False)), Path())
    last = last_reached(late, rows.groups["world"])
    assert last is not None and f"fewer than 6 units have steps after {last}" in said and f"--last_step {last}" in said


def test_given_fits_what_is_recorded() -> None:
    config = ProbesConfig()
    assert given_of(config, ["tick", "self_gold", "in_combat"]) == ("tick", "in_combat")
    assert given_of(config, ["row", "col", "timestep"]) == ("step", "row", "col")  # time is always given
    assert given_of(config, ["agent_x"]) == ("step",) and given_of(ProbesConfig(given=()), ["tick"]) == ()
