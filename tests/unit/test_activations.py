"""Verdicts, floors and effect sizes of clusters of activations, against planted truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from analysis.activations import figures, moments, verdicts
from analysis.activations.components import relations
from analysis.activations.config import ActivationsConfig
from analysis.activations.dendrogram import page
from analysis.activations.density import find, rolling_mean, stability, transitions
from analysis.activations.described import analyse, describe, placing, summary
from analysis.activations.figures import draw
from analysis.activations.records import Records
from analysis.activations.verdicts import Lives
from analysis.shared.clusters import NOISE, TIME_BINS, time_bins, time_eta2
from analysis.shared.directions import principal_scores
from analysis.shared.placed import cost, evenly
from analysis.shared.surrogates import compare
from analysis.shared.units import stretches
from core.artefacts import Result
from core.contracts import UserError
from core.stats import cohens_d, cohens_d_interval, eta_squared

LIVES, ROWS, UNITS, EVERY = 30, 48, 12, 10
NAMES = ("food", "fighting", "level", "tick", "gold")
CONFIG = ActivationsConfig(
    permutations=99, resamples=100, refits=1, surrogates=0, cluster_before_umap=True, pre_cluster_dims=4
)


def grid(rng: np.random.Generator, lives: int = LIVES, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(life, record within the life, share of the lifespan) of every row; a third of the lives end early."""
    length = np.where(np.arange(lives) % 3 == 0, rng.integers(rows // 2, rows, lives), rows)
    life = np.repeat(np.arange(lives), length)
    at = np.concatenate([np.arange(n) for n in length])
    return life, at, (at + 0.5) / length[life]


def switching(rng: np.random.Generator, life: np.ndarray, states: int, stay: float) -> np.ndarray:
    """A state a row that changes now and then, anew in every life."""
    out = rng.integers(states, size=len(life))
    for i in np.flatnonzero((rng.random(len(life)) < stay) & np.r_[False, life[1:] == life[:-1]]):
        out[i] = out[i - 1]
    return out


def planted(kind: str, seed: int, lives: int = LIVES, rows: int = ROWS) -> tuple[Records, np.ndarray]:
    """Activations that follow a behaviour, the tick, the life, or nothing, and what they follow, a number a row.

    Features depend on all three in every world: the level and the gold rise with the tick, food falls with the share
    of life and differs between lives, and who fights (state 0) has less food.
    """
    rng = np.random.default_rng(seed)
    life, at, share = grid(rng, lives, rows)
    tick = at * float(EVERY)
    state = switching(rng, life, 3, 0.8)
    centre = 4 * rng.standard_normal((lives, UNITS))
    u = tick / (EVERY * rows)
    if kind == "behaviour":
        truth = state
        h = centre[truth]
    elif kind == "phase":  # a smooth curve through space, along which time passes unevenly
        u = u + 0.95 / (8 * np.pi) * np.sin(8 * np.pi * u)
        truth = np.minimum((u * 4 + 0.5).astype(int), 4)
        h = 12 * np.stack([np.cos(5 * u), np.sin(5 * u), u], 1) @ rng.standard_normal((3, UNITS)) / np.sqrt(3)
    elif kind == "identity":
        truth = life % 4
        h = centre[truth]
    elif kind == "one life each":
        truth = life
        h = 2 * centre[truth]
    else:
        truth, h = np.zeros(len(life), int), np.zeros((len(life), UNITS))
    h = h + rng.standard_normal((len(life), UNITS))
    normal = rng.standard_normal((len(life), len(NAMES)))
    offset = 2 * rng.standard_normal(lives)
    features = np.stack(
        [
            offset[life] - 3 * share - 1.0 * (state == 0) + normal[:, 0],
            (state == 0) * 2.0 + normal[:, 1],
            np.floor(tick / 50) + normal[:, 2],
            tick,
            tick / 100 + offset[life] + normal[:, 4],
        ],
        1,
    )
    index = np.stack([life, at * EVERY], 1)
    of = Lives(life, np.arange(lives), tick, share)
    return Records(h.astype(np.float32), features, features, None, index, of, NAMES, "lives", 5), truth


def judged(records: Records, label: np.ndarray | None = None, config: ActivationsConfig = CONFIG) -> Result:
    """Numbers and verdicts of HDBSCAN's clusters in the space of components, or of the given ones."""
    x, _ = principal_scores(records.h_NH, config.pre_cluster_dims)
    result = Result()
    result.arrays["label"] = find(x, config.hdbscan_min_cluster, 1).label_N if label is None else label
    describe(result, records, x, 0.0, config, np.random.default_rng(config.seed))
    return result


def kinds(result: Result) -> list[str]:
    return [row["verdict"] for row in result.tables["clusters"]]


@pytest.mark.parametrize(("flag", "samples"), [(0, 20), (3, 3)])
def test_as_many_neighbours_tell_the_density_as_are_asked_for(flag: int, samples: int) -> None:
    """By default as many as the smallest cluster has rows; where some rows alone are clustered, in proportion."""
    from hdbscan import HDBSCAN  # type: ignore[import-untyped]

    x = planted("behaviour", 0)[0].h_NH[:, :2].astype(np.float64)
    share = replace(CONFIG, hdbscan_min_cluster=20, hdbscan_min_samples=flag).samples_share
    own = HDBSCAN(min_cluster_size=20, min_samples=samples, core_dist_n_jobs=1).fit(x)
    found = find(x, 20, 1, samples=share)
    assert (found.label_N < 0).sum() == (own.labels_ < 0).sum()
    np.testing.assert_array_equal(found.tree_lambda, own.condensed_tree_.to_numpy()["lambda_val"])
    half = HDBSCAN(min_cluster_size=10, min_samples=round(samples / 2), core_dist_n_jobs=1).fit(x[::2])
    tree = find(x, 20, 1, np.arange(0, len(x), 2), share).tree_lambda
    np.testing.assert_array_equal(tree, half.condensed_tree_.to_numpy()["lambda_val"])


def test_refits_and_surrogates_take_as_many_neighbours_too() -> None:
    """With few of them less is in no cluster, and what a refit leaves out is another class."""
    records, _ = planted("behaviour", 0)
    x, life = records.h_NH[:, :2].astype(np.float64), records.lives.life_N
    few, many = (find(x, 40, 1, samples=share).label_N for share in (0.05, 1.0))
    assert (few < 0).sum() != (many < 0).sum()
    by = {"min_cluster_size": 40, "seed": 0, "repeats": 5}
    assert stability(x, few, life, **by, samples=0.05) != stability(x, few, life, **by)
    options = {"method": "hdbscan", "clusters": 0, "surrogates": 2, "seed": 0, "min_cluster_size": 40}
    compared = [compare(x, life, life, **options, samples=share) for share in (0.05, 1.0)]  # type: ignore[arg-type]
    assert (compared[0].observed != compared[1].observed).any()
    assert any((compared[0].draws[kind] != compared[1].draws[kind]).any() for kind in compared[0].draws)
    config = replace(CONFIG, hdbscan_min_cluster=40, hdbscan_min_samples=2, pre_cluster_dims=2, refits=5, surrogates=2)
    result = analyse(records, config)
    pc, _ = principal_scores(records.h_NH, 2)
    found = find(pc, 40, 1, samples=0.05)
    np.testing.assert_array_equal(result.arrays["tree_lambda"], found.tree_lambda)
    assert result.scalars["stability"]["value"] == stability(pc, found.label_N, life, **by, samples=0.05)[0].value
    expected = compare(pc, life, life, **options, samples=0.05).observed[0]  # type: ignore[arg-type]
    assert result.scalars["stability_compared"]["value"] == expected


# What clusters are called


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))])
def test_clusters_that_are_only_time_are_called_phase(seed: int) -> None:
    """Although most features follow time too, and differ between lives."""
    records, _ = planted("phase", seed)
    result = judged(records)
    assert len(kinds(result)) >= 2
    assert set(kinds(result)) == {"phase"} and result.notes["verdict"] == "phase"


