"""Maps whose fixed points, eigenvalues and Lyapunov exponents are known in closed form or from the literature."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis.dynamics.config import DynamicsConfig
from analysis.dynamics.figures import draw_eigenvalues, draw_points
from analysis.dynamics.fixed_points import distinct, on_whole, search, settle, solve
from analysis.dynamics.inputs import Recorded, Still
from analysis.dynamics.lyapunov import lyapunov, of_settled
from analysis.dynamics.modes import attractor, modes, period, persistence, stability, time_constant
from analysis.dynamics.recurrence import Recurrence
from analysis.dynamics.retention import Left
from analysis.dynamics.tables import along, analyse, left_in_words, put_exponents, put_left, summary
from analysis.shared.directions import neuron_basis
from core.artefacts import Result
from core.contracts import EnvSpec, Field, UserError


class Toy(nn.Module):
    """An agent whose next state is ``f(h) + e``."""

    def __init__(self, f: Callable[[Tensor], Tensor], size: int) -> None:
        super().__init__()
        self.f, self.size, self.points = f, size, {"h": size, "embedding": size}
        obs = {"x": Field(shape=(size,), dtype="float64")}
        self.spec = EnvSpec(env_id="toy", obs=obs, action_names=("up", "down"), slots=1)

    def initial(self, batch: int) -> Tensor:
        return torch.zeros(batch, self.size, dtype=torch.float64)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return obs["x"]

    def advance(self, seen: Tensor, state: Tensor, is_first_B: Tensor) -> Tensor:
        return self.f(torch.where(is_first_B[:, None], self.initial(len(state)), state)) + seen

    def heads(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([state[:, 0], -state[:, 0]], 1), state[:, 0]

    def read(self, point: str, seen: Tensor, state: Tensor) -> Tensor:
        return {"h": state, "embedding": seen}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return {"h": (seen, x_BN), "embedding": (x_BN, state)}[point]


def toy(f: Callable[[Tensor], Tensor], size: int) -> Recurrence:
    """The map h -> f(h) + e as the memory of an agent."""
    return Recurrence.of(Toy(f, size))


def found(memory: Recurrence, starts: list[list[float]], std: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    h = torch.tensor(starts, dtype=torch.float64)
    out = search(memory, torch.zeros_like(h), h, torch.full((h.shape[1],), std, dtype=torch.float64), 300)
    return out.h_BH.numpy(), out.speed_B.numpy(), out.settled_B.numpy()


def henon(h: Tensor) -> Tensor:
    return torch.stack([1 - 1.4 * h[:, 0] ** 2 + h[:, 1], 0.3 * h[:, 0]], 1)


def test_search_finds_attracting_and_repelling_points() -> None:
    h, speed, settled = found(toy(lambda h: torch.tanh(2 * h), 1), [[-2.0], [-0.4], [0.05], [0.4], [2.0]])
    root = 0.9575040240772687  # tanh(2 x) = x, by bisection
    assert settled.all()
    assert (speed < 1e-8).all()
    assert h[[0, 2, 4], 0] == pytest.approx([-root, 0, root], abs=1e-8)


def test_search_finds_the_saddles_of_the_henon_map() -> None:
    h, speed, settled = found(toy(henon, 2), [[0.5, 0.2], [-1.0, -0.3]])
    roots = np.sort((-0.7 + np.array([-1, 1]) * np.sqrt(0.49 + 5.6)) / 2.8)[::-1]
    assert settled.all()
    assert h[:, 0] == pytest.approx(roots, abs=1e-8)
    for x, point in zip(roots, h, strict=True):
        value = modes(np.array([[-2.8 * x, 1], [0.3, 0]])).value_M
        _, jacobian = toy(henon, 2).with_jacobian(torch.zeros(1, 2).double(), torch.from_numpy(point)[None])
        assert modes(jacobian[0].numpy()).value_M == pytest.approx(value, abs=1e-7)
        assert stability(value) == "saddle"


def test_a_ghost_of_a_saddle_node_is_slow_and_not_fixed() -> None:
    h, speed, settled = found(toy(lambda h: h + 0.001 + h**2, 1), [[-0.3], [0.2]])
    assert settled.all()
    assert h[:, 0] == pytest.approx([0, 0], abs=1e-3)
    assert speed == pytest.approx([0.001, 0.001], rel=1e-3)


def test_search_that_runs_away_is_not_settled() -> None:
    _, _, settled = found(toy(lambda h: h + torch.exp(-h), 1), [[0.0]])
    assert not settled.any()


def test_large_systems_are_solved_by_several_threads() -> None:
    """Above 150 unknowns torch's batched solve raises there (pytorch/pytorch#142815)."""
    a_BHH = torch.eye(160, dtype=torch.float64).repeat(2, 1, 1) * torch.tensor([2.0, 4.0])[:, None, None]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x_BH = solve(a_BHH, torch.ones(2, 160, dtype=torch.float64))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(x_BH, torch.tensor([0.5, 0.25], dtype=torch.float64)[:, None].expand(2, 160))


