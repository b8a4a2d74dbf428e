"""Run lengths of codes beside those of data without clusters that get their codes in the same way."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.semantic import SemanticOptions
from analysis.semantics import hover
from analysis.semantics.__main__ import SemanticsConfig, check_states
from analysis.semantics.films import FilmOptions, _captioned, write_films
from analysis.semantics.quality import neighbours, run_lengths, use_of_codes
from analysis.semantics.states import States
from core.artefacts import Result, new_run, write_json
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter

EPISODES, STEPS, FEATURES = 60, 50, 12
ANGLE = np.arange(6) * np.pi / 3
CODEBOOK_C2 = 1.5 * np.stack([np.cos(ANGLE), np.sin(ANGLE)], 1)


def code_of(h_NF: np.ndarray) -> np.ndarray:
    """The nearest code to the first two features, which are the plane."""
    codes: np.ndarray = ((h_NF[:, None, :2] - CODEBOOK_C2) ** 2).sum(-1).argmin(1)
    return codes


def cloud(rng: np.random.Generator) -> np.ndarray:
    """One Gaussian [E, T, F], VAR(1); the plane is the slowest of it, as a learned one may be."""
    rho_F = np.linspace(0.9, 0.2, FEATURES)
    x_ETF = rng.standard_normal((EPISODES, STEPS, FEATURES))
    for t in range(1, STEPS):
        x_ETF[:, t] = rho_F * x_ETF[:, t - 1] + np.sqrt(1 - rho_F**2) * x_ETF[:, t]
    return x_ETF


def clusters(rng: np.random.Generator) -> np.ndarray:
    """The same, but in the plane states stay about one code, and leave it for another in a tenth of the steps."""
    x_ETF = cloud(rng)
    code_ET = rng.integers(6, size=(EPISODES, STEPS))
    for t in range(1, STEPS):
        code_ET[:, t] = np.where(rng.random(EPISODES) < 0.9, code_ET[:, t - 1], code_ET[:, t])
    x_ETF[..., :2] = CODEBOOK_C2[code_ET] + 0.2 * rng.standard_normal((EPISODES, STEPS, 2))
    return x_ETF


def compared(x_ETF: np.ndarray, code_of: Callable[[np.ndarray], np.ndarray] = code_of) -> Result:
    h_NF = x_ETF.reshape(-1, FEATURES)
    index_N2 = np.stack([np.arange(len(h_NF)) // STEPS, np.arange(len(h_NF)) % STEPS], 1)
    code_N = code_of(h_NF)
    states = States(h_NF, h_NF[:, :2], code_N, h_NF[:, 0], code_N, index_N2, index_N2[:, 0], len(CODEBOOK_C2))
    result = Result()
    run_lengths(states, code_of, code_N, 39, result, np.random.default_rng(0))
    return result


def test_neighbours_are_as_many_as_the_kernels_of_the_training_reach() -> None:
    """Features of groups of five, far apart; a plane in which all lie together."""
    h_NF = np.repeat(1e4 * np.arange(12.0), 5)[:, None] + np.zeros(3)
    index_N2 = np.stack([np.arange(60) // 10, np.arange(60) % 10], 1)
    code_N, result = np.zeros(60, np.int64), Result()
    states = States(h_NF, 1e-3 * h_NF[:, :2] / 1e4, code_N, h_NF[:, 0], code_N, index_N2, index_N2[:, 0], 2)
    neighbours(states, SemanticOptions(), 0, result)
    features, plane = result.scalars["neighbours_features"], result.scalars["neighbours_plane"]
    assert features["value"] == pytest.approx(4, rel=1e-6) and plane["value"] == pytest.approx(59, rel=1e-3)
    assert features["unit"] == "states, of 59" and features["n"] == 6 and result.notes["neighbours_of"] == 59


def test_the_interval_of_perplexity_ends_at_the_number_of_codes() -> None:
    """Codes that are used alike over all, but not in each of a few episodes; and one that is used nearly alone."""
    for codes, low, high in (("012345012344", None, 6), ("222222222223", 1, None)):
        code_N = np.array([int(c) for c in codes])
        index_N2 = np.stack([np.arange(12) // 3, np.arange(12) % 3], 1)
        h_NF, result = np.zeros((12, 2)), Result()
        states = States(h_NF, h_NF, code_N, h_NF[:, 0], code_N, index_N2, index_N2[:, 0], 6)
        use_of_codes(states, result, np.random.default_rng(0))
        found = result.scalars["perplexity"]
        assert low in (None, found["interval"][0]) and high in (None, found["interval"][1])
        assert 1 <= found["interval"][0] < found["value"] <= found["interval"][1] <= 6


@pytest.mark.parametrize("seed", range(3))
def test_codes_of_one_cloud_last_no_longer_than_those_of_surrogates(seed: int) -> None:
    """Also where the plane is slower than the features: k-means of all of them would change more often."""
    result = compared(cloud(np.random.default_rng(seed)))
    assert result.notes["runs_are"] == "not longer than those of data without clusters"
    low, high = result.scalars["run_length_surrogates"]["interval"]
    assert low <= result.scalars["run_length"]["value"] <= high


def test_codes_about_which_states_stay_last_longer() -> None:
    result = compared(clusters(np.random.default_rng(0)))
    assert result.notes["runs_are"] == "longer than those of data without clusters"
    assert result.scalars["run_length"]["value"] > 1.5 * result.scalars["run_length_surrogates"]["value"]


def test_surrogates_are_where_the_features_are() -> None:
    """Off the origin, with a feature that never changes and one that is another's double."""
    x_ETF = cloud(np.random.default_rng(0)) + 5.0
    x_ETF[..., -1], x_ETF[..., -2] = 7.0, 2 * x_ETF[..., 2]
    shown: list[np.ndarray] = []

    def keep(h_MF: np.ndarray) -> np.ndarray:
        shown.append(h_MF)
        return code_of(h_MF - 5)

    compared(x_ETF, keep)
    h_NF, every = shown[0], np.concatenate(shown[1:])
    assert len(shown) == 40
    np.testing.assert_allclose(every.mean(0), h_NF.mean(0), atol=0.15)
    np.testing.assert_allclose(np.cov(every, rowvar=False), np.cov(h_NF, rowvar=False), atol=0.3)
    np.testing.assert_allclose(every[:, -1], 7)
    follows = [(x[1:] * x[:-1]).mean(0) for x in (every - every.mean(0), h_NF - h_NF.mean(0))]
    np.testing.assert_allclose(*follows, atol=0.3)


