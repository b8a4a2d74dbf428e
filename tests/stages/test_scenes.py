"""Scenes and their curves: the stage at debug size in the real game, and the fits on curves that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.load import load_agent
from core import config as cli
from core.artefacts import Result, new_run, read_manifest
from core.contracts import UserError
from core.directions import Basis, fingerprint
from core.stats import Estimate
from envs.procgen import ProcgenEnv, ProcgenOptions
from envs.procgen_scenes import scene_of
from envs.procgen_state import state_of
from validation.scenes import __main__ as scenes
from validation.scenes.course import OUTCOMES, SceneWorld
from validation.scenes.curves import difference, fit_isotonic, fit_logistic, isotonic
from validation.scenes.starts import build_starts, stances_of
from validation.scenes.study import SceneOptions, _fits, _middle_in_words, choices_of, half_of

AGENT = Path("bundles/coinrun-context/agent")
SIMULATOR = Path("bundles/coinrun-context/simulator")
RIGHT, STAND, LEVEL = 7, 4, 700_000_000


# The agent in a scene


class Presses:
    """The bundled agent with a logit that settles its action: what becomes of it is known."""

    def __init__(self, action: int) -> None:
        self._agent, self._action = load_agent(AGENT), action
        self.spec = self._agent.spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def heads(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits, value = self._agent.heads(*args)
        return torch.nn.functional.one_hot(torch.full((len(logits),), self._action), 15).float(), value


def outcomes(name: str, values: tuple[float, ...], action: int, steps: int = 20) -> dict[float, list[str]]:
    """What comes of an agent that always does the same."""
    agent: Any = Presses(action)
    options = ProcgenOptions(**{**agent.spec.options, "start_level": 700_000_000})
    env = ProcgenEnv(options, 4, threads=1)
    starts = build_starts(
        scene_of(name), values, env, bases=2, positions=2, jitter=0.1, velocities=(0.0,), start_level=LEVEL, seed=0,
    )  # fmt: skip
    world = SceneWorld(agent, env, torch.zeros(4, steps + 1, 15), [RIGHT])
    found = {}
    for value, states in zip(values, starts.states, strict=True):
        played = world.play(states, 0, starts.scene.beyond(value))
        assert (played.took_N == (action == RIGHT)).all()
        found[value] = [OUTCOMES[i] for i in played.outcome_N]
    env.close()
    return found


def test_what_becomes_of_an_agent_is_told_from_where_it_is() -> None:
    walls = outcomes("wall_height", (0, 2), RIGHT)
    assert walls == {0: ["passed"] * 4, 2: ["stuck"] * 4}
    assert outcomes("wall_height", (0,), STAND) == {0: ["stuck"] * 4}
    assert outcomes("saw_distance", (3,), RIGHT) == {3: ["died"] * 4}
    assert outcomes("coin_distance", (2,), RIGHT) == {2: ["passed"] * 4}


def test_an_agent_that_is_made_to_stand_stands_and_remembers() -> None:
    agent = load_agent(AGENT)
    env = ProcgenEnv(ProcgenOptions(**{**agent.spec.options, "start_level": 700_000_000}), 2, threads=1)
    starts = build_starts(
        scene_of("wall_height"), (3,), env, bases=2, positions=1, jitter=0.3, velocities=(0.0,),
        start_level=700_000_000, seed=0,
    )  # fmt: skip
    world = SceneWorld(agent, env, torch.zeros(2, 2, 15), [RIGHT], frames=3)
    at_once, later = (world.play(starts.states[0], settle, 3.0) for settle in (0, 4))
    assert (
        at_once.window["frames"].shape[1] == 3
        and (at_once.window["frames"][:, 0] == at_once.window["frames"][:, 2]).all()
    )
    h, other = at_once.course.h_RTH, later.course.h_RTH
    assert h is not None and other is not None and (h[:, 0] != other[:, 0]).any()
    x = [float(state_of(s).agent["x"]) for s in starts.states[0]]
    env.restore(starts.states[0])
    for _ in range(4):
        env.step(np.full(2, STAND))
    assert [float(state_of(s).agent["x"]) for s in env.snapshot()] == x
    env.close()


def test_stances_are_drawn_once_for_all_values() -> None:
    stances = stances_of(3, 2, 0.4, (0.0, 0.2), 7)
    assert len(stances) == 12 and stances == stances_of(3, 2, 0.4, (0.0, 0.2), 7)
    assert [s.vx for s in stances[:4]] == [0.0, 0.2, 0.0, 0.2] and max(abs(s.dx) for s in stances) <= 0.4
    assert len({s.dx for s in stances}) == 12


def test_choices_are_the_distinct_actions_and_the_words() -> None:
    found = choices_of(load_agent(AGENT).spec)
    assert found["jump"] == [5, 2, 8] and found["rightwards"] and found["none"] == [4, 9, 10, 11, 12, 13, 14]


# Fits


def test_a_logistic_curve_is_found_again() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(6.0)
    middle = 2.4 + 0.3 * rng.standard_normal(40)
    for width in (0.5, -0.5):
        p_VE = 1 / (1 + np.exp(-(x[:, None] - middle) / width))
        found = fit_logistic(x, p_VE[..., None], rng)
        assert found is not None and found.middle.low < middle.mean() < found.middle.high
        assert found.middle.high - found.middle.low < 0.3 and np.sign(found.width.value) == np.sign(width)
        assert found.at(np.array([found.middle.value]))[0] == pytest.approx(0.5)


def test_where_no_logistic_curve_fits_there_is_none() -> None:
    rng = np.random.default_rng(0)
    x, ones = np.arange(4.0), np.ones((1, 5, 2))
    assert fit_logistic(x, np.repeat(ones, 4, 0) * 0.3, rng) is None  # level
    assert fit_logistic(x, ones * np.array([1.0, 1, 0, 0])[:, None, None], rng) is None  # a step


def test_where_a_curve_is_a_half_is_said_as_far_as_it_is_known() -> None:
    """By its interval: near the end of the range, of a level curve, and of one base it was said by the estimate."""
    x = np.arange(1.0, 7)

    def said(middle: float, bases: int, slope: float = 1.0) -> list[str]:
        out = []
        for seed in range(30):
            rng = np.random.default_rng(seed)
            p_VE = 1 / (1 + np.exp(-slope * (x[:, None] - middle - 0.8 * rng.standard_normal(bases))))
            found = fit_logistic(x, (rng.random((6, bases, 4)) < p_VE[..., None]).astype(float), rng)
            out.append("none" if found is None else half_of(found, 1, 6))
        return out

    assert said(3.0, 16).count("inside") >= 27
    assert said(5.9, 16).count("outside") <= 1 and said(5.9, 16).count("open") >= 20
    level = said(3.0, 16, slope=0.0)
    assert level.count("inside") + level.count("outside") <= 2
    assert set(said(3.0, 1)) <= {"open", "none"}


def test_a_curve_that_is_a_half_at_none_of_the_values_has_no_middle() -> None:
    """It was kept where the line would be one, cells before the first or behind the last value."""
    x, rng = np.arange(1.0, 7), np.random.default_rng(0)
    options = SceneOptions(choice="jump", settles=(0,), horizon=8, fit="logistic", seed=0, greedy=False)

    def fitted(middle: float, noise: float = 0.02) -> tuple[dict[str, Any], str]:
        p_VE = 1 / (1 + np.exp(-(x[:, None] - middle) / 3)) + noise * rng.standard_normal((6, 16))
        rows = _fits("as it is", 0, "prob:jump", x, p_VE.clip(0, 1)[..., None], [], options, rng)
        return rows[0], _middle_in_words(Result(tables={"fits": rows}), "as it is", 0, "prob:jump", "w")

    row, said = fitted(-6.0)
    assert row["half"] == "outside" and not any(name.startswith("middle") for name in row) and row["width"] > 0
    assert said == "; it is not a half at any value between these"
    row, said = fitted(3.0)
    assert (
        row["half"] == "inside" and row["middle"] == pytest.approx(3, abs=0.2) and said.startswith("; a half at w = ")
    )
    row, said = fitted(6.0, 0.1)
    assert row["half"] == "open" and said.endswith("] (whether that lies between these values is open)")


def test_no_base_that_changes_does_not_say_that_none_would() -> None:
    one = np.ones((2, 16, 3))
    assert all(e.low < -0.1 and e.high > 0.1 for e in difference(one, one, np.random.default_rng(0), share=True))


def test_an_isotonic_curve_never_turns() -> None:
    assert isotonic(np.array([0.0, 2, 1, 3]), True).tolist() == [0, 1.5, 1.5, 3]
    assert isotonic(np.array([3.0, 1, 2, 0]), False).tolist() == [3, 1.5, 1.5, 0]
    falls = fit_isotonic(np.arange(3.0), [Estimate(v, v - 0.1, v + 0.1, 9) for v in (0.9, 0.2, 0.4)])
    assert [round(e.value, 3) for e in falls] == [0.9, 0.3, 0.3] and falls[1].low == pytest.approx(0.2)


def test_differences_are_paired_by_base() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(0, 5, (2, 30, 2))
    other = one + np.array([0.0, 1.0])[:, None, None] + rng.normal(0, 0.01, one.shape)
    none, moved = difference(one, other, rng, share=False)
    assert abs(none.value) < 0.02 and moved.low < 1 < moved.high and moved.high - moved.low < 0.05


# The stage


def run(out: Path, *argv: object) -> Result:
    words = ["--out", str(out), "--bases", "3", "--positions", "1", "--horizon", "2", "--threads", "1"]
    scenes.main(cli.parse(scenes.ScenesConfig, [*words, *map(str, argv)], scenes.STAGE))
    return Result.load(out)


def basis_of(tmp_path: Path) -> Path:
    """A hidden-states run with a basis of the bundled agent's states: its axes."""
    name = fingerprint(load_agent(AGENT))
    eye = torch.eye(64)
    with new_run(tmp_path / "basis", "hidden_states", {}, {}) as made:
        Basis("ica", torch.zeros(64), torch.ones(64), eye, eye, agent=name).save(made.path)
    return tmp_path / "basis"