def test_jacobian_is_exact_and_rows_do_not_touch() -> None:
    torch.manual_seed(0)
    cell = nn.GRUCell(3, 5).double()

    def f(h: Tensor) -> Tensor:
        return cell(torch.zeros(len(h), 3).double(), h)  # type: ignore[no-any-return]

    memory = toy(f, 5)
    h = torch.randn(4, 5).double()
    after, jacobian = memory.with_jacobian(torch.zeros(4, 5).double(), h)
    for b in range(4):
        one = torch.func.jacrev(lambda x: f(x[None])[0])(h[b])
        assert torch.allclose(jacobian[b], one, atol=1e-12)
    assert torch.allclose(after, f(h))


def test_modes_are_ordered_and_dual() -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 6))
    mode = modes(matrix)
    assert (np.diff(np.abs(mode.value_M)) <= 1e-9).all()
    assert mode.left_MH @ mode.right_HM == pytest.approx(np.eye(6), abs=1e-9)
    assert (mode.right_HM * mode.value_M) @ mode.left_MH == pytest.approx(matrix, abs=1e-9)


def test_time_constants_and_periods() -> None:
    assert time_constant(np.exp(-1 / 7)) == pytest.approx(7)
    assert time_constant(-np.exp(1 / 3)) == pytest.approx(3)
    assert time_constant(1) == np.inf
    assert time_constant(0) == 0
    assert period(0.9 * np.exp(2j * np.pi / 12)) == pytest.approx(12)
    assert period(-0.5) == pytest.approx(2)
    assert period(0.5) == np.inf


@pytest.mark.parametrize(
    ("values", "what"),
    [([0.5, 0.2], "point"), ([1.0, 0.2], "line"), ([0.99, 0.98, 0.1], "plane"), ([1.01, 0.1], "line"),
     ([0.99] * 3, "3 slow dimensions"), ([1.5, 0.99], "none")],
)  # fmt: skip
def test_attractors_are_counted_by_slow_modes(values: list[float], what: str) -> None:
    assert attractor(np.array(values), 20) == what


@pytest.mark.parametrize(
    ("values", "what"),
    [([0.5, -0.9], "stable"), ([1.1, 0.5], "saddle"), ([1.1, -2], "unstable"), ([1.0, 0.3], "marginal")],
)
def test_stability(values: list[float], what: str) -> None:
    assert stability(np.array(values)) == what


