"""Films of recorded episodes: what stands beside what, what is drawn at a step, and mistakes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import imageio_ffmpeg
import numpy as np
import pytest
import torch

from agents import camera, film
from analysis import hidden_states
from core import artefacts, config as cli
from core.contracts import EnvSpec, Field, UserError
from core.directions import load_basis
from core.episodes import Episode, RolloutStore, StoreWriter
from envs.procgen import ProcgenEnv, ProcgenOptions
from generative import record_samples
from tests.stages.conftest import run_stage

SIMULATOR = cli.ROOT / "bundles" / "coinrun-context" / "simulator"  # one of debug size ends its rollouts at once


def shoot(out: Path, *argv: object) -> np.ndarray:
    """A GIF's frames, uint8 [T, height, width, 3]."""
    run_stage(film, "FilmConfig", [*map(str, argv), "--format", "gif", "--out", str(out)])
    frames: np.ndarray = iio.imread(out / "film.gif")
    return frames


def pictures(frame: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The recorded frames that a film's frame shows, [rows, columns, 64, 64, 3]."""
    column = camera.WIDTH + camera.GAP
    padded = np.pad(frame, ((0, 0), (0, camera.GAP), (0, 0)), constant_values=255)
    cells = padded.reshape(rows, frame.shape[0] // rows, columns, column, 3).swapaxes(1, 2)
    assert (cells[..., camera.WIDTH + 4 : -4, :] > 240).all()  # a gap: neighbours do not touch
    return cells[..., : camera.WIDTH, :][:, :, camera.TITLE + 2 : camera.TITLE + 256 : 4, 2::4]


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


def recorded(path: Path, *starts: tuple[int, int], channels: int = 3) -> Path:
    """Episodes of one step each, in this order: (slot, -1 where it is not told; level, which is what their picture
    shows)."""
    about = replace(
        ProcgenEnv(ProcgenOptions(), 1).spec, obs={"frames": Field(shape=(64, 64, channels), dtype="uint8")}
    )
    with artefacts.new_run(path, "record", {"seed": 0}) as run:
        artefacts.write_json(run.path / "spec.json", about.to_json())
        with StoreWriter(run.path) as writer:
            for slot, level in starts:
                zeros = np.zeros(1, np.float32)
                writer.add(Episode(
                    obs={"frames": np.full((1, 64, 64, channels), level, np.uint8)}, h=zeros[:, None], value=zeros,
                    action=np.zeros(1, np.int64), reward=zeros, terminated=True, truncated=False,
                    meta={"seed": 0, "slot": slot} if slot >= 0 else {"imported": level},
                ))  # fmt: skip
    return path


def test_altered_episodes_stand_below_those_of_the_same_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the order in which they ended."""
    one = recorded(tmp_path / "one", (0, 10), (1, 20), (0, 11), (2, 30))
    other = recorded(tmp_path / "other", (1, 20), (2, 99), (0, 10), (0, 11), (1, 21))
    with RolloutStore(one) as store:
        config = film.FilmConfig(rollouts=one, beside=(other,))
        rows = film.parts_of(config, store, "frames", (0, 1, 2, 3))
        assert [[part.episode for part in row] for row in rows] == [[0, 1, 2], [2, 0, 3]]
        said = capsys.readouterr().err
        assert said.startswith("note: left out: 3, as which no episode of ") and said.count("\n") == 1
        with pytest.raises(UserError, match="--beside: no episode of .* record both with the same --seed"):
            film.parts_of(config, store, "frames", (3,))
        untold = recorded(tmp_path / "untold", (-1, 10), (-1, 21), (-1, 11))  # the same number is not the same start
        rows = film.parts_of(film.FilmConfig(rollouts=one, beside=(untold,)), store, "frames", (0, 1, 2))
        assert [[part.episode for part in row] for row in rows] == [[0, 2], [0, 2]]
    drawn = shoot(tmp_path / "film", one, "--beside", other)
    shown = pictures(drawn[0], 2, 3)
    assert close(shown[0], shown[1]) and [round(x) for x in shown[0].mean((1, 2, 3))] == [10, 20, 11]


def test_grey_pictures_are_filmed(tmp_path: Path) -> None:
    grey = recorded(tmp_path / "grey", (0, 10), (1, 200), channels=1)
    drawn = pictures(shoot(tmp_path / "film", grey, "--beside", grey)[0], 2, 2)
    assert close(drawn[:, 0], np.uint8(10)) and close(drawn[:, 1], np.uint8(200))
    with RolloutStore(grey) as store:  # as of a simulator whose frames are grey
        films = record_samples.Films(tmp_path, store.spec, store.spec.picture, False)
        films.add(1, [store.episode(1)])
    assert close(pictures(shown(tmp_path / "sample_00001.mp4", 1, 1)[0], 1, 1)[0, 0], np.uint8(200))


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
    assert two.in_words([1, 0]) == two.in_words(np.array([1, 0])) == "s + hold"
    uneven = replace(two, action_parts={"move": 1, "do": 3})
    assert uneven.first_P.tolist() == [0, 1] and uneven.names_of_parts == [("n",), ("s", "hold", "hit")]
    assert one.first_P.tolist() == [0] and one.names_of_parts == [("a", "b", "c")]
    with pytest.raises(ValueError, match="zip"):
        two.in_words(1)


def record(out: Path, *argv: object) -> RolloutStore:
    words = ["--simulator", SIMULATOR, "--steps", 3, "--threads", 1, "--out", out, *argv]
    run_stage(record_samples, "RecordSamplesConfig", list(map(str, words)))
    assert artefacts.verify(out) == []
    return RolloutStore(out)


def shown(path: Path, columns: int, frames: int = 4) -> np.ndarray:
    """An MP4's frames, uint8 [T, height, width, 3]."""
    decode = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-i",
        str(path),
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    raw = subprocess.run(decode, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(frames, -1, columns * (camera.WIDTH + camera.GAP) - camera.GAP, 3)


def test_a_film_of_every_sample(tmp_path: Path) -> None:
    store = record(tmp_path / "s", "--samples", 3, "--batch", 2, "--film")
    assert sorted(p.name for p in (tmp_path / "s").glob("*.mp4")) == [f"sample_0000{i}.mp4" for i in range(3)]
    for i in range(3):
        film_of_it = shown(tmp_path / "s" / f"sample_0000{i}.mp4", 1)
        drawn = pictures(film_of_it[1], 1, 1)[0, 0].astype(int)
        far = [np.abs(drawn - store.episode(j).obs["frames"][1]).mean() for j in range(3)]
        assert far[i] == min(far) < 12 < max(far)


def test_every_distinct_action_from_one_start(tmp_path: Path) -> None:
    store = record(tmp_path / "s", "--actions", "all", "--stochastic", "--batch", 4)
    tried = store.spec.distinct_actions()
    assert [store.meta(i)["action"] for i in range(len(store))] == list(tried) and len(tried) == 9  # CoinRun
    episodes = [store.episode(i) for i in range(len(store))]
    for episode, ids in zip(episodes, tried.values(), strict=True):
        assert set(episode.action.tolist()) == {ids[0]}
        # One start; the last is simulated alone, and a CPU may sum in another order then.
        np.testing.assert_allclose(episode.obs["frames"][0], episodes[0].obs["frames"][0].astype(int), rtol=0, atol=1)
    assert [p.name for p in (tmp_path / "s").glob("*.mp4")] == ["grid.mp4"]
    first = shown(tmp_path / "s" / "grid.mp4", 5)[1]
    cells = pictures(first, 2, 5)
    for i, episode in enumerate(episodes):
        assert close(cells[i // 5, i % 5], episode.obs["frames"][1])
    assert (cells[1, 4] > 240).all()  # nine in two rows of five


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four samples."""
    out = tmp_path_factory.mktemp("film") / "ends"
    record(out, "--samples", 4)
    return out


def test_latents_on_the_way_from_one_sample_to_another(ends: Path, tmp_path: Path) -> None:
    way = record(tmp_path / "way", "--between", ends, "--interpolate", 3, 1, "--samples", 5)
    latents = [way.episode(i).latent for i in range(5)]
    for i, end in ((0, 3), (-1, 1)):
        np.testing.assert_allclose(latents[i], RolloutStore(ends).episode(end).latent, rtol=1e-5, atol=1e-5)
    assert [way.meta(i)["share"] for i in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    np.testing.assert_array_equal(way.episode(0).obs["frames"], RolloutStore(ends).episode(3).obs["frames"])
    assert (tmp_path / "way" / "grid.mp4").exists()
    assert "between" in way.manifest["inputs"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--interpolate", "1", "2"], "--interpolate takes two samples of --between"),
        (["--between", "SAMPLES", "--interpolate", "1"], "--interpolate takes two samples of --between"),
        (["--between", "SAMPLES", "--interpolate", "0", "99"], "--interpolate 99: .* has samples 0 to"),
        (["--between", "SAMPLES", "--interpolate", "0", "1", "--actions", "up"], "leave out --actions"),
        (["--between", "SAMPLES", "--interpolate", "0", "1", "--samples", "1"], "--samples must be at least 2"),
        (["--between", "ROLLOUTS", "--interpolate", "0", "1"], "holds no samples of"),
        (["--actions", "all", "up"], "no action 'all'"),
    ],
)
def test_what_cannot_be_filmed_leaves_nothing(
    argv: list[str], says: str, ends: Path, pipeline: Path, tmp_path: Path
) -> None:
    places = {"SAMPLES": str(ends), "ROLLOUTS": str(pipeline / "rollouts")}
    with pytest.raises(UserError, match=says):
        record(tmp_path / "s", *(places.get(w, w) for w in argv))
    assert not (tmp_path / "s").exists()


def test_a_codec_that_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # as where it is not installed
    for argv, instead in ((["--film"], "--no-film"), (["--actions", "all"], "neither --actions all nor --interpolate")):
        with pytest.raises(UserError, match=f"MP4s need imageio-ffmpeg.* or pass {instead}"):
            record(tmp_path / "s", *argv)
    assert not (tmp_path / "s").exists()