@pytest.mark.parametrize(
    ("kind", "called"), [("behaviour", "behaviour"), ("identity", "identity"), ("one life each", "identity")]
)
@pytest.mark.parametrize("seed", range(3))
def test_planted_clusters_are_called_what_they_are(kind: str, called: str, seed: int) -> None:
    from sklearn.metrics import adjusted_rand_score

    records, truth = planted(kind, seed)
    result = judged(records)
    assert set(kinds(result)) == {called} and result.notes["verdict"] == called
    if kind != "one life each":  # lives whose centres lie near each other share a cluster
        assert adjusted_rand_score(truth, result.arrays["label"]) >= 0.95
        assert result.scalars["stability"]["value"] >= 0.95
    assert result.scalars["noise_share"]["value"] < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_clusters_of_noise_are_called_noise(seed: int) -> None:
    """Labels that come in runs and know nothing; clusters that HDBSCAN finds in the plane where there are none.  Where
    an effect of interest could be missed they are undecided."""
    records, _ = planted("noise", seed, lives=90)
    rng = np.random.default_rng(seed)
    blind = switching(rng, records.lives.life_N, 4, 0.8) - 1
    result = judged(records, blind)
    assert result.notes["verdict"] == "noise", kinds(result)
    for row in result.tables["clusters"]:
        assert (row["verdict"] == "noise") <= (row["missable"] < CONFIG.smallest)
        assert row["units"] == row["lives"] > 60  # lives are the units where worlds are not known
    plane = find(rng.standard_normal((len(records), 2)), 15, 1).label_N
    assert plane.max() >= 1
    result = judged(records, plane)
    assert set(kinds(result)) <= {"noise", "undecided"}
    assert abs(result.scalars["tick_eta2"]["value"]) < 0.02
    short, _ = planted("noise", seed, lives=12)
    few = judged(short, blind[: len(short)])
    assert set(kinds(few)) <= {"noise", "undecided"} and "undecided" in kinds(few)
    assert "could be missed (12 lives)" in " ".join(row["why"] for row in few.tables["clusters"])


def test_no_cluster_at_all_is_a_verdict_of_its_own() -> None:
    records, _ = planted("noise", 0)
    result = judged(records, np.full(len(records), NOISE))
    assert result.notes["verdict"] == "no clusters" and result.tables["clusters"] == result.tables["effects"] == []
    assert result.scalars["noise_share"]["value"] == 1 and "stability" not in result.scalars


def test_a_behaviour_of_late_game_is_a_behaviour_and_its_time_is_said() -> None:
    """In the last half of the ticks every other agent fights: time tells much of the cluster, and not all of it."""
    records, _ = planted("noise", 0)
    late = records.lives.tick_N > EVERY * ROWS / 2
    rng = np.random.default_rng(0)
    fights = late & (switching(rng, records.lives.life_N, 2, 0.8) == 0)
    records.features_NF[:, 1] = 2.0 * fights + rng.standard_normal(len(late))
    row = judged(records, np.where(fights, 0, 1)).tables["clusters"][0]
    assert (
        row["verdict"] == "behaviour"
        and "fighting +" in row["why"]
        and "time alone tells it with AUC 0.8" in row["why"]
    )


def test_a_behaviour_of_few_agents_is_not_called_behaviour() -> None:
    records, _ = planted("noise", 0)
    rng = np.random.default_rng(0)
    fights = (records.lives.life_N < 2) & (switching(rng, records.lives.life_N, 2, 0.8) == 0)
    records.features_NF[:, 1] = 3.0 * fights + rng.standard_normal(len(fights))
    row = judged(records, np.where(fights, 0, NOISE)).tables["clusters"][0]
    assert row["verdict"] == "identity" and row["agents"] < 2.1 < row["agents_floor"]