def test_what_is_left_of_a_displacement() -> None:
    """A linear mode leaves its eigenvalue ** steps, a line attractor all, a saturating one less than its slope says."""
    recorded, e = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).double(), torch.zeros(2).double()
    slope = torch.tensor([1.0, 0.9]).double()
    linear = toy(lambda h: h * slope, 2)
    mode = modes(np.diag([1.0, 0.9]))
    assert persistence(linear, e, e, mode, 0, recorded, 20) == pytest.approx(1)
    assert persistence(linear, e, e, mode, 1, recorded, 20) == pytest.approx(0.9**20)
    bends = toy(lambda h: torch.tanh(h), 2)
    assert persistence(bends, e, e, modes(np.eye(2)), 0, recorded, 20) < 0.35


def test_lyapunov_exponents_of_the_henon_map() -> None:
    """0.4192 (Sprott 2003); their sum is ln 0.3 at every step, whatever the orbit."""
    memory = toy(henon, 2)
    start = settle(memory, torch.zeros(8, 2).double(), 0.1 * torch.rand(8, 2).double(), 100)
    steps = 1500
    each, counted = lyapunov(memory, torch.zeros(8, steps, 2).double(), start, np.full(8, steps), 10)
    assert (counted == steps - 10).all()
    assert each.sum(1) == pytest.approx(np.log(0.3), abs=1e-9)
    assert each[:, 0].mean() == pytest.approx(0.4192, abs=0.015)


def test_lyapunov_exponents_of_a_normal_map_are_its_rates_and_stop_at_the_episodes_end() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    rates = np.array([-0.1, -0.5, -2.0])
    matrix = torch.from_numpy(turn @ np.diag(np.exp(rates)) @ turn.T)
    memory = toy(lambda h: h @ matrix.T, 3)
    e = torch.zeros(2, 60, 3).double()
    each, steps = lyapunov(memory, e, torch.ones(2, 3).double(), np.array([60, 30]), 15)
    assert steps.tolist() == [45, 15]
    assert each == pytest.approx(np.stack([rates, rates]), abs=2e-2)
    again, _ = lyapunov(memory, e[1:, :30], torch.ones(1, 3).double(), np.array([30]), 15)
    assert again[0] == pytest.approx(each[1])


def noise_of(episodes: int, steps: int, seed: int) -> Tensor:
    return 2 * torch.randn(episodes, steps, 3, generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture(scope="module")
def driven_net() -> tuple[Recurrence, float]:
    """A network that noise drives, and its largest exponent: over 200,000 steps (standard error 0.001)."""
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    memory = toy(lambda h: 0.4 * torch.sin(3 * h) @ torch.from_numpy(turn), 3)
    each, _ = lyapunov(memory, noise_of(400, 550, 1), torch.zeros(400, 3).double(), np.full(400, 550), 50)
    return memory, float(each[:, 0].mean())


@pytest.mark.parametrize("n", [24, pytest.param(8, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)])
def test_the_largest_exponent_of_short_episodes_has_no_bias_and_its_interval_covers(
    driven_net: tuple[Recurrence, float], n: int, record_property: Callable[[str, object], None]
) -> None:
    """Were exponents sorted an episode at a time, the mean of the largest would be too large."""
    memory, truth = driven_net
    runs, burn_in, rng = 200 if n == 24 else 1000, 8, np.random.default_rng(n)
    length = rng.integers(burn_in + 4, burn_in + 15, size=n * runs)
    each, steps = lyapunov(memory, noise_of(n * runs, 22, n), torch.zeros(n * runs, 3).double(), length, burn_in)
    found = []
    for r in range(runs):
        mine, result = slice(r * n, (r + 1) * n), Result(tables={"lyapunov": []})
        put_exponents(result, "recorded", each[mine], steps[mine], np.arange(n), rng)
        found.append([result.tables["lyapunov"][0][k] for k in ("value", "low", "high")])
    value, low, high = np.array(found).T
    covers = float(((low <= truth) & (truth <= high)).mean())
    record_property("coverage", covers)
    assert (low <= value).all() and (value <= high).all() and covers >= 0.9
    assert value.mean() == pytest.approx(truth, abs=0.01) and each.max(1).mean() > truth + 0.015


def test_the_default_burn_in_turns_the_frame_to_the_slowest_direction() -> None:
    """One slow mode among 63 that fade at 0.2: after five steps the frame's first direction is still one of many, and
    memory looks half as long."""
    rates = np.array([-0.02] + [-0.2] * 63)
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))
    matrix = torch.from_numpy(turn @ np.diag(np.exp(rates)) @ turn.T)
    config = DynamicsConfig()
    e, length = torch.zeros(1, config.lyapunov_steps, 64).double(), np.array([config.lyapunov_steps])
    each, _ = lyapunov(toy(lambda h: h @ matrix.T, 64), e, torch.ones(1, 64).double(), length, config.burn_in)
    assert each[0, 0] == pytest.approx(-0.02, rel=0.1)
    hasty, _ = lyapunov(toy(lambda h: h @ matrix.T, 64), e, torch.ones(1, 64).double(), length, 5)
    assert hasty[0, 0] < -0.03


