"""Films of recorded episodes: what stands beside what, what is drawn at a step, and mistakes."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch

from agents import film
from analysis import hidden_states
from core.contracts import EnvSpec, UserError
from core.directions import load_basis
from core.episodes import RolloutStore
from tests.stages.conftest import run_stage


def shoot(out: Path, *argv: object) -> np.ndarray:
    """A GIF's frames, uint8 [T, height, width, 3]."""
    run_stage(film, "FilmConfig", [*map(str, argv), "--format", "gif", "--out", str(out)])
    frames: np.ndarray = iio.imread(out / "film.gif")
    return frames


def pictures(frame: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The recorded frames that a film's frame shows, [rows, columns, 64, 64, 3]."""
    cells = frame.reshape(rows, frame.shape[0] // rows, columns, film.WIDTH, 3).swapaxes(1, 2)
    return cells[:, :, film.TITLE + 2 : film.TITLE + 256 : 4, 2::4]


def close(x: np.ndarray, y: np.ndarray) -> bool:
    """But for a GIF's few colours."""
    return bool(np.abs(x.astype(int) - y).mean() < 12)


def test_every_episode_runs_to_its_end_and_then_pales(pipeline: Path, tmp_path: Path) -> None:
    store = RolloutStore(pipeline / "rollouts")
    lengths = [len(store.episode(e).h) for e in (0, 1)]
    shot = shoot(tmp_path / "film", pipeline / "rollouts", "--episodes", 0, 1, "--steps", min(lengths) + 3)
    assert len(shot) == max(min(n, min(lengths) + 4) for n in lengths)
    for e in (0, 1):
        assert close(pictures(shot[3], 1, 2)[0, e], store.episode(e).obs["frames"][3])
    shorter = int(np.argmin(lengths))
    if lengths[0] != lengths[1]:
        last = store.episode(shorter).obs["frames"][-1]
        assert close(pictures(shot[-1], 1, 2)[0, shorter], 0.4 * last + 0.6 * 255)


def test_samples_stand_above_the_windows_that_they_started_from(pipeline: Path, tmp_path: Path) -> None:
    samples, real = RolloutStore(pipeline / "samples"), RolloutStore(pipeline / "rollouts")
    shot = shoot(
        tmp_path / "film", pipeline / "samples", "--beside", pipeline / "rollouts", "--episodes", 1, 0, "--steps", 2
    )
    shown = pictures(shot[1], 2, 2)
    first = samples.manifest["facts"]["first_shown"]
    for column, sample in enumerate((1, 0)):
        episode, row = samples.meta(sample)["start"]
        assert close(shown[0, column], samples.episode(sample).obs["frames"][1])
        assert close(shown[1, column], real.episode(episode).obs["frames"][row + first + 1])
    with pytest.raises(UserError, match="started from"):
        shoot(tmp_path / "other", pipeline / "rollouts", "--beside", pipeline / "samples")


def test_the_course_of_a_direction_is_its_coordinate(pipeline: Path, tmp_path: Path) -> None:
    argv = ["--rollouts", f"{pipeline}/rollouts", "--preset", "debug", "--threads", "1", "--out", f"{tmp_path}/states"]
    run_stage(hidden_states, "HiddenStatesConfig", argv)
    store, basis = RolloutStore(pipeline / "rollouts"), load_basis(tmp_path / "states", "pca")
    config = film.FilmConfig(basis=tmp_path / "states", directions=("pca:1",))
    (direction,) = film.directions_of(config, None)
    h = store.episode(0).h
    assert direction.name == "pca:1"
    np.testing.assert_allclose(direction.along(h), basis.project(torch.from_numpy(h))[:, 1], atol=1e-5)
    shot = shoot(
        tmp_path / "film", pipeline / "rollouts", "--basis", tmp_path / "states", "--directions", "pca:1", "--steps", 2
    )
    assert shot.shape[1] > 0 and len(shot) == 3


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--episodes", "100000"], "not 100000"),
        (["--directions", "ica:0"], "needs --basis"),
        (["--fps", "0"], "--fps"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_mistakes_are_one_line(pipeline: Path, tmp_path: Path, argv: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        shoot(tmp_path / "film", pipeline / "rollouts", *argv)
    assert not (tmp_path / "film").exists()


def test_an_action_of_several_parts_is_named_part_by_part() -> None:
    one = EnvSpec(env_id="x", obs={}, action_names=("a", "b", "c"), slots=1)
    assert one.in_words(2) == "c"
    names = ("n", "s", "hold", "hit")
    two = EnvSpec(env_id="x", obs={}, action_names=names, action_parts={"move": 2, "do": 2}, slots=1)
    assert two.in_words([1, 0]) == "s, hold"