def test_the_stage_measures_curves_shifted_and_foretold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shifted = ("--basis", basis_of(tmp_path), "--shift", "0=1", "1=-1")
    result = run(
        tmp_path / "s",
        "--simulator",
        SIMULATOR,
        "--scene",
        "wall_height",
        "--values",
        0,
        2,
        4,
        "--settle",
        0,
        2,
        *shifted,
    )
    rows = result.tables["curves"]
    assert {row["variant"] for row in rows} == {"as it is", "shifted"} and {row["settle"] for row in rows} == {0, 2}
    asked = [row for row in rows if row["quantity"] == "prob:jump"]
    assert [row["at"] for row in asked[:3]] == [0, 2, 4] and all(row["n"] == 3 for row in asked)
    assert any(row["change"] != 0 for row in asked if row["variant"] == "shifted")
    assert all("foretold" in row for row in rows if row["quantity"] == "ended@2" and row["variant"] == "as it is")
    jump = result.arrays["as it is/0/prob:jump"]
    assert jump.shape == (3, 3, 1) and result.arrays["frames"].shape == (3, 64, 64, 3)
    parts = sum(result.arrays[f"as it is/0/prob:{name}"] for name in ("up", "upleft", "upright"))
    np.testing.assert_allclose(parts, jump, rtol=1e-5)
    said = capsys.readouterr().out
    assert "wall_height, as it is: the probability of 'jump' at first sight" in said and "after 2 steps" in said
    assert (tmp_path / "s" / "curves.png").stat().st_size > 0
    assert set(read_manifest(tmp_path / "s")["inputs"]) == {"simulator", "hidden_states"}