def test_points_that_are_the_same_are_one_and_the_slowest_stays() -> None:
    h = torch.tensor([[0.0], [0.04], [1.0], [0.01]]).double()
    assert distinct(h, torch.tensor([3.0, 1.0, 2.0, 4.0]).double(), torch.ones(1).double(), 0.1) == [1, 2]


def recorded_of(memory: Recurrence, noise: float = 0.3, episodes: int = 12, steps: int = 30) -> Recorded:
    generator = torch.Generator().manual_seed(1)
    size = memory.state.shape[1]
    e = noise * torch.randn(episodes, steps, size, generator=generator).double()
    h = torch.randn(episodes, size, generator=generator).double()
    states = []
    for t in range(steps):
        h = memory(e[:, t], h)
        states.append(h)
    index = np.stack(np.meshgrid(np.arange(episodes), np.arange(steps), indexing="ij"), 2).reshape(-1, 2)
    return Recorded(torch.stack(states, 1).flatten(0, 1), e.flatten(0, 1), index)


def run(memory: Recurrence, noise: float = 0.3, **changes: object) -> Result:
    recorded = recorded_of(memory, noise)
    still = [Still("nothing", None, torch.zeros(memory.state.shape[1]).double())]
    return analyse(memory, recorded, still, DynamicsConfig(**{"starts": 48, "settle": 60, "burn_in": 5, **changes}))  # type: ignore[arg-type]


def test_the_whole_analysis_of_two_attractors_and_the_saddle_between() -> None:
    memory = toy(lambda h: torch.stack([torch.tanh(2 * h[:, 0]), 0.5 * h[:, 1]], 1), 2)
    result = run(memory)
    points = sorted(zip(result.arrays["points"][:, 0], result.tables["points"], strict=True), key=lambda p: p[0])
    assert [round(x, 4) for x, _ in points] == [-0.9575, 0, 0.9575]
    assert [row["stability"] for _, row in points] == ["stable", "saddle", "stable"]
    assert [row["kind"] for _, row in points] == ["fixed"] * 3
    share = [row["settle_here"] for _, row in points]
    assert share[1] == 0
    assert share[0] + share[2] == pytest.approx(1)
    low, value, high = (points[0][1][f"settle_here{x}"] for x in ("_low", "", "_high"))
    assert low <= value <= high
    assert points[1][1]["time_constant"] == pytest.approx(1 / np.log(2), rel=1e-6)
    saddle = [r for r in result.tables["modes"] if r["point"] == points[1][1]["point"]]
    assert [r["real"] for r in saddle] == pytest.approx([2, 0.5], abs=1e-6)
    assert saddle[1]["left"] == pytest.approx(0.5**20, abs=1e-9)
    assert result.scalars["fixed_points"]["value"] == 3
    assert result.scalars["lyapunov_driven"]["value"] < 0
    assert result.scalars["memory"]["value"] in (1, 2) and "down to 1/e after" in left_in_words(result)


