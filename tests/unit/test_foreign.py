"""The analyses on somebody's agent, whose state is more than h, in somebody's world of vectors: contracts alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis.coupling.jacobian import jacobians, replay, rows_that_fit
from analysis.dynamics.config import DynamicsConfig
from analysis.dynamics.inputs import Recorded, Still
from analysis.dynamics.recurrence import Recurrence
from analysis.dynamics.tables import analyse
from analysis.saliency import explain
from analysis.saliency.config import SaliencyConfig
from analysis.shared.quantities import Quantity, find_quantities
from analysis.target_functions import search
from analysis.target_functions.config import TargetFunctionsConfig
from analysis.target_functions.population import random_starts
from analysis.target_functions.targets import find_targets
from core.contracts import EnvSpec, Field, Shown, UserError
from core.directions import Basis
from core.roll import Simulator, act, choose
from core.trees import Tree, flatten, unflatten

B, X, H, S = 3, 3, 4, 8  # rows, the world's vector, h, the whole state (h, c)
F64 = torch.float64
SPEC = EnvSpec(
    env_id="foreign/vectors",
    obs={"x": Field(shape=(X,), dtype="float64"), "extra": Field(shape=(2,), dtype="float64")},
    action_names=("left", "stay", "right"),
    slots=1,
)
STEPS, TARGET = 5, 3


class LSTM(nn.Module):
    """An agent whose state is (h, c)."""

    def __init__(self) -> None:
        super().__init__()
        self.spec, self.points = SPEC, {"h": H, "cell": H}
        self.lstm, self.head = nn.LSTMCell(X + 2, H), nn.Linear(H, SPEC.n_actions + 1)

    def initial(self, batch: int) -> Tree:
        zero = self.head.weight.new_zeros(batch, H)
        return zero, zero + 0.25

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        return (torch.cat([obs["x"], obs["extra"]], -1).to(self.head.weight.dtype),)

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        first = self.initial(len(is_first_B))
        before = tuple(torch.where(is_first_B[:, None], i, s) for i, s in zip(first, state, strict=True))
        return tuple(self.lstm(seen[0], before))

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        out = self.head(state[0])
        return 3 * out[:, 1:], out[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        h, c = state
        return h if point == "h" else c

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        h, c = state
        return seen, (x_BN, c) if point == "h" else (h, x_BN)


class Line:
    """A world that no torch module holds: a vector that drifts and is pushed by actions."""

    spec, latent_size, initial_frames = SPEC, X, 1

    def __init__(self) -> None:
        self.push_AX = torch.randn(3, X, generator=torch.Generator().manual_seed(7), dtype=F64)

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._show(z_BZ)

    def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._show(0.75 * state + torch.tanh(action_BA @ self.push_AX) + (0 if noise is None else 0.5 * noise))

    def _show(self, x: Tensor) -> tuple[Tree, Shown]:
        return x, Shown({"x": x, "extra": torch.sin(x[:, :2])}, x.sum(-1), 0 * x[:, 0], x)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        return torch.randn(batch, X, generator=generator, dtype=F64)

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return obs["x"][:, 0], torch.full_like(obs["x"][:, 0], -10.0)

    def normalise(self, z_BZ: Tensor) -> Tensor:
        return z_BZ

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        return obs["x"]


@pytest.fixture(scope="module")
def foreign() -> Simulator[Any]:
    torch.manual_seed(3)
    return Simulator(LSTM().double().eval().requires_grad_(False), Line(), None)


def latents(count: int = B) -> Tensor:
    return torch.randn(count, X, generator=torch.Generator().manual_seed(1), dtype=F64)


def basis() -> Basis:
    generator = torch.Generator().manual_seed(2)
    project = torch.randn(H, H, generator=generator, dtype=F64)
    std = torch.rand(H, generator=generator, dtype=F64) + 0.5
    return Basis("ica", torch.zeros(H, dtype=F64), std, project, torch.linalg.inv(project))


def quantities() -> list[Quantity]:
    return find_quantities(["value", "action", "ica_1", "right"], SPEC, lambda kind: basis())


def soft(logits_BA: Tensor, noise_BA: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What a straight-through gradient pretends: the action is a mixture."""
    return logits_BA.argmax(-1), logits_BA.softmax(-1)


# Saliency