def test_levels_that_cannot_hold_a_scene_are_left_out(tmp_path: Path) -> None:
    start = ("--scene", "wall_at_the_start", "--values", 0, 1, 3, "--jitter", 0.1)
    result = run(tmp_path / "s", "--agent", AGENT, *start, "--fit", "isotonic")
    assert result.notes["bases"] == 3 and result.notes["left_out"] >= 0
    number = [{"name": "one", "game": "coinrun", "base": 700_000_003, "edits": ["add coin ahead {d}"], "says": "a coin",
               "choice": "jump", "values": [1, 2]}]  # fmt: skip
    (tmp_path / "f.json").write_text(json.dumps(number))
    one = run(tmp_path / "n", "--agent", AGENT, "--scenes", tmp_path / "f.json", "--scene", "one", "--jitter", 0.1)
    assert one.notes["bases"] == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--scene", "wall_hight"), "did you mean wall_height"), (("--values", "3", "1"), "numbers that rise"),
        (("--values", "0", "1.5"), "with h = 1.5"), (("--values", "0", "90"), "with h = 90"),
        (("--choice", "jmp"), "did you mean jump"), (("--fit", "line"), "none of none, isotonic"),
        (("--jitter", "0.9"), "--jitter 0.9"), (("--settle", "-1"), "settle"), (("--bases", "1"), "--bases must be"),
        (("--velocities", "9"), "velocities lie between"), (("--settle", "2", "2"), "twice"),
        (("--at_steps", "3"), "needs an intervention"), (("--scenes", "no.json"), "no such file"),
        (("--agent", "bundles/nmmo-demo/policies/forager"), "this agent's world is nmmo"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_leave_nothing(tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    agent = () if "--agent" in argv else ("--agent", AGENT)
    with pytest.raises(UserError, match=said) as caught:
        run(tmp_path / "s", *agent, *argv)
    assert "\n" not in str(caught.value) and not (tmp_path / "s").exists()


def test_a_scene_that_no_level_holds_is_not_asked_for_fewer_times() -> None:
    env = ProcgenEnv(ProcgenOptions(start_level=LEVEL, num_levels=0), 2, threads=1)
    with pytest.raises(UserError, match=r"only 0 of \d+ levels .*; ask for another scene or other values$"):
        build_starts(
            replace(scene_of("wall_height"), base="levels"), (999,), env, bases=2, positions=1, jitter=0.1,
            velocities=(0.0,), start_level=LEVEL, seed=0,
        )  # fmt: skip
    env.close()