def left_after(memory: Recurrence, e: Tensor, start: Tensor, length: np.ndarray) -> np.ndarray:
    left = Left(start)
    lyapunov(memory, e, start, length, 0, left)
    return left.left_BT


def test_what_is_left_of_a_difference() -> None:
    """Of a delay line nearly all until it is through, of an integrator all, of a leak its own share; the largest
    Lyapunov exponent said .6 steps of a delay line of 20, and that gated memories that fade part."""
    size, steps = 20, 40
    start, e = torch.ones(3, size).double(), torch.zeros(3, steps, size).double()
    delay = toy(lambda h: torch.cat([0 * h[:, :1], h[:, :-1]], 1), size)
    left = left_after(delay, e, start, np.array([40, 40, 10]))
    want = np.sqrt(np.clip(20 - np.arange(41), 0, None) / 20)
    np.testing.assert_allclose(left[:2], np.stack([want] * 2), atol=1e-9)
    assert np.isnan(left[2, 11:]).all() and left[2, 10] == pytest.approx(want[10])
    np.testing.assert_allclose(
        left_after(toy(lambda h: 0.9 * h, size), e, start, np.full(3, 40))[0], 0.9 ** np.arange(41)
    )
    result, factor_B1 = Result(), np.linspace(0.95, 1.05, 12)[:, None]
    put_left(result, np.tile(want, (12, 1)) * factor_B1, np.arange(12), np.random.default_rng(0))
    assert result.scalars["memory"]["value"] == 18 and "down to 1/e after 18" in left_in_words(result)
    put_left(result, np.ones((12, 41)), np.arange(12), np.random.default_rng(0))
    assert result.scalars["memory"]["value"] is None and "not down to 1/e within 40 steps" in left_in_words(result)