def test_saliency_is_the_slope_of_the_rollout_in_every_field_and_state(
    foreign: Simulator[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    z = latents()
    methods = ("plain", "integrated", "deeplift", "occlusion", "latent")
    config = SaliencyConfig(steps=STEPS, target_step=TARGET, integrated_steps=64, methods=methods, window=1, stride=1)
    found = explain.explain(foreign, z, [0, 1, 2], quantities(), config, basis()).arrays
    assert found["grad_x_value"].shape == (B, STEPS + 1, X) and found["grad_extra_value"].shape == (B, STEPS + 1, 2)
    assert found["grad_h_value"].shape == (B, STEPS + 1, H) and found["grad_d_value"].shape == (B, STEPS + 1, X)
    assert "randomised_correlation_value" in found  # the agent is a torch module; the world is not, and is left alone
    for q in quantities():
        for method in ("integrated", "deeplift"):
            total = sum(found[f"{method}_{name}_{q.name}"].reshape(B, -1).sum(1) for name in ("x", "extra"))
            assert np.abs(found[f"change_{q.name}"]).max() > 1e-3
            np.testing.assert_allclose(total, found[f"change_{q.name}"], rtol=1e-3, atol=1e-5)
    # By hand: the slope along noise on one number of one frame, the action a mixture as straight-through has it.
    monkeypatch.setattr("core.roll.straight_through", soft)
    smooth = explain.explain(foreign, z, [0, 1, 2], quantities()[:1], config, basis()).arrays
    small = 1e-5
    for t, i in ((0, 0), (1, 2), (TARGET, 1)):
        push = torch.zeros(X, dtype=F64)
        push[i] = small
        ends = [value_of(foreign, z, t, sign * push) for sign in (1, -1)]
        slope = ((ends[0] - ends[1]) / (2 * small)).numpy()
        assert np.abs(slope).max() > 1e-4
        np.testing.assert_allclose(smooth["grad_x_value"][:, t, i], slope, rtol=1e-4, atol=1e-6)
    assert not smooth["grad_x_value"][:, TARGET + 1 :].any()


def value_of(simulator: Simulator[Any], z: Tensor, at: int, push_X: Tensor) -> Tensor:
    """The value at the target step where the agent sees something added to the field x of one frame."""
    state, nowhere = simulator.remembered(z), torch.zeros(len(z), dtype=torch.bool)
    world_state, shown = simulator.world.start(z)
    for t in range(TARGET + 1):
        obs = {**shown.obs, "x": shown.obs["x"] + (push_X if t == at else 0)}
        acted = act(simulator.agent, obs, state, nowhere, torch.full((len(z),), t))
        state, (_, one_hot) = acted.state, choose(acted.logits_BA, SPEC.parts)
        world_state, shown = simulator.world.step(world_state, one_hot)
    return acted.value_B


def test_a_smoothed_saliency_of_vectors_scales_with_their_range(foreign: Simulator[Any]) -> None:
    z, ids = latents(), [0, 1, 2]
    config = SaliencyConfig(steps=STEPS, target_step=TARGET, copies=4, noise=0.2, integrated_steps=8)
    smooth = explain.explain(foreign, z, ids, quantities(), config).arrays
    plain = explain.explain(foreign, z, ids, quantities(), SaliencyConfig(steps=STEPS, target_step=TARGET)).arrays
    for name in ("grad_x_value", "grad_extra_action", "grad_h_ica:1", "integrated_x_value"):
        assert np.isfinite(smooth[name]).all() and not np.allclose(smooth[name], plain[name], rtol=1e-3)
    alone = explain.explain(foreign, z[1:2], [1], quantities(), config).arrays
    for name, x in alone.items():
        np.testing.assert_allclose(x[0], smooth[name][1], rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_agent_that_is_no_module_is_explained_too(foreign: Simulator[Any]) -> None:
    """Its weights are unknown, so that none can be shuffled."""

    class Bare:
        """The contract and nothing else."""

        def __init__(self, inner: Any) -> None:
            for name in ("spec", "points", "initial", "encode", "advance", "heads", "read", "replaced"):
                setattr(self, name, getattr(inner, name))

    bare: Any = Bare(foreign.agent)
    config = SaliencyConfig(steps=STEPS, target_step=TARGET, integrated_steps=8, checks=True, draws=2)
    z, ids = latents(8), list(range(8))
    found = explain.compute(Simulator(bare, foreign.world, None), z, ids, quantities(), config)
    known = explain.compute(foreign, z, ids, quantities(), config)
    np.testing.assert_array_equal(found.arrays["grad_x_value"], known.arrays["grad_x_value"])
    assert "randomised_correlation_value" in known.scalars and "randomised_correlation_value" not in found.scalars
    assert {row["check"] for row in found.tables["checks"]} == {"infidelity", "sensitivity", "insertion", "deletion"}


# Coupling


@pytest.mark.parametrize("path", ["straight_through", "direct"])
def test_jacobians_are_those_of_torch_func(foreign: Simulator[Any], path: str) -> None:
    """Of the same rollout from where the source step left it, with c, and for the direct part all actions, held."""
    lags, known = [1, 2, 3], basis()
    played = replay(foreign, latents(), 6)
    place = played.places(np.arange(B), np.array([0, 1, 0]))
    got = jacobians(foreign, place, known, lags)[path]
    longest = max(lags)
    for b in range(B):
        begun = [0, 1, 0][b]
        for at, lag in enumerate(lags):
            source = begun + 1 + longest - lag
            here = played.after[source]
            h, c = (x[b : b + 1] for x in here.state)

            def last(changed: Tensor, b: int = b, source: int = source, c: Tensor = c, lag: int = lag) -> Tensor:
                state, nowhere = (changed[None], c), torch.zeros(1, dtype=torch.bool)
                world_state = played.after[source].world[b : b + 1]
                action = choose(foreign.agent.heads((), state)[0], SPEC.parts)[1]
                for _ in range(lag):
                    given = action if path == "straight_through" else action.detach()
                    world_state, shown = foreign.world.step(world_state, given)
                    acted = act(foreign.agent, shown.obs, state, nowhere, torch.zeros(1, dtype=torch.int64))
                    state, action = acted.state, choose(acted.logits_BA, SPEC.parts)[1]
                return known.project(acted.h_BH)[0]

            torch.testing.assert_close(last(h[0]), known.project(played.h_ETH[b, begun + 1 + longest])[:H])
            whole_JH = torch.func.jacrev(last)(h[0])
            expected = known.pullback(whole_JH).T  # [i, j]
            torch.testing.assert_close(got[b, at], expected, rtol=1e-9, atol=1e-12)
    assert got.abs().max() > 0.01


def test_coupling_tries_every_action(foreign: Simulator[Any]) -> None:
    found = jacobians(foreign, latents(), basis(), [1, 2])
    assert found["through_world"].shape == (B, 2, H, H) and found["through_world"][:, 1].abs().max() > 1e-4
    assert (found["ended"] == 0).all()
    place = replay(foreign, latents(), 2).places(np.arange(B), np.zeros(B, int))
    assert rows_that_fit(foreign, place, 3, 1e9) > rows_that_fit(foreign, place, 3, 1.0) == 1


# Dynamics


def test_the_recurrence_of_an_lstm_is_a_map_of_its_whole_state(foreign: Simulator[Any]) -> None:
    memory = Recurrence.of(LSTM().float())
    lstm = memory.agent.lstm  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    e, s = (torch.randn(6, n, generator=generator, dtype=F64) for n in (X + 2, S))
    assert lstm.weight_hh.dtype == F64 and memory.remembers
    after, jacobian = memory.with_jacobian(e, s)
    for b in range(6):

        def step(x: Tensor, b: int = b) -> Tensor:
            return torch.cat(lstm(e[b : b + 1], (x[None, :H], x[None, H:])), 1)[0]

        torch.testing.assert_close(after[b], step(s[b]))
        torch.testing.assert_close(jacobian[b], torch.func.jacrev(step)(s[b]), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(memory.hidden(s), s[:, :H])
    state = unflatten(s, foreign.agent.initial(6))
    torch.testing.assert_close(flatten(state), s)
    torch.testing.assert_close(memory.heads(s)[1], memory.agent.heads((), state)[1])


class Spiral(nn.Module):
    """A state of two parts: h turns and shrinks towards what it sees, c is half of what h was.  All is linear."""

    def __init__(self) -> None:
        super().__init__()
        self.spec, self.points = SPEC, {"h": 2, "trace": 2}
        turn = torch.tensor([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]], dtype=F64)
        self.turn = nn.Parameter(0.9 * turn)

    def initial(self, batch: int) -> Tree:
        zero = self.turn.new_zeros(batch, 2)
        return zero, zero

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        return obs["extra"]

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        h, c = (torch.where(is_first_B[:, None], 0.0, x) for x in state)
        return h @ self.turn.T + seen + 0 * c, 0.5 * h

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        h, _ = state
        return torch.cat([h, h[:, :1]], 1), h[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        return state[0] if point == "h" else state[1]

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        return seen, (x_BN, state[1]) if point == "h" else (state[0], x_BN)


def test_the_fixed_point_of_a_linear_memory_of_two_parts_is_the_closed_form() -> None:
    memory, e = Recurrence.of(Spiral()), torch.tensor([0.3, -0.2], dtype=F64)
    turn = memory.agent.turn.detach()  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    driven = e + 0.1 * torch.randn(12, 30, 2, generator=generator, dtype=F64)
    s, states = torch.randn(12, 4, generator=generator, dtype=F64), []
    for t in range(30):
        s = memory(driven[:, t], s)
        states.append(s)
    index = np.stack(np.meshgrid(np.arange(12), np.arange(30), indexing="ij"), 2).reshape(-1, 2)
    recorded = Recorded(torch.stack(states, 1).flatten(0, 1).detach(), driven.flatten(0, 1), index)
    config = DynamicsConfig(starts=24, settle=200, burn_in=5, lyapunov_steps=60)
    eye = torch.eye(2, dtype=F64)
    basis_of_h = Basis("neurons", torch.zeros(2).double(), torch.ones(2).double(), eye, eye)
    result = analyse(memory, recorded, [Still("held", None, e)], config, basis_of_h)
    h = torch.linalg.solve(eye - turn, e)
    assert result.arrays["points"] == pytest.approx(torch.cat([h, 0.5 * h])[None].numpy(), abs=1e-8)
    (point,) = result.tables["points"]
    assert point["stability"] == "stable" and point["settle_here"] == 1
    expected = np.sort_complex(np.array([0.9 * np.exp(0.5j), 0.9 * np.exp(-0.5j), 0, 0]))
    np.testing.assert_allclose(np.sort_complex(result.arrays["eigenvalues"][0]), expected, atol=1e-8)
    assert point["period"] == pytest.approx(4 * np.pi) and point["time_constant"] == pytest.approx(-1 / np.log(0.9))
    assert result.scalars["lyapunov_driven"]["value"] == pytest.approx(np.log(0.9), abs=1e-6)
    inside = [row["directions"] for row in result.tables["modes"]]
    assert inside[0].startswith(("neurons:0 (0.71), neurons:1 (0.71)", "neurons:1 (0.71), neurons:0 (0.71)"))
    assert "" in inside[1:]  # c is forgotten at once: no direction of h


# Target functions


def test_targets_climb_in_a_foreign_world(foreign: Simulator[Any]) -> None:
    targets = find_targets(("value", "reward"), ("ica_1",), 1, SPEC, lambda kind: basis())
    config = TargetFunctionsConfig(
        steps=4, first_step=1, samples=4, screen=2, iterations=15, prior_weight=0.0, noisy=2, video=False
    )
    starts = random_starts(foreign, 8, 4 * search.tries_of(config), 0, torch.device("cpu"))
    starts = starts._replace(
        z_SZ=starts.z_SZ.double(), population=type(starts.population).of(starts.population.z_NZ.double())
    )
    result = search.compute(foreign, targets, starts, config)
    for target in targets:
        rows = [r for r in result.tables["samples"] if r["target"] == target.name]
        assert len(rows) == 4 and all(r["gain"] >= 0 for r in rows) and sum(r["gain"] > 0 for r in rows) >= 3
        assert result.arrays[f"x_after_{target.label}"].shape == (4, 5, X)
    # The steepest ascent of the first step is the gradient of the rollout itself.
    z = latents().requires_grad_()
    (g,) = torch.autograd.grad(targets[0].read(foreign.rollout(z, 4)).sum(), z)
    assert g.abs().max() > 1e-4 and g.isfinite().all()


def test_a_world_that_needs_another_agent_says_so(foreign: Simulator[Any]) -> None:
    class Other(LSTM):
        def __init__(self) -> None:
            super().__init__()
            self.spec = EnvSpec(env_id="another", obs=SPEC.obs, action_names=SPEC.action_names, slots=1)

    with pytest.raises(UserError, match="the agent does not fit this world: its env_id are another's"):
        foreign.with_agent(Other())
