"""A planted world: linear-Gaussian, with an agent whose causes are known.

World   x' = A x + B onehot(a) + N eps,  obs = C x,  reward = r . x'
Agent   c' = W c + U C^-1 obs,  logits = P c,  value = v . c,  and h = R c

so every Jacobian has a closed form, and a method that names the wrong cause is wrong.  The agent's
directions c are hidden in a rotated state h, so no neuron is a direction.  Direction ``cause`` is read
by logits and value.  Direction ``nuisance`` is driven by a stimulus whose correlation with the
cause's is rho; it is perfectly decodable from h and has no effect on logits, value or any other direction.
Being its equal in every dynamic respect, only an intervention or a gradient tells them apart.

All matrices but the noise are dyadic rationals, so that their float32 and float64 copies are the same
numbers and "no effect" is a zero, not a rounding error.

X stimuli (the world's state, here also the observation's size), K directions, H = K neurons; other
axes as in core.contracts.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from core.contracts import (
    EnvSpec,
    Field,
    Intervention,
    SimState,
    Step,
    StepNoise,
    StepOut,
    UserError,
    apply_interventions,
    rollout as rollout_by_steps,
    straight_through,
)
from core.directions import Basis, fingerprint
from core.episodes import Episode

ENV_ID = "planted/linear"
DIRECTIONS = ("cause", "nuisance", "controlled", "memory", "waiting", "bystander_a", "bystander_b", "bystander_c")
CAUSE, NUISANCE, CONTROLLED, MEMORY, WAITING = range(5)
ACTION_NAMES = ("left", "wait", "right")
PERSISTENCE = 0.875  # of every stimulus: its autocorrelation at lag 1
SURE = -10.0  # log-standard-deviation of what one observation tells exactly


@dataclass(frozen=True, kw_only=True)
class PlantedOptions:
    """Which planted world."""

    rho: float = 0.8
    """correlation of the nuisance's stimulus with the cause's"""
    effect: float = 1.0
    """weight with which logits and value read the cause; 0 is a world without it"""
    noise: float = 1.0
    """standard deviation of the world's noise; 1 gives stimuli of variance 1, 0 a deterministic world"""
    horizon: int = 64
    """steps after which an episode is truncated"""
    hazard: float = 0.01
    """probability a step of ending, times the sigmoid of the controlled stimulus"""
    seed: int = 0
    """seed of the rotations of neurons and observation"""


@dataclass(frozen=True)
class Matrices:
    """A world and its agent as numbers, float64; x is the stimuli [X], c the directions [K]."""

    A_XX: np.ndarray
    B_XA: np.ndarray
    noise_XX: np.ndarray  # N, so that the noise has covariance N N'
    first_XX: np.ndarray  # the same of the first state of an episode
    C_XX: np.ndarray  # orthogonal
    W_KK: np.ndarray
    U_KX: np.ndarray
    policy_AK: np.ndarray
    value_K: np.ndarray
    reward_X: np.ndarray
    hazard_X: np.ndarray
    R_HK: np.ndarray  # orthogonal