def test_a_long_name_leaves_the_step_its_room_in_a_film() -> None:
    frame = np.zeros((64, 64, 3), np.uint8)
    one, other = (
        _captioned(frame, "a ledge just above, something to pass ahead and a drop below it", t) for t in (7, 8)
    )
    assert (one != other).any() and (one[:18, -4:] == 255).all()  # a margin, as on the left
    assert (one[18:] == other[18:]).all()


@pytest.mark.parametrize(("shape", "seen"), [((32, 64, 3), (128, 256)), ((64, 32, 1), (256 - 18, 128))])
def test_a_frame_that_is_no_square_keeps_its_shape_in_a_film(
    shape: tuple[int, int, int], seen: tuple[int, int]
) -> None:
    below = (_captioned(np.zeros(shape, np.uint8), "", 0)[18:] == 0).all(-1)  # the caption's strip is above
    assert (below.any(1).sum(), below.any(0).sum()) == seen


def test_the_page_of_a_large_codebook_names_every_code_by_its_own_name() -> None:
    """Codes were bytes: the states of code 256 + c had the name and the colour of code c."""
    code_N, plane_N2 = np.array([3, 259, 511]), np.eye(3)[:, :2]
    states = States(plane_N2, plane_N2, code_N, plane_N2[:, 0], code_N, np.eye(3, 2, dtype=np.int64), code_N, 512)
    frames = np.zeros((3, 8, 8, 3), np.uint8)
    names = {c: f"code {c}" for c in range(512)}
    text = hover.page(frames, states, np.arange(3), {"plane": plane_N2}, None, names, "States")
    found = re.search('<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    code = json.loads(found[1])["code"]
    assert np.frombuffer(base64.b64decode(code["base64"]), code["dtype"]).tolist() == [3, 259, 511]


def test_too_few_states_for_k_means_are_said_in_words_of_the_stage() -> None:
    """The line asked for fewer --clusters, a flag that analysis.semantics does not have."""
    code_N = np.arange(12) % 4
    plane_N2, index_N2 = np.zeros((12, 2)), np.stack([code_N, np.arange(12)], 1)
    states = States(plane_N2, plane_N2, code_N, plane_N2[:, 0], code_N, index_N2, code_N, 5)
    subject: Any = SimpleNamespace(states=states)
    with pytest.raises(UserError, match="12 states are too few .* codes with states .4., .* at least 20"):
        check_states(SemanticsConfig(), ["quality"], subject)
    assert check_states(SemanticsConfig(), ["names"], subject) == ""


def test_published_bounds_are_asked_of_whole_episodes(tmp_path: Path) -> None:
    """Of one that the recorder cut nobody knows how long it is: it passed for one of at most 200 steps."""
    spec = EnvSpec(env_id="procgen/coinrun", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
                   action_names=("a", "b"), slots=1)  # fmt: skip
    with new_run(tmp_path / "s", "test", {}) as run:
        write_json(run.path / "spec.json", spec.to_json())
        with StoreWriter(run.path) as writer:
            for cut in (False, True):
                writer.add(Episode(
                    obs={"frames": np.zeros((8, 64, 64, 3), np.uint8)}, h=np.zeros((8, 2), np.float32),
                    value=np.zeros(8, np.float32), action=np.zeros(8, np.int64), logits=np.zeros((8, 2), np.float32),
                    reward=np.full(8, 10.0, np.float32), terminated=not cut, truncated=False, truth={}, world={},
                    latent=None, meta={"cut": True} if cut else {},
                ))  # fmt: skip
    zero = np.zeros(16)
    index_N2 = np.stack([np.repeat([0, 1], 8), np.tile(np.arange(8), 2)], 1)
    states = States(np.zeros((16, 2)), np.zeros((16, 2)), zero.astype(int), zero, zero, index_N2, index_N2[:, 0], 1)
    with RolloutStore(tmp_path / "s") as store:
        films = [
            write_films(store, states, {0: "code"}, tmp_path, FilmOptions(select_returns=x), np.random.default_rng(0))
            for x in (False, True)
        ]
    assert [(row["runs"], row["runs_there"]) for (row,) in films] == [(2, 2), (1, 2)]