def in_worlds(seed: int, worlds: int = 16, agents: int = 12) -> tuple[Lives, np.ndarray]:
    """Equally long lives of several worlds, and four features that drift alike for all agents of a world."""
    rng = np.random.default_rng(seed)
    rows, n = 30, worlds * agents
    life, at = np.repeat(np.arange(n), rows), np.tile(np.arange(rows), n)
    drift = rng.standard_normal((worlds, rows, 4))
    for i in range(1, rows):
        drift[:, i] = 0.8 * drift[:, i - 1] + 0.6 * drift[:, i]
    features = drift[life // agents, at] + rng.standard_normal((len(life), 4))
    return Lives(life, np.arange(n), at * 10.0, (at + 0.5) / rows, np.arange(n) // agents), features


def verdict_of(lives: Lives, features: np.ndarray, label: np.ndarray) -> tuple[str, str]:
    rng = np.random.default_rng(0)
    found = verdicts.effects(features, list("abcd"), 0, label, lives, rng, permutations=199, resamples=99)
    return verdicts.verdict(found, verdicts.times(label, lives, rng), 0, lives, CONFIG.smallest)


@pytest.mark.parametrize("seed", range(3))
def test_events_of_one_world_are_not_behaviour(seed: int) -> None:
    """Eight ticks of one world: its agents share the drift of their world, and are no witnesses of their own."""
    lives, features = in_worlds(seed)
    tick, world = lives.tick_N, lives.world_E[lives.life_N]
    label = np.where((world == 3) & (tick >= 80) & (tick < 160), 0, NOISE)
    assert verdict_of(lives, features, label)[0] != "behaviour"
    alone = Lives(lives.life_N, lives.agent_E, lives.tick_N, lives.share_N)
    assert verdict_of(alone, features, label)[0] == "behaviour"  # as lives, so that there is something to find


def test_behaviour_in_all_worlds_is_found_with_worlds_as_units_and_a_world_is_called_one() -> None:
    lives, features = in_worlds(0)
    fights = switching(np.random.default_rng(0), lives.life_N, 4, 0.7) == 0
    features[:, 1] += 2.0 * fights
    assert verdict_of(lives, features, np.where(fights, 0, NOISE))[0] == "behaviour"
    one = lives.world_E[lives.life_N] == 3
    kind, why = verdict_of(lives, features, np.where(one, 0, NOISE))
    assert kind == "identity" and "which world it is" in why
    kind, why = verdict_of(lives, features, np.where(one & fights, 0, NOISE))
    assert kind == "undecided" and "of one world" in why


def test_the_floor_of_time_knows_that_lives_of_a_world_share_its_events() -> None:
    """Twelve ticks of every world, drawn at random: time tells nothing of another world.  Against lives rotated one by
    one a third of such clusters followed it."""
    rng = np.random.default_rng(0)
    worlds, agents, rows = 12, 8, 60
    life_N, tick_N = np.repeat(np.arange(worlds * agents), rows), np.tile(np.arange(float(rows)), worlds * agents)
    lives = Lives(life_N, np.arange(worlds * agents), tick_N, (tick_N + 0.5) / rows, np.arange(worlds * agents) // 8)
    since_N = tick_N - rng.integers(rows - 12, size=worlds)[life_N // agents]
    t = verdicts.times(np.where((since_N >= 0) & (since_N < 12), 0, NOISE), lives, rng)
    floor = np.quantile(t.auc_floor[:, 0], 0.975)
    assert floor > 0.63, "six worlds are held out, and not half of 96 lives"
    assert t.auc[0] < floor


def test_what_lives_settle_is_not_said_of_their_worlds() -> None:
    """Labels constant a life, two lives a world: worlds settled more than half in .58 of such data by chance."""
    of_worlds = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        life, tick = np.repeat(np.arange(10), 30), np.tile(np.arange(30.0), 10)
        lives = Lives(life, np.arange(10), tick, (tick + 0.5) / 30, np.repeat(np.arange(5), 2))
        t = verdicts.times(rng.integers(2, size=10)[life], lives, rng)
        of_worlds += bool(((t.world_share >= 0.5) & (t.world_share > t.world_share_most)).any())
    assert of_worlds <= 2


def test_exchanged_worlds_stay_whole() -> None:
    lives, _ = in_worlds(0)
    rows = verdicts.dealt_rows(lives, np.random.default_rng(0), rotate=False)
    world = lives.world_E[lives.life_N]
    assert (lives.tick_N[rows] == lives.tick_N).all()
    assert [len(np.unique(world[rows][world == w])) for w in range(16)] == [1] * 16
    assert len(np.unique(rows)) == len(rows) and (world[rows] != world).mean() > 0.7


def test_features_that_never_change_are_said_to_tell_nothing() -> None:
    lives, features = in_worlds(0)
    blind = switching(np.random.default_rng(0), lives.life_N, 4, 0.7)
    kind, why = verdict_of(lives, np.ones_like(features), blind)
    assert kind == "undecided" and "no feature differs" in why


def test_lives_of_one_agent_are_one_agent() -> None:
    """Thirty lives of fifteen agents; a cluster of one agent's two lives would else be of two agents."""
    records, _ = planted("noise", 0)
    of = records.lives
    lives = Lives(of.life_N, np.arange(LIVES) % 15, of.tick_N, of.share_N)
    label = np.where(lives.agent_E[of.life_N] == 3, 0, NOISE)
    found = verdicts.times(label, lives, np.random.default_rng(0))
    assert found.agents[0] == pytest.approx(1)


def test_place_is_not_behaviour() -> None:
    records, _ = planted("noise", 0)
    rng = np.random.default_rng(0)
    there = switching(rng, records.lives.life_N, 2, 0.8) == 0
    place = 60 + 20 * there[:, None] + 10 * rng.standard_normal((len(there), 3))
    row = judged(Records(**{**vars(records), "place_N3": place}), np.where(there, 0, 1)).tables["clusters"][0]
    assert row["verdict"] == "place" and "row +" in row["why"]


def test_a_phase_says_what_place_is_left() -> None:
    """A cluster of late ticks in which row is higher: phase, by the order of rules, but something is left."""
    records, _ = planted("noise", 0)
    rng = np.random.default_rng(0)
    there = (records.lives.tick_N > 300) & (switching(rng, records.lives.life_N, 2, 0.8) == 0)
    place = 60 + 20 * there[:, None] + 10 * rng.standard_normal((len(there), 3))
    row = judged(Records(**{**vars(records), "place_N3": place}), np.where(there, 0, 1)).tables["clusters"][0]
    assert row["verdict"] == "phase" and "there is " in row["why"] and "row +" in row["why"]


@pytest.mark.parametrize("lives", [6, 29])
def test_too_few_are_undecided(lives: int) -> None:
    """Few lives say nothing; a handful of rows in no order say nothing either."""
    records, truth = planted("behaviour", 0, lives=lives)
    label = truth
    if lives == 29:
        rng = np.random.default_rng(0)
        label = np.full(len(records), NOISE)
        label[rng.permutation(len(records))[:6]] = 0
    result = judged(records, label)
    assert set(kinds(result)) == {"undecided"} and result.notes["verdict"] == "undecided"
    said = {6: "6 lives are too few", 29: "could be missed (29 lives)"}[lives]
    assert said in result.tables["clusters"][0]["why"]


def test_the_whole_is_what_most_rows_are() -> None:
    assert verdicts.overall(["phase", "noise", "noise"], np.array([50, 20, 10])) == (
        "phase", {"phase": 0.625, "noise": 0.375},
    )  # fmt: skip
    assert verdicts.overall(["phase", "noise", "behaviour"], np.array([40, 35, 25]))[0] == "mixed"
    assert verdicts.overall([], np.array([])) == ("no clusters", {})


# What no mean shows


def joint_world(kind: str, seed: int, lives: int = 40, rows: int = 36) -> tuple[Lives, np.ndarray, np.ndarray]:
    """(lives, five features, label) of clusters 0 and 1 whose means do not differ: the members' third feature varies
    more (variance), labels are the sign of a product of two features (interaction) or of three (three), or of one that
    turns in the middle of the game (turns).

    Features are slow, differ between lives, fall with the share of life, and one is lognormal.
    """
    rng = np.random.default_rng(seed)
    life, at, share = grid(rng, lives, rows)
    z = rng.standard_normal((len(life), 5))
    for i in np.flatnonzero(np.r_[False, life[1:] == life[:-1]]):
        z[i] = 0.6 * z[i - 1] + 0.8 * z[i]
    label = switching(rng, life, 2, 0.7)
    if kind == "variance":
        z[:, 2] *= np.where(label == 0, 2.0, 1.0)
    else:
        parts = {"interaction": z[:, 0] * z[:, 1], "three": z[:, :3].prod(1), "turns": z[:, 0] * (at - rows / 2)}
        label = (parts[kind] > 0).astype(np.int64)
    x = z + 2 * rng.standard_normal((lives, 5))[life] - 3 * share[:, None] * np.array([1, 0, 1, 0, 0])
    x[:, 4] = np.exp(x[:, 4] / 2)
    return Lives(life, np.arange(lives), at * float(EVERY), share), x, label


def verdicts_of(kind: str, seed: int) -> list[tuple[str, str]]:
    lives, x, label = joint_world(kind, seed)
    rng = np.random.default_rng(seed)
    e = verdicts.effects(x, list("abcde"), 0, label, lives, rng, permutations=49, resamples=99)
    t = verdicts.times(label, lives, rng)
    return [verdicts.verdict(e, t, c, lives, CONFIG.smallest) for c in range(2)]


@pytest.mark.parametrize("kind", ["variance", "interaction", "three", "turns"])
@pytest.mark.parametrize("seed", range(2))
def test_clusters_whose_means_do_not_differ_are_not_called_noise(kind: str, seed: int) -> None:
    for called, why in verdicts_of(kind, seed):
        assert called == ("behaviour" if kind in ("variance", "interaction") else "undecided"), why
        said = {"variance": "spread of c", "interaction": "a with b"}.get(kind, "all features together")
        assert said in why


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["variance", "interaction", "three", "turns"])
def test_forty_worlds_of_clusters_whose_means_do_not_differ(kind: str) -> None:
    called = [kind_ for seed in range(40) for kind_, _ in verdicts_of(kind, 100 + seed)]
    assert "noise" not in called


def test_spreads_and_pairs_are_those_of_what_is_left() -> None:
    """Normal scores: a lognormal column counts as its logarithm; two values have no spread; what is given exactly has
    neither."""
    lives, x, label = joint_world("interaction", 0)
    flag = (x[:, 1] > np.median(x[:, 1])).astype(float)
    columns = np.column_stack([x[:, 0], np.exp(x[:, 0]), flag, lives.tick_N])
    values, of = verdicts.spreads_and_pairs(columns, lives)
    assert of == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
    np.testing.assert_allclose(values[:, 0], values[:, 3])
    np.testing.assert_allclose(values[:, 0], values[:, 1])
    left = verdicts.beyond_time_and_life(verdicts.normal_scores(columns[:, :1]), lives)[:, 0]
    square = verdicts.beyond_time_and_life((left / left.std())[:, None] ** 2, lives)[:, 0]
    np.testing.assert_allclose(values[:, 0], square)
    assert np.abs(values.mean(0)).max() < 1e-9
    none, of = verdicts.spreads_and_pairs(lives.tick_N[:, None], lives)
    assert none.shape == (len(label), 0) and of == []


def test_neighbours_are_of_other_worlds() -> None:
    """All rows of a life alike and in one cluster: neighbours in it there are, but none of another life."""
    lives, x, _ = joint_world("variance", 0)
    unlike = x + 1e6 * lives.life_N[:, None]  # what life gives exactly is taken out
    label = lives.life_N % 2
    near = verdicts.neighbours(unlike, label, 2, lives, np.random.default_rng(0), 49)
    # Nothing but time is left, in which many rows tie: which of them are nearest is a matter of rounding.
    assert near.share == pytest.approx(0.5, abs=0.1) and near.q.min() > 0.05
    high = (verdicts.beyond_time_and_life(x[:, :1], lives)[:, 0] > 0).astype(int)  # of its own life and time
    own = verdicts.neighbours(x, high, 2, lives, np.random.default_rng(0), 49)
    assert (own.share > own.chance + 0.05).all() and own.q.max() < 0.01


# Effect sizes


def test_effect_sizes_are_those_that_were_planted() -> None:
    """A mixture of Gaussian states of known distance: d of every cluster, all at once and one by one."""
    rng = np.random.default_rng(0)
    life, _, _ = grid(rng, 60)
    state = rng.integers(3, size=len(life))  # independent rows, so that the error is the textbook's
    planted_d = np.array([1.5, 0.0, -0.5])
    x = rng.standard_normal((len(life), 1)) + planted_d[state][:, None]
    mean = np.array([planted_d.sum() - d for d in planted_d]) / 2  # of the other two
    spread = np.sqrt([(2 * (1 + np.var(np.delete(planted_d, c))) + 1) / 3 for c in range(3)])
    d = verdicts.group_d(x - x.mean(0), state, 3)[:, 0]
    true = (planted_d - mean) / spread
    error = np.sqrt(3 / len(life) + 1.5 / len(life) + true**2 / (2 * len(life)))  # of d (Hedges and Olkin 1985)
    assert (np.abs(d - true) < 3 * error).all() and (np.abs(d) > 5 * error).all()
    low, high, reach = verdicts.d_interval(x - x.mean(0), state, life, 3, rng, 2000)
    assert (reach < np.maximum(np.abs(low), np.abs(high))).all() and (reach > np.abs(d)[:, None]).all()
    for c in range(3):
        np.testing.assert_allclose(d[c], cohens_d(x, state == c)[0], rtol=1e-9)
        _, other_low, other_high = cohens_d_interval(x, state == c, life, rng=rng)
        np.testing.assert_allclose([low[c, 0], high[c, 0]], [other_low[0], other_high[0]], atol=0.02)


def test_what_time_and_life_explain_is_gone() -> None:
    records, _ = planted("phase", 0)
    lives = records.lives
    smooth = np.stack([lives.tick_N, lives.tick_N // 50, 5.0 * (lives.life_N % 7), lives.share_N + lives.life_N], 1)
    left = verdicts.beyond_time_and_life(smooth, lives)
    assert (left.var(0) < 0.03 * smooth.var(0)).all() and left[:, [0, 2, 3]].var(0).max() < 1e-12
    noise = np.random.default_rng(0).standard_normal((len(smooth), 1))
    assert verdicts.beyond_time_and_life(noise, lives).var() > 0.88  # but for the degrees of freedom


def test_a_feature_of_time_alone_passes_no_test_beyond_time() -> None:
    records, _ = planted("phase", 3)
    x = np.stack([records.features_NF[:, 2], records.lives.tick_N], 1)
    label = (records.lives.tick_N > 300).astype(int)
    found = verdicts.effects(
        x, ["level", "tick"], 0, label, records.lives, np.random.default_rng(0), permutations=199, resamples=99
    )
    assert (np.abs(found.d) > 2).all() and (found.q < 0.05).all()
    assert np.abs(found.beyond.d[:, 0]).max() < 0.3 and found.beyond.q[:, 0].min() > 0.05
    assert np.isnan(found.beyond.d[:, 1]).all()
    assert found.table()[1]["feature"] == "tick" and found.table()[1]["beyond"] is None


def test_an_effect_that_is_only_rounding_is_no_effect() -> None:
    """Clusters of whole lives: their means beyond life are 0, whoever exchanges labels, but for rounding errors."""
    rng = np.random.default_rng(0)
    life, at = np.repeat(np.arange(LIVES), ROWS), np.tile(np.arange(ROWS), LIVES)
    lives = Lives(life, np.arange(LIVES), at * 10.0, (at + 0.5) / ROWS)
    x = rng.standard_normal((len(life), 8)) + rng.standard_normal((LIVES, 8))[life]
    found = verdicts.effects(x, list("abcdefgh"), 0, life % 4, lives, rng, permutations=199, resamples=20)
    assert np.abs(found.beyond.d).max() < 1e-12 and (found.beyond.p == 1).all() and (found.beyond.q == 1).all()


def test_labels_that_repeat_an_effect_reach_it_as_they_are_kept() -> None:
    """In float32, of which the effect itself has twice the digits."""
    d, null = np.array([[0.3, 0.7]]), np.full((99, 1, 2), [0.3, 0.7], np.float32)
    assert (verdicts._p(d, null) == 1).all()
    null[::2] = 0
    assert (verdicts._p(d, null) == 0.5).all()


def test_features_that_all_lives_share_tick_by_tick_are_time() -> None:
    """Food falls and is refilled in lockstep, a cluster is six ticks of most lives: bins of time are too coarse."""
    records, _ = planted("noise", 0)
    lives, rng = records.lives, np.random.default_rng(0)
    tick = lives.tick_N
    label = np.where((tick >= 240) & (tick < 300) & (rng.random(len(tick)) < 0.8), 0, NOISE)
    records.features_NF[:, 0] = -(tick % 90) / 10 + rng.standard_normal(len(tick))
    records.features_NF[:, 4] = tick // 100  # nothing is left of it
    result = judged(records, label)
    assert kinds(result) == ["phase"]
    left = {row["feature"]: row["beyond"] for row in result.tables["effects"]}
    assert abs(left["food"]) < 0.3 and left["gold"] is None


def test_false_alarms_stay_at_their_level() -> None:
    """Labels in runs and autocorrelated features that know nothing of each other, both bound to time and life."""
    hits, far, joint, most, near = [], [], [], [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        life, at, share = grid(rng)
        lives = Lives(life, np.arange(LIVES), at * 10.0, share)
        walk = np.zeros((len(life), 4))
        for i in range(len(life)):
            walk[i] = rng.standard_normal(4) + (0.9 * walk[i - 1] if i and life[i] == life[i - 1] else 0)
        x = walk + at[:, None] / 10 + rng.standard_normal((LIVES, 4))[life]
        x[:, 3] = x[:, 3] > np.quantile(x[:, 3], 0.97)  # rare events
        label = np.where(switching(rng, life, 3, 0.8) * at < 60, 0, 1)
        found = verdicts.effects(x, list("abcd"), 0, label, lives, rng, permutations=49, resamples=20)
        hits.append(found.beyond.p[0] <= 0.05)
        far.append(found.beyond.p[0] <= 0.005)  # beyond what 49 draws can say
        joint.append(found.joint.p[0] <= 0.05)
        most.append(np.nanmin(found.joint.q) <= 0.05)
        near.append(found.near.p[0] <= 0.05)
    assert np.mean(hits) < 0.12  # 80 tests at 0.05; three standard deviations above
    assert np.mean(far) < 0.02
    assert np.mean(joint) < 0.1 and np.mean(most) <= 0.25 and np.mean(near) <= 0.25  # 200, 20 and 20 tests


def test_one_effect_among_many_tests_is_found_with_few_permutations() -> None:
    """One cluster of twelve, one feature of six: 99 draws alone give q = 0.7 at best."""
    rng = np.random.default_rng(0)
    life, at, share = grid(rng)
    lives = Lives(life, np.arange(LIVES), at * 10.0, share)
    label = switching(rng, life, 12, 0.7)
    x = rng.standard_normal((len(life), 6))
    x[:, 2] += 2 * (label == 5)
    found = verdicts.effects(x, list("abcdef"), 0, label, lives, rng, permutations=99, resamples=20)
    assert found.beyond.q[5, 2] < 0.01 and (np.delete(found.beyond.q.ravel(), 5 * 6 + 2) > 0.05).mean() > 0.95


# Floors


def test_dealt_labels_keep_runs_and_time_and_lose_who() -> None:
    rng = np.random.default_rng(0)
    life, at, share = grid(rng)
    lives = Lives(life, np.arange(LIVES), at * 10.0, share)
    late = (share > 0.5).astype(int)
    rows = verdicts.dealt_rows(lives, rng, rotate=False)
    assert (late[rows] == late).mean() > 0.95  # the same tick
    assert (life[rows] != life).mean() > 0.8
    lengths = np.bincount(life)
    assert (
        np.abs(lengths[life[rows]] - lengths[life]).mean()
        < 0.5 * np.abs(lengths[rng.permutation(life)] - lengths[life]).mean()
    )
    rotated = verdicts.dealt_rows(lives, rng, rotate=True)
    assert (late[rotated] == late).mean() < 0.75
    runs = [len(stretches(late[r], life)[0]) for r in (np.arange(len(life)), rows, rotated)]
    assert runs[0] == runs[1] == 2 * LIVES and runs[2] <= 3.2 * LIVES
    own = verdicts.rotated_rows(lives.life_N, rng)
    assert (life[own] == life).all() and (np.sort(own) == np.arange(len(life))).all()


def test_shares_of_time_and_life_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    life, at, share = grid(rng)
    lives = Lives(life, np.arange(LIVES), at * 10.0, share)
    member = rng.random(len(life)) < 0.2 + 0.6 * (share > 0.5)
    bins = time_bins(lives.tick_N)
    counts = verdicts.counts(np.where(member, 0, NOISE), bins, 1)
    assert eta_squared(counts, np.bincount(bins, minlength=TIME_BINS))[0] == pytest.approx(
        time_eta2(member, lives.tick_N)
    )
    blind = rng.integers(4, size=len(life))
    assert np.abs(verdicts.life_share(blind, 4, lives)).max() < 0.05
    assert verdicts.life_share(life % 4, 4, lives).min() > 0.95
    late_and_even = np.where((at >= 24) & (life % 2 == 0), 0, NOISE)  # a third time, a third life, a third both
    assert verdicts.life_share(late_and_even, 1, lives)[0] == pytest.approx(1 / 3, abs=0.08)
    half = np.arange(LIVES) % 2 == 0
    assert verdicts.held_out_auc(blind, bins, 4, life, half) == pytest.approx(0.5, abs=0.08)
    assert verdicts.held_out_auc((at > 30).astype(int), bins, 2, life, half).min() > 0.95
    assert verdicts.held_out_auc(np.where(life == 0, 0, NOISE), bins, 1, life, half)[0] == 0.5  # seen in one half only


def test_transitions_against_shuffled_runs() -> None:
    rng = np.random.default_rng(0)
    life, _, _ = grid(rng)
    state = switching(rng, life, 4, 0.8)
    rate, floor = transitions(state, life, rng=rng)
    assert rate.low < 0.2 * 3 / 4 < rate.high and rate.n == LIVES
    n_EL = np.zeros((LIVES, 4))
    np.add.at(n_EL, (life, state), 1)
    total_E = n_EL.sum(1)
    chance_E = 1 - (n_EL * (n_EL - 1)).sum(1) / (total_E * (total_E - 1))
    assert floor.mean() == pytest.approx(np.average(chance_E, weights=total_E - 1), abs=0.01)
    alternating = np.where(np.arange(len(life)) % 2, NOISE, 0)
    assert np.isnan(transitions(alternating, life, rng=rng)[0].value)


def test_rolling_means_look_back_only() -> None:
    x = np.random.default_rng(0).standard_normal((50, 2))
    found = rolling_mean(x, 10)
    np.testing.assert_allclose(found[30], x[21:31].mean(0))
    np.testing.assert_allclose(found[3], x[:4].mean(0))
    np.testing.assert_allclose(rolling_mean(x, 1), x)
    np.testing.assert_allclose(rolling_mean(x[:4], 10)[3], x[:4].mean(0))


# Components and features


def test_one_feature_has_no_pairs_to_draw(tmp_path: Path) -> None:
    records, _ = planted("behaviour", 0)
    one = replace(
        records, features_NF=records.features_NF[:, :1], rolling_NF=records.rolling_NF[:, :1], names=NAMES[:1]
    )
    drawn = draw(analyse(one, replace(CONFIG, metric_only=True)), tmp_path)
    assert "pca_pairs.png" in drawn and "feature_scatter.png" not in drawn


def test_components_and_features_agree_with_their_definitions() -> None:
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    life, _, _ = grid(rng)
    pc = rng.standard_normal((len(life), 3)) * [3, 2, 1]
    features = np.stack([pc[:, 0] + rng.standard_normal(len(life)), pc @ [0.2, 0.3, 1], np.full(len(life), 7.0)], 1)
    tables = relations(pc, features, ["a", "b", "c"], life, rng=rng, resamples=200)
    r = {(row["component"], row["feature"]): row for row in tables["pca_features"]}
    assert r[0, "a"]["r"] == pytest.approx(np.corrcoef(pc[:, 0], features[:, 0])[0, 1], abs=1e-5)
    assert r[0, "a"]["low"] < r[0, "a"]["r"] < r[0, "a"]["high"] and r[0, "c"]["r"] is None
    r2 = {(row["kind"], row["name"]): row for row in tables["pca_r2"]}
    whole = LinearRegression().fit(pc, features[:, 0]).score(pc, features[:, 0])
    assert r2["feature", "a"]["r2"] == pytest.approx(whole, abs=0.01) and r2["feature", "a"]["n"] == LIVES
    assert r2["feature", "b"]["r2"] == pytest.approx(1) and r2["feature", "c"]["r2"] is None
    blind = relations(rng.standard_normal(pc.shape), features, ["a", "b", "c"], life, rng=rng, resamples=50)
    assert abs(blind["pca_r2"][0]["r2"]) < 0.02


def test_features_that_worlds_share_are_read_in_worlds_not_fitted_on() -> None:
    """Of 12 worlds of 6 lives: where a world can be told from the state, a number that each world drew at random was
    read in lives that were held out, their world not."""
    rng = np.random.default_rng(0)
    life = np.repeat(np.arange(72), 10)
    world_E = rng.permutation(np.arange(72) % 12)
    told, drawn = np.eye(12), rng.standard_normal(12)
    pc = told[world_E[life]] + 0.01 * rng.standard_normal((len(life), 12))
    by = {name: {row["name"]: row for row in relations(
              pc, drawn[world_E[life], None], ["drawn"], unit, rng=np.random.default_rng(1), resamples=99
          )["pca_r2"]}["drawn"] for name, unit in (("lives", life), ("worlds", world_E[life]))}  # fmt: skip
    assert by["lives"]["r2"] > 0.9 and by["worlds"]["r2"] < 0 and by["worlds"]["n"] == 12


def test_worlds_are_the_units_of_shares_where_there_are_enough() -> None:
    records, _ = planted("behaviour", 0)
    worlds = np.arange(len(records.lives.agent_E)) % 12
    result = analyse(replace(records, lives=replace(records.lives, world_E=worlds), worlds=12), CONFIG)
    assert result.notes["unit"].startswith("a world (")
    assert {result.scalars[name]["n"] for name in ("noise_share", "transition_rate")} == {12}
    assert {row["n"] for row in result.tables["pca_r2"]} == {12}


def test_figures_are_of_all_components_that_are_clustered(tmp_path: Path) -> None:
    """Pairs (0, 1), (2, 3) ... of all; a feature along the three components that it goes with most; rolling means."""
    records, truth = planted("behaviour", 0)
    result = analyse(records, replace(CONFIG, pre_cluster_dims=7, metric_only=True))
    assert result.arrays["pca"].shape[1] == len(result.arrays["pca_explained"]) == 7
    assert {row["component"] for row in result.tables["pca_features"]} == set(range(7))
    pairs = [axis.get_xlabel()[:11] + axis.get_ylabel()[:11] for axis in figures._draw_pca_pairs(result).axes]
    assert pairs[:4] == [f"component {i}component {min(i + 1, 6)}" for i in (0, 2, 4, 6)]
    result.arrays |= {
        "label": np.where(np.arange(len(truth)) % 9 == 0, NOISE, truth),
        "umap": result.arrays["pca"][:, :2],
    }
    profiles = figures._draw_profiles(result)
    r = {(row["component"], row["feature"]): abs(row["r"]) for row in result.tables["pca_features"]}
    for f, name in enumerate(NAMES):
        best = sorted(range(7), key=lambda i, name=name: -r[i, name])[:3]  # type: ignore[misc]
        first = next(axis for axis in profiles.axes if axis.get_ylabel() == name)
        panels = [a for a in profiles.axes if a.get_position().y0 == first.get_position().y0][3 * (f // 3) :][:3]
        assert [int(a.get_title().split()[1]) for a in panels] == best
        assert len({a.get_xlim() for a in panels}) == len({a.get_ylim() for a in panels}) == 1
    names = [text.get_text() for text in profiles.legends[0].get_texts()]
    assert names[0].startswith("cluster 0 (") and names[-1].startswith("in no cluster (")
    scatter = figures._draw_feature_scatter(result)
    assert "means over 10 ticks" in scatter.get_suptitle() and scatter.legends
    metric = figures._draw_metric_map(result)
    assert {axis.get_ylabel() for axis in metric.axes} >= {f"mean of {name}" for name in NAMES}


def test_low_values_are_as_opaque_on_the_map_as_high_ones() -> None:
    records, truth = planted("behaviour", 0)
    result = analyse(records, replace(CONFIG, metric_only=True))
    health = np.full(len(records), 50.0)
    health[:40], health[40:80] = 0, 100
    result.arrays |= {"umap": result.arrays["pca"][:, :2], "features_rolling": np.tile(health[:, None], len(NAMES))}
    axis = figures._draw_metric_map(result).axes[0]
    alpha = axis.collections[1].get_facecolors()[:, 3]
    assert (alpha > 0.99).sum() == 80 and (alpha < 0.1).sum() == len(records) - 80


def test_moments_are_the_middle_of_a_cluster_each_of_another_life() -> None:
    records, truth = planted("behaviour", 0)
    records = replace(records, about={0: {"world": 3, "first_tick": 5, "agent": 7}})
    x = np.random.default_rng(0).normal(size=(len(records), 2))
    label = np.where(np.arange(len(truth)) % 2, 0, NOISE)
    sure = np.where(np.arange(len(truth)) % 4 == 1, 1.0, 0.2)
    rows = moments.moments(x, label, sure, records, 5)
    assert len(rows) == 5 == len({row["episode"] for row in rows}) and {row["cluster"] for row in rows} == {0}
    place = {(int(e), int(t)): n for n, (e, t) in enumerate(records.index_N2)}
    found = [place[row["episode"], row["t"]] for row in rows]
    assert (sure[found] == 1).all()
    away = np.linalg.norm(x - np.median(x[label == 0], axis=0), axis=1)
    candidates = np.flatnonzero((label == 0) & (sure == 1))
    assert found[0] == candidates[np.argmin(away[candidates])]
    assert (np.diff(away[found]) >= 0).all()
    mine = [row for row in moments.moments(x, label, sure, records, 99) if row["episode"] == 0]
    assert mine[0]["world"] == 3 and mine[0]["tick"] == mine[0]["t"] + 5 and mine[0]["agent"] == 7
    assert moments._moment(mine[0], [3]).startswith(
        f"<a href='replay_3.html#tick={mine[0]['tick']}&amp;agent=7'>world 3"
    )
    assert moments._moment(mine[0], []) == f"world 3, agent 7, tick {mine[0]['tick']}"


def test_rows_that_map_and_clusters_are_made_from_lie_evenly_along_the_lives() -> None:
    assert evenly(100, 0) is evenly(100, 100) is None
    life = np.repeat(np.arange(10), 40)
    chosen = evenly(len(life), 100)
    assert chosen is not None
    assert np.array_equal(np.bincount(life[chosen]), np.full(10, 10)) and np.ptp(np.diff(chosen)) == 0


@pytest.mark.parametrize("before", [True, False])
def test_rows_placed_afterwards_are_told_from_those_of_other_clusters(before: bool, tmp_path: Path) -> None:
    records, state = planted("behaviour", 0)
    config = replace(CONFIG, fit_rows=len(records) // 3, cluster_before_umap=before)
    result = analyse(records, config)
    fitted = result.arrays["fitted"]
    placed = np.setdiff1d(np.arange(len(records)), fitted)
    assert len(fitted) == config.fit_rows and np.isfinite(result.arrays["umap"]).all()
    assert adjusted_rand_score(state[placed], result.arrays["label"][placed]) > 0.9
    for name in ("placed_agreement", "remade_agreement"):
        scalar = result.scalars[name]
        assert scalar["value"] > 0.9 and scalar["n"] == LIVES // 2
        low, high = scalar["interval"]
        assert low <= scalar["value"] <= high
    assert f"made from {config.fit_rows} of {len(records):,} records, the others placed" in summary(result, tmp_path)
    assert len(page(result)) > 1000  # the tree is of the rows that were clustered


def test_what_placing_costs_shows_where_clusters_are_luck() -> None:
    records, _ = planted("nothing", 0)
    x = np.random.default_rng(0).normal(size=(len(records), 3))
    label = np.random.default_rng(1).integers(0, 3, len(records))
    fitted = evenly(len(records), len(records) // 2)
    assert fitted is not None
    found = placing(x, label, records.lives.life_N, fitted, CONFIG, np.random.default_rng(0))
    assert abs(found.placed.value) < 0.1
    with pytest.raises(UserError, match="cannot be measured on 3 lives; at least 4"):
        placing(x[:90], label[:90], np.arange(90) // 30, np.arange(60) + 15, CONFIG, np.random.default_rng(0))


def test_the_interval_of_what_placing_costs_holds_no_more_than_an_index_can_be() -> None:
    life, row = np.repeat(np.arange(8), 50), np.tile(np.arange(50), 8)
    label, again = ((row < 5) & kept for kept in (life % 2 == 0, (life < 2) | (life > 5)))
    found = cost(label, life, lambda rows: again, np.random.default_rng(0))
    assert found.placed.value == pytest.approx(0.4537, abs=1e-3) and (found.placed.low, found.placed.high) == (-0.5, 1)