def rotation(rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal [8, 8] matrix whose entries are multiples of 1/4, none above 1/2 in size."""
    h = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    block = np.kron(np.eye(2), h)
    across = block[[0, 1, 4, 5, 2, 3, 6, 7]]  # half of each block feeds half of the other

    def shuffle() -> np.ndarray:
        return np.eye(8)[rng.permutation(8)] * rng.choice([-1.0, 1.0], 8)

    out: np.ndarray = shuffle() @ block @ across @ shuffle()
    return out


@functools.lru_cache(maxsize=64)
def matrices(options: PlantedOptions) -> Matrices:
    """The numbers of a world.  Raises UserError on options that no world has."""
    if not -1 < options.rho < 1:
        raise UserError(f"planted world: rho {options.rho} is not between -1 and 1")
    if options.horizon < 1 or not 0 <= options.hazard <= 1 or options.noise < 0:
        raise UserError("planted world: needs horizon >= 1, hazard in [0, 1] and noise >= 0")
    size, rng = len(DIRECTIONS), np.random.default_rng(options.seed)
    covariance = np.eye(size)
    covariance[CAUSE, NUISANCE] = covariance[NUISANCE, CAUSE] = options.rho
    covariance[CONTROLLED, CONTROLLED] = 0.25  # the agent's pushes come on top
    first = np.linalg.cholesky(covariance)
    B_XA = np.zeros((size, len(ACTION_NAMES)))
    B_XA[CONTROLLED] = -0.25, 0.0, 0.25
    W_KK = 0.5 * np.eye(size)
    W_KK[MEMORY, MEMORY], W_KK[MEMORY, CAUSE] = 0.75, 0.25
    policy_AK = np.zeros((len(ACTION_NAMES), size))
    policy_AK[2, [CAUSE, CONTROLLED, MEMORY]] = options.effect, -0.5, 0.25
    policy_AK[0] = -policy_AK[2]
    policy_AK[1, WAITING] = 0.5
    value_K, reward_X, hazard_X = np.zeros(size), np.zeros(size), np.zeros(size)
    value_K[[CAUSE, CONTROLLED, MEMORY]] = options.effect, 0.5, 0.25
    reward_X[[CAUSE, CONTROLLED]] = 0.25, 0.25
    hazard_X[CONTROLLED] = 1.0
    out = Matrices(
        A_XX=PERSISTENCE * np.eye(size),
        B_XA=B_XA,
        noise_XX=options.noise * math.sqrt(1 - PERSISTENCE**2) * first,
        first_XX=first,
        C_XX=rotation(rng),
        W_KK=W_KK,
        U_KX=0.5 * np.eye(size),
        policy_AK=policy_AK,
        value_K=value_K,
        reward_X=reward_X,
        hazard_X=hazard_X,
        R_HK=rotation(rng),
    )
    for array in vars(out).values():
        array.setflags(write=False)
    return out


def spec_of(options: PlantedOptions, slots: int) -> EnvSpec:
    """The planted world from outside: one vector ``x`` float32 [X]."""
    return EnvSpec(
        env_id=ENV_ID,
        obs={"x": Field(shape=(len(DIRECTIONS),), dtype="float32")},
        action_names=ACTION_NAMES,
        slots=slots,
        options=asdict(options),
        gives_final_obs=True,
        can_snapshot=True,
    )


def _by_row(matrix: np.ndarray, x_BX: np.ndarray) -> np.ndarray:
    """x_BX @ matrix.T, but each row's bits do not depend on the batch it is in, as BLAS's may."""
    out: np.ndarray = (matrix * x_BX[:, None, :]).sum(-1)
    return out


class PlantedWorld:
    """``slots`` planted worlds.  Every slot draws from a generator of its own, which is part of its snapshot.

    truth: ``stimulus`` float32 [B, X], the world's state x.
    """

    def __init__(self, options: PlantedOptions, slots: int) -> None:
        self.options, self.spec, self._m = options, spec_of(options, slots), matrices(options)
        self._x = np.zeros((slots, len(DIRECTIONS)))
        self._age = np.zeros(slots, np.int64)
        self._rngs = [np.random.default_rng(0) for _ in range(slots)]
        self._ready = False

    def reset(self, seed: int) -> Step:
        self._rngs = [np.random.default_rng([seed, b]) for b in range(self.spec.slots)]
        self._ready = True
        self._begin(np.ones(self.spec.slots, bool))
        return self._show_unmoved()

    def _begin(self, where_B: np.ndarray) -> None:
        """A new episode in some slots."""
        slots = np.flatnonzero(where_B)
        if len(slots):
            draws = np.stack([self._rngs[b].standard_normal(self._x.shape[1]) for b in slots])
            self._x[slots] = _by_row(self._m.first_XX, draws)
            self._age[slots] = 0

    def step(self, action: np.ndarray) -> Step:
        if not self._ready:
            raise ValueError("reset or restore the world before stepping it")
        action = np.asarray(action)
        slots, m = self.spec.slots, self._m
        if action.shape != (slots,) or action.min() < 0 or action.max() >= self.spec.n_actions:
            raise ValueError(f"expected {slots} actions from 0 to {self.spec.n_actions - 1}, got {action!r}")
        eps = np.stack([rng.standard_normal(self._x.shape[1]) for rng in self._rngs])
        chance = np.array([rng.random() for rng in self._rngs])
        self._x = _by_row(m.A_XX, self._x) + m.B_XA.T[action] + _by_row(m.noise_XX, eps)
        self._age = self._age + 1
        reward = (self._x * m.reward_X).sum(-1).astype(np.float32)
        terminated = chance < self.options.hazard / (1 + np.exp(-(self._x * m.hazard_X).sum(-1)))
        truncated = ~terminated & (self._age >= self.options.horizon)
        final_obs, final_truth = self._look()
        self._begin(terminated | truncated)
        obs, truth = self._look()
        return Step(
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            is_first=self._age == 0,
            final_obs=final_obs,
            truth=truth,
            final_truth=final_truth,
        )

    def _look(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Fresh arrays of observation and truth."""
        return {"x": _by_row(self._m.C_XX, self._x).astype(np.float32)}, {"stimulus": self._x.astype(np.float32)}

    def _show_unmoved(self) -> Step:
        obs, truth = self._look()
        none = np.zeros(self.spec.slots, bool)
        reward = np.zeros(self.spec.slots, np.float32)
        return Step(obs, reward, none, none.copy(), self._age == 0, truth=truth)

    def snapshot(self) -> tuple[bytes, ...]:
        if not self._ready:
            raise ValueError("reset or restore the world before taking a snapshot")
        return tuple(
            struct.pack("<q", int(age)) + x.tobytes() + json.dumps(rng.bit_generator.state).encode()
            for age, x, rng in zip(self._age, self._x, self._rngs, strict=True)
        )

    def restore(self, states: Sequence[bytes]) -> Step:
        """Works before a reset too.  A restored slot goes on with the restored generator."""
        if len(states) != self.spec.slots:
            raise ValueError(f"{len(states)} states for {self.spec.slots} slots")
        end = 8 + self._x[0].nbytes
        self._age = np.array([struct.unpack("<q", s[:8])[0] for s in states], np.int64)
        self._x = np.stack([np.frombuffer(s[8:end], np.float64) for s in states])
        self._rngs = [np.random.default_rng() for _ in states]
        for rng, state in zip(self._rngs, states, strict=True):
            rng.bit_generator.state = json.loads(state[end:])
        self._ready = True
        return self._show_unmoved()

    def close(self) -> None:
        """There is nothing to release."""


class PlantedAgent(nn.Module):
    """Keeps core.contracts.Agent: a linear recurrent agent.  Its weights are buffers, known and not to be trained."""

    W_HH: Tensor
    U_HX: Tensor
    policy_AH: Tensor
    value_H: Tensor
    h_initial: Tensor

    def __init__(self, options: PlantedOptions | None = None) -> None:
        super().__init__()
        self.options = PlantedOptions() if options is None else options
        m = matrices(self.options)
        self.spec, self.obs_name = spec_of(self.options, 1), "x"
        self.hidden_size, self.n_actions = len(m.R_HK), len(ACTION_NAMES)
        self.register_buffer("W_HH", _tensor(m.R_HK @ m.W_KK @ m.R_HK.T))
        self.register_buffer("U_HX", _tensor(m.R_HK @ m.U_KX @ m.C_XX.T))
        self.register_buffer("policy_AH", _tensor(m.policy_AK @ m.R_HK.T))
        self.register_buffer("value_H", _tensor(m.value_K @ m.R_HK.T))
        self.register_buffer("h_initial", torch.zeros(self.hidden_size))

    def initial(self, batch: int) -> Tensor:
        return self.h_initial.expand(batch, -1)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return obs[self.obs_name].to(self.U_HX.dtype) @ self.U_HX.T

    def advance(self, e_BE: Tensor, h_BH: Tensor, is_first_B: Tensor) -> Tensor:
        previous = torch.where(is_first_B[:, None], self.initial(h_BH.shape[0]), h_BH)
        return previous @ self.W_HH.T + e_BE

    def heads(self, h_BH: Tensor) -> tuple[Tensor, Tensor]:
        return h_BH @ self.policy_AH.T, h_BH @ self.value_H


class PlantedSimulator(nn.Module):
    """Keeps core.contracts.Simulator: the planted world itself, differentiable, exact (``.double()`` for checks).

    A latent is z = (first state x [X], hidden state before it [H]).  ``d`` is the world's whole state x,
    so there is no further s.  Noise: ``s_BS`` [B, X+1] standard normal (the state's noise, and the chance of
    ending), ``action_BA`` Gumbel.  Without noise the world takes its mean and ends where ending is
    likelier than not.
    """

    A_XX: Tensor
    B_XA: Tensor
    noise_XX: Tensor
    C_XX: Tensor
    reward_X: Tensor
    hazard_X: Tensor

    def __init__(self, options: PlantedOptions | None = None) -> None:
        super().__init__()
        self.options = PlantedOptions() if options is None else options
        self.agent = PlantedAgent(self.options)
        self.spec, self.initial_frames = self.agent.spec, 1
        m = matrices(self.options)
        for name in ("A_XX", "B_XA", "noise_XX", "C_XX", "reward_X", "hazard_X"):
            self.register_buffer(name, _tensor(getattr(m, name)))
        self.state_size = len(DIRECTIONS)
        self.latent_size = self.state_size + self.agent.hidden_size
        self.eval()

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and log-standard-deviation of z from one observation [B, 1, X]: it tells x exactly and
        nothing of the hidden state before it, which is taken to be initial, give or take 1."""
        x_BIX = self._state_of(obs)
        if x_BIX.shape[1] != self.initial_frames:
            raise ValueError(f"infer takes {self.initial_frames} observation, got {x_BIX.shape[1]}")
        x_BX = x_BIX[:, 0]
        mean = torch.cat([x_BX, self.agent.initial(len(x_BX))], -1)
        log_std = torch.cat([torch.full_like(x_BX, SURE), torch.zeros_like(self.agent.initial(len(x_BX)))], -1)
        return mean, log_std

    def _state_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Observations [..., X] -> stimuli [..., X]; C is orthogonal."""
        return obs["x"].to(self.C_XX.dtype) @ self.C_XX

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """Every vector is a legal latent."""
        return z_BZ

    def start(self, z_BZ: Tensor) -> SimState:
        x, h = z_BZ.split([self.state_size, self.agent.hidden_size], -1)
        alive = torch.ones(len(z_BZ), dtype=torch.bool, device=z_BZ.device)
        return SimState(x, x[:, :0], h, z_BZ.new_zeros(len(z_BZ), self.agent.n_actions), alive, 0)

    def step(
        self,
        state: SimState,
        action: Tensor | None = None,
        noise: StepNoise | None = None,
        intervene: Sequence[Intervention] = (),
        env_grads: bool = True,
    ) -> tuple[SimState, StepOut]:
        if state.t == 0:  # the latent is the first state itself: nothing leads to it
            x, terminal, alive = state.d_BD, torch.zeros_like(state.d_BD[:, 0]), state.alive_B
        else:
            last = state.action_BA if env_grads else state.action_BA.detach()
            x = self._transition(state.d_BD, last)
            if noise is not None:
                x = x + noise.s_BS[:, :-1] @ self.noise_XX.T
            terminal = self.options.hazard * torch.sigmoid(x @ self.hazard_X)
            chance = 0.5 if noise is None else torch.special.ndtr(noise.s_BS[:, -1])
            alive = state.alive_B & (terminal <= chance)
        obs = {"x": x @ self.C_XX.T}
        h = self.agent.advance(self.agent.encode(obs), state.h_BH, torch.zeros_like(alive))
        h = apply_interventions(intervene, h, state.t)
        logits, value = self.agent.heads(h)
        index, one_hot = straight_through(logits, None if noise is None else noise.action_BA)
        if action is not None:
            index, one_hot = action, nn.functional.one_hot(action, logits.shape[-1]).to(logits.dtype)
        out = StepOut(obs, x @ self.reward_X, terminal, x, h, logits, value, index, alive)
        return SimState(x, state.s_BS, h, one_hot, alive, state.t + 1), out

    def _transition(self, x_BX: Tensor, action_BA: Tensor) -> Tensor:
        return x_BX @ self.A_XX.T + action_BA @ self.B_XA.T

    rollout = rollout_by_steps

    def draw_noise(self, batch: int, generator: torch.Generator) -> StepNoise:
        like = {"generator": generator, "dtype": self.A_XX.dtype, "device": self.A_XX.device}
        s = torch.randn(batch, self.state_size + 1, **like)  # type: ignore[call-overload]
        exponential = torch.empty(batch, self.agent.n_actions, dtype=self.A_XX.dtype, device=self.A_XX.device)
        return StepNoise(s, -exponential.exponential_(generator=generator).log())

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """World states d_BLD along recorded observations [B, L, X]: read off where one is seen, foretold
        from the action before where not."""
        x_BLX = self._state_of(obs)
        one_hot = nn.functional.one_hot(action_BL, self.agent.n_actions).to(x_BLX.dtype)
        states = [x_BLX[:, 0]]  # the observation a window starts from is always there
        for i in range(1, x_BLX.shape[1]):
            foretold = self._transition(states[-1], one_hot[:, i - 1])
            states.append(torch.where(seen_BL[:, i, None], x_BLX[:, i], foretold))
        return torch.stack(states, 1)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.tensor(array, dtype=torch.float32)


@dataclass(frozen=True)
class PlantedTruth:
    """What there is to be found.  Matrices [K, K] have the source first: entry (i, j) is i -> j."""

    options: PlantedOptions
    basis: Basis  # the agent's directions
    names: tuple[str, ...]
    causal: int
    nuisance: int
    logits_AK: np.ndarray  # d logits / d c
    value_K: np.ndarray  # d value / d c
    in_agent_KK: np.ndarray  # bool, edges at lag 1 inside the agent (its own past excepted)
    through_world_KK: np.ndarray  # bool, edges at lag 1 by way of the action

    def jacobian(self, probabilities_TA: np.ndarray, env_grads: bool = True) -> np.ndarray:
        """d c_j(T) / d c_i(0), float64 [K, K], along T steps whose actions had these probabilities.

        The action's gradient is that of the softmax (straight-through), so with ``env_grads`` the
        Jacobian depends on the probabilities; without, it is W^T whatever they are.
        """
        m = matrices(self.options)
        of_x, of_c = np.zeros((len(m.A_XX), len(m.W_KK))), np.eye(len(m.W_KK))
        for p in np.asarray(probabilities_TA, np.float64):
            slope_AA = np.diag(p) - np.outer(p, p)
            pushed = m.B_XA @ slope_AA @ m.policy_AK @ of_c if env_grads else 0.0
            of_x = m.A_XX @ of_x + pushed
            of_c = m.W_KK @ of_c + m.U_KX @ of_x
        return of_c.T


def truth(options: PlantedOptions | None = None, dtype: torch.dtype = torch.float32) -> PlantedTruth:
    """The planted truth of a world; the basis belongs to ``PlantedAgent(options)`` in float32."""
    options = PlantedOptions() if options is None else options
    m = matrices(options)
    R = torch.tensor(m.R_HK, dtype=dtype)
    size = len(m.R_HK)
    basis = Basis(
        "planted",
        torch.zeros(size, dtype=dtype),
        torch.ones(size, dtype=dtype),
        R,
        R.T.contiguous(),
        agent=fingerprint(PlantedAgent(options)),
        facts={"names": list(DIRECTIONS)},
    )
    # A change of all logits alike changes no action.
    steers_AK = m.policy_AK - m.policy_AK.mean(0)
    moved_XK = (np.abs(m.B_XA).sum(1)[:, None] > 0) & (np.abs(steers_AK).sum(0)[None] > 0)
    in_agent = (m.W_KK != 0) & ~np.eye(size, dtype=bool)
    return PlantedTruth(
        options=options,
        basis=basis,
        names=DIRECTIONS,
        causal=CAUSE,
        nuisance=NUISANCE,
        logits_AK=m.policy_AK,
        value_K=m.value_K,
        in_agent_KK=in_agent.T,
        through_world_KK=((np.abs(m.U_KX) @ moved_XK) > 0).T,
    )


def make_planted(spec: EnvSpec, slots: int) -> PlantedWorld:
    """The world of a spec again.  Raises UserError for a spec of another one."""
    if spec.env_id != ENV_ID:
        raise UserError(f"no planted world {spec.env_id!r}; there is: {ENV_ID}")
    return PlantedWorld(PlantedOptions(**spec.options), slots)


@torch.no_grad()
def record_planted(
    options: PlantedOptions | None = None, episodes: int = 32, steps: int = 32, seed: int = 0
) -> list[Episode]:
    """``episodes`` whole real episodes of at most ``steps`` transitions; the agent samples its actions.

    The small recorder of tests and examples: an episode a slot, so that none is favoured.
    """
    options = replace(PlantedOptions() if options is None else options, horizon=steps)
    agent, world = PlantedAgent(options), PlantedWorld(options, episodes)
    rng = np.random.default_rng([seed, 1])
    step, h_BH = world.reset(seed), agent.initial(episodes)
    rows: list[dict[str, np.ndarray]] = []
    endings: dict[int, tuple[int, bool]] = {}
    finals: dict[int, dict[str, np.ndarray]] = {}
    while len(endings) < episodes:
        e_BE = agent.encode({"x": torch.from_numpy(step.obs["x"])})
        h_BH = agent.advance(e_BE, h_BH, torch.from_numpy(step.is_first))
        logits, value = agent.heads(h_BH)
        action = (logits.numpy() + rng.gumbel(size=logits.shape)).argmax(-1).astype(np.int64)
        shown = {"x": step.obs["x"], "stimulus": step.truth["stimulus"], "h": h_BH.numpy(), "value": value.numpy()}
        step = world.step(action)
        rows.append({**shown, "logits": logits.numpy(), "action": action, "reward": step.reward})
        if step.final_obs is None or step.final_truth is None:
            raise ValueError("the planted world shows every last observation")
        e_BE = agent.encode({"x": torch.from_numpy(step.final_obs["x"])})
        last_BH = agent.advance(e_BE, h_BH, torch.zeros(episodes, dtype=torch.bool))
        last = {**step.final_obs, **step.final_truth, "h": last_BH.numpy(), "value": agent.heads(last_BH)[1].numpy()}
        for b in np.flatnonzero(step.terminated | step.truncated):
            if int(b) not in endings:
                endings[int(b)] = (len(rows), bool(step.terminated[b]))
                finals[int(b)] = {k: v[b] for k, v in last.items()}
    out = []
    for b in range(episodes):
        length, terminated = endings[b]
        column = {k: np.stack([row[k][b] for row in rows[:length]]) for k in rows[0]}
        column |= {k: np.concatenate([column[k], finals[b][k][None]]) for k in finals[b]}
        out.append(
            Episode(
                obs={"x": column["x"]},
                truth={"stimulus": column["stimulus"]},
                **{k: column[k] for k in ("h", "value", "action", "logits", "reward")},
                terminated=terminated,
                truncated=not terminated,
                meta={"seed": seed, "slot": b},
            )
        )
    return out