def counted(memory: Recurrence, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every batch of Jacobians that is computed from here on."""
    rows: list[int] = []
    one = Recurrence.with_jacobian

    def counting(self: Recurrence, e: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        rows.append(len(s))
        return one(self, e, s)

    monkeypatch.setattr(Recurrence, "with_jacobian", counting)
    return rows


def test_what_has_ended_is_not_computed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that settled, episodes that are over; what they gave stays."""
    memory = toy(lambda h: torch.tanh(2 * h), 1)
    h = torch.tensor([[0.9575040240772687], [0.4]], dtype=torch.float64)
    std = torch.ones(1, dtype=torch.float64)
    alone = [search(memory, torch.zeros(1, 1).double(), x[None], std, 300) for x in h]
    rows = counted(memory, monkeypatch)
    both = search(memory, torch.zeros_like(h), h, std, 300)
    assert rows[0] == 2 and set(rows[2:]) == {1}
    for i, one in enumerate(alone):
        assert [x[i].tolist() for x in both] == [x[0].tolist() for x in one]
    rows.clear()
    each, steps = lyapunov(memory, torch.zeros(2, 20, 1).double(), h, np.array([20, 8]), 2)
    assert rows == [2] * 8 + [1] * 12 and steps.tolist() == [18, 6]
    short, _ = lyapunov(memory, torch.zeros(1, 8, 1).double(), h[1:], np.array([8]), 2)
    assert each[1].tolist() == short[0].tolist()


def test_states_that_rest_at_one_point_have_their_exponents_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that only lie near each other: of a map that tells them apart, and of a line of fixed points."""
    std, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    memory = toy(lambda h: torch.stack([torch.tanh(2 * h[:, 0]), 0.5 * h[:, 1]], 1), 2)
    start = torch.tensor([[x, 1.0] for x in (-2.0, -1.0, 0.3, 0.5, 0.7)], dtype=torch.float64)
    settled = settle(memory, torch.zeros_like(start), start, 200)
    want, _ = lyapunov(memory, torch.zeros(5, 30, 2).double(), settled, np.full(5, 30), 5)
    rows = counted(memory, monkeypatch)
    each, steps = of_settled(memory, zero, settled, std, 30, 5)
    assert set(rows) == {2} and steps.tolist() == [25] * 5
    np.testing.assert_allclose(each, want, atol=1e-12)
    rows.clear()
    near = torch.tensor([[0.3, 0.2], [0.3 + 1e-10, 0.2]], dtype=torch.float64)
    of_settled(toy(henon, 2), zero, near, std, 10, 5)
    assert set(rows) == {2}  # they move
    rows.clear()
    line = torch.tensor([[0.1, 0.0], [0.2, 0.0]], dtype=torch.float64)
    of_settled(toy(lambda h: h * torch.tensor([1.0, 0.5]).double(), 2), zero, line, std, 10, 5)
    assert set(rows) == {2}


def test_jacobians_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, h = toy(henon, 2), torch.linspace(-1, 1, 14, dtype=torch.float64).reshape(7, 2)
    whole = memory.with_jacobian(torch.zeros_like(h), h)
    monkeypatch.setattr("analysis.dynamics.recurrence.AT_ONCE", 8)  # two rows
    for one, other in zip(memory.with_jacobian(torch.zeros_like(h), h), whole, strict=True):
        assert torch.equal(one, other)


def test_a_unit_that_never_changes_does_not_hide_the_fixed_point() -> None:
    """Recorded as float32, as everything is, and 0.3 is none."""
    memory = toy(lambda h: torch.stack([0.5 * h[:, 0], 0 * h[:, 1] + 0.3], 1), 2)
    recorded = recorded_of(memory)
    recorded.e_NE[:, 1], recorded.h_NH[:, 1] = 0, float(np.float32(0.3))
    still = [Still("nothing", None, torch.zeros(2).double())]
    config = DynamicsConfig(starts=48, settle=60, burn_in=5)
    result = analyse(memory, recorded, still, config)
    assert result.arrays["points"] == pytest.approx(np.array([[0, 0.3]]), abs=1e-8)
    assert result.scalars["searches_in_vain"]["value"] == 0
    recorded.h_NH[:] = 1
    with pytest.raises(UserError, match="never change"):
        analyse(memory, recorded, still, config)


@pytest.mark.parametrize(
    ("size", "steps", "says"),
    [(2, 9, "record longer ones, or give --burn_in 4 or less$"), (40, 9, r"longer ones \(10 even with --burn_in 0\)$")],
)
def test_episodes_that_are_too_short_are_refused_with_what_would_help(size: int, steps: int, says: str) -> None:
    """The number that is named is taken."""
    memory = toy(lambda h: 0.5 * h, size)
    recorded = recorded_of(memory, episodes=6, steps=steps)
    still = [Still("nothing", None, torch.zeros(size).double())]
    config = DynamicsConfig(starts=6, settle=5, burn_in=5, iterations=20)
    with pytest.raises(UserError, match=says):
        analyse(memory, recorded, still, config)
    if "give" in says:
        analyse(memory, recorded, still, replace(config, burn_in=4))


class Counting(Toy):
    """Counts its steps beside a memory that fades."""

    def __init__(self) -> None:
        super().__init__(lambda h: 0.5 * h, 2)

    def initial(self, batch: int) -> Any:
        return torch.zeros(batch, 2, dtype=torch.float64), torch.zeros(batch, 1, dtype=torch.int64)

    def advance(self, seen: Tensor, state: Any, is_first_B: Tensor) -> Any:
        return 0.5 * state[0] + seen, state[1] + 1

    def heads(self, seen: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        return super().heads(seen, state[0])

    def read(self, point: str, seen: Tensor, state: Any) -> Tensor:
        return super().read(point, seen, state[0])

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Any) -> Any:
        return (x_BN, state) if point == "embedding" else (seen, (x_BN, state[1]))


def test_a_counter_of_steps_has_no_fixed_points() -> None:
    """Cut off to a whole number, 3 less a little becomes 2 + 1: it seemed to stand still, just below every number."""
    memory = Recurrence.of(Counting())
    assert memory.whole_S.tolist() == [False, False, True] and not toy(henon, 2).whole_S.any()
    e, h = torch.zeros(4, 2).double(), torch.tensor([[0.1, 0.2, n] for n in (1.0, 2.0, 3.0, 4.0)]).double()
    std = torch.tensor([0.3, 0.3, 5.0]).double()
    seemed = search(memory, e, h, std, 300)
    assert (seemed.settled_B & (seemed.speed_B < 1e-8)).any()
    assert (on_whole(memory, e, seemed, std).speed_B > 0.01).all()
    plain = toy(lambda h: 0.5 * h, 2)
    there = search(plain, e, h[:, :2], std[:2], 300)
    assert on_whole(plain, e, there, std[:2]) is there


def test_searches_that_find_nothing_are_counted_and_drawn() -> None:
    memory = toy(lambda h: h + 1, 1)
    result = run(memory)
    assert result.tables["points"] == []
    assert result.scalars["searches_in_vain"]["value"] == 48
    draw_eigenvalues(result, 20.0).savefig(io.BytesIO())


def test_a_memory_of_one_number_is_drawn() -> None:
    draw_points(run(toy(lambda h: (2 * h).tanh(), 1)), [None]).savefig(io.BytesIO())


def test_a_line_attractor_is_called_a_line() -> None:
    result = run(toy(lambda h: h * torch.tensor([1.0, 0.3]).double(), 2))
    assert len(result.tables["points"]) > 3
    assert {row["attractor"] for row in result.tables["points"]} == {"line"}
    assert {row["stability"] for row in result.tables["points"]} == {"marginal"}
    assert all(row["left"] == pytest.approx(1) for row in result.tables["modes"] if row["mode"] == 0)


def test_a_chaotic_agent_has_no_place_to_settle_and_a_positive_exponent() -> None:
    """Two logistic maps, x -> 1 - 1.9 x^2, exponents about 0.55 nats."""
    memory = toy(lambda h: 1 - 1.9 * h.clamp(-1, 1) ** 2, 2)
    result = run(memory, noise=0.0)
    assert result.scalars["lyapunov_driven"]["interval"][0] > 0.4
    assert sum(row["settle_here"] for row in result.tables["points"]) < 0.2
    assert {row["stability"] for row in result.tables["points"]} <= {"unstable", "saddle"}


def test_directions_of_a_mode() -> None:
    h = np.random.default_rng(0).standard_normal((100, 3)) * [1, 5, 2]
    assert along(np.array([0.0, 1.0, 0.0], complex), neuron_basis(h)).startswith("neurons:1 (1.00)")


def test_episodes_that_are_too_short_are_refused() -> None:
    memory = toy(lambda h: 0.5 * h, 2)
    short = recorded_of(memory, steps=6)
    still = [Still("nothing", None, torch.zeros(2).double())]
    with pytest.raises(UserError, match="no episode has more than 9 steps"):
        analyse(memory, short, still, DynamicsConfig(starts=8, burn_in=5))


def test_one_episode_and_one_point_are_said_so() -> None:
    result = Result(notes={"inputs": [{"name": "mean input", "where": None}]})
    for name, value in {"fixed_points": 1, "slow_points": 0, "memory": 2, "lyapunov_driven": -1.3}.items():
        result.scalar(name, value, "", 1, (math.nan, math.nan))
    result.tables["points"] = []
    result.tables["left"] = [{"steps": t, "left": 0.4, "low": None, "high": None, "n": 1} for t in (1, 4)]
    said = summary(result, 300, Path("runs/dynamics"))
    assert said.startswith("1 constant input: 1 fixed point, 0 slow\n") and "along 1 episode: -1.300 nats" in said
