"""Planted worlds: agents whose causes are known, so that a method that names the wrong one is wrong.

World   x' = A x + B onehot(a) + N eps,  obs = C x,  reward = r . x'
Agent   c' = W c + U C^-1 obs + products,  logits = P c,  value = v . c + products,  and h = R c

x are stimuli, c the agent's directions, hidden in a rotated state h, so that no neuron is a direction.  A
*product* is a direction times another one: the one gates the other.  (Of two redundant directions it is the larger
one instead.)  A *switch* is a stimulus that is 1 or -1 and stays what it is but for rare flips: a behaviour.  What
differs from kind to kind is which of these numbers are not zero:

confounded  ``cause`` is read by logits and value; ``nuisance`` is driven by a stimulus whose correlation with the
            cause's is rho, and has no effect on anything.  It is a direction of h, so that its coordinate can be read
            off exactly (its stimulus, of which it is a running mean, not quite).  The cause's equal in every
            dynamic respect, only an intervention or a gradient tells them apart.
linear      a chain of effects of both signs; actions do nothing, so Jacobians, lagged correlations and
            interventions have closed forms.  Its noise is sparse, so that independent components exist.
mediated    two directions act on a third by way of the action alone.
delayed     an effect that passes through relays and arrives after exactly four steps.
gated       an effect that is there in one behaviour and not in the other.
even        a direction acts by its square, so that raising and lowering it do the same.
redundant   two directions carry one cause, and the larger of them counts: lowering either alone does nothing,
            lowering both does.  With ``overlap`` below 1 they are redundant in part.
null        nothing acts on anything; directions are autocorrelated.  With ``fickle`` one direction acts on another
            and on the value, as strongly as the episode's mood has it: no effect on average, unless ``lean``.  With
            ``tail`` moods are lognormal: few episodes hold most of the effect.
mixture     four behaviours whose directions are a Gaussian mixture with known labels.
pixels      the confounded world seen as 64 x 64 frames: an object per stimulus, whose brightness shows it.

All matrices but the noise and what the pixel world reads off its frames are dyadic rationals, so that their float32
and float64 copies are the same numbers and "no effect" is a zero, not a rounding error; among pixels it is
one of 1e-8.  What is to be found is in ``envs.planted_truth``.

X stimuli (the world's state), K directions, H = K neurons, G products, F = 64 * 64 * 3 pixels; other
axes as in core.contracts.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from core.contracts import (
    EnvSpec,
    Field,
    Obs,
    Shown,
    Step,
    UserError,
)
from core.episodes import Episode
from core.roll import Acted, Simulator, act

Kind = Literal[
    "confounded", "linear", "mediated", "delayed", "gated", "even", "redundant", "null", "mixture", "pixels",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
SIZE = 8  # stimuli, directions and neurons of every kind
ACTION_NAMES = ("left", "wait", "right")
PERSISTENCE = 0.875  # of a stimulus that persists: its autocorrelation at lag 1
SURE = -10.0  # log-standard-deviation of what one observation tells exactly
SPARSE_SHARE = 1 / 16  # of the draws of sparse noise are not 0
SEPARATION = 2.5  # of two behaviours of the mixture, half the distance of their means in standard deviations
DELAY = 4  # steps of the delayed effect
BRIGHTEST = 0.999  # |tanh(x / 2)| read off a frame at most, whatever rounding says


@dataclass(frozen=True, kw_only=True)
class PlantedOptions:
    """Which planted world."""

    kind: Kind = "confounded"
    """which causal graph"""
    rho: float = 0.8
    """correlation of the nuisance's stimulus with the cause's (confounded, pixels)"""
    effect: float = 1.0
    """weight of the planted effects; 0 is a world without them"""
    fickle: float = 0.0
    """weight of an effect that every episode multiplies by a standard normal draw of its own, its mood (null)"""
    lean: float = 0.0
    """what is added to that draw; 0: no effect on average (null)"""
    tail: float = 0.0
    """log-standard deviation of the moods, which are then lognormal with mean 1 (``lean`` -1: no effect on average)"""
    overlap: float = 1.0
    """correlation of the two stimuli that redundant directions read; 1: they read the same (redundant)"""
    dwell: int = 64
    """steps that a behaviour lasts on average; 0: the whole episode (gated, mixture)"""
    noise: float = 1.0
    """standard deviation of the world's noise; 1 gives stimuli of variance 1, 0 a deterministic world"""
    horizon: int = 64
    """steps after which an episode is truncated"""
    hazard: float = 0.01
    """probability a step of ending, times a sigmoid (of the controlled stimulus, where there is one)"""
    seed: int = 0
    """seed of the rotations of neurons and observation, and of where objects stand"""


@dataclass(frozen=True)
class Product:
    """Direction ``source`` times ``gate`` times ``weight``, added to the next ``target`` (None: to the value)."""

    source: int
    gate: int
    target: int | None
    weight: float
    larger: bool = False  # the larger of the two in place of their product


@dataclass(frozen=True)
class Matrices:
    """A world and its agent as numbers, float64; x is the stimuli [X], c the directions [K]."""

    names: tuple[str, ...]  # of the directions
    causal: int  # a direction that acts, the one to find first; -1: none does
    nuisance: int  # a direction that does not
    A_XX: np.ndarray
    B_XA: np.ndarray
    noise_XX: np.ndarray  # N, so that the noise has covariance N N'
    first_XX: np.ndarray  # the same of the first state of an episode
    W_KK: np.ndarray
    U_KX: np.ndarray
    policy_AK: np.ndarray
    value_K: np.ndarray
    reward_X: np.ndarray
    hazard_X: np.ndarray
    flip_X: np.ndarray  # probability a step that a switch flips; NaN: not a switch
    flip_below_X: np.ndarray  # it does so where a standard normal is below this
    behaviour_switches: tuple[int, ...] = ()  # the switches whose state is the behaviour
    products: tuple[Product, ...] = ()
    sparse: bool = False  # the noise of the steps; the first state is Gaussian always
    C_XX: np.ndarray = field(default_factory=lambda: np.eye(SIZE))  # orthogonal
    R_HK: np.ndarray = field(default_factory=lambda: np.eye(SIZE))  # orthogonal


def rotation(rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal [8, 8] matrix whose entries are multiples of 1/4, none above 1/2 in size."""
    h = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    block = np.kron(np.eye(2), h)
    across = block[[0, 1, 4, 5, 2, 3, 6, 7]]  # half of each block feeds half of the other

    def shuffle() -> np.ndarray:
        return np.eye(8)[rng.permutation(8)] * rng.choice([-1.0, 1.0], 8)

    out: np.ndarray = shuffle() @ block @ across @ shuffle()
    return out


def _nothing(persistence: float, memory: float) -> dict[str, np.ndarray]:
    """A world in which stimuli and directions persist, every direction has a stimulus, and nothing acts on anything."""
    shape = {"B_XA": (SIZE, 3), "policy_AK": (3, SIZE), "value_K": (SIZE,), "reward_X": (SIZE,), "hazard_X": (SIZE,)}
    eye = np.eye(SIZE)
    return {name: np.zeros(size) for name, size in shape.items()} | {
        "A_XX": persistence * eye,
        "first_XX": eye.copy(),
        "W_KK": memory * eye,
        "U_KX": (1 - memory) * eye,
        "flip_X": np.full(SIZE, np.nan),
    }


def _confounded(options: PlantedOptions) -> Matrices:
    cause, nuisance, controlled, memory, waiting = range(5)
    m = _nothing(PERSISTENCE, 0.5)
    covariance = np.eye(SIZE)
    covariance[cause, nuisance] = covariance[nuisance, cause] = options.rho
    covariance[controlled, controlled] = 0.25  # the agent's pushes come on top
    m["first_XX"] = np.linalg.cholesky(covariance)
    m["B_XA"][controlled] = -0.25, 0.0, 0.25
    m["W_KK"][memory, memory], m["W_KK"][memory, cause] = 0.75, 0.25
    m["policy_AK"][2, [cause, controlled, memory]] = options.effect, -0.5, 0.25
    m["policy_AK"][0] = -m["policy_AK"][2]
    m["policy_AK"][1, waiting] = 0.5
    m["value_K"][[cause, controlled, memory]] = options.effect, 0.5, 0.25
    m["reward_X"][[cause, controlled]] = 0.25, 0.25
    m["hazard_X"][controlled] = 1.0
    names = ("cause", "nuisance", "controlled", "memory", "waiting", "bystander_a", "bystander_b", "bystander_c")
    return _finish(options, names, cause, nuisance, m)


def _pixels(options: PlantedOptions) -> Matrices:
    """The confounded world, with a value that one object alone tells."""
    m = _confounded(options)
    controlled, memory, waiting = 2, 3, 4
    policy_AK, value_K, U_KX = m.policy_AK.copy(), m.value_K.copy(), m.U_KX.copy()
    policy_AK[1, waiting] = 0.0
    value_K[controlled] = 0.0
    U_KX[memory, memory] = 0.0  # it remembers the cause and sees nothing itself
    return replace(m, policy_AK=policy_AK, value_K=value_K, U_KX=U_KX)


def _linear(options: PlantedOptions) -> Matrices:
    m = _nothing(0.0, 0.0)
    for source, target, weight in ((0, 1, 0.5), (1, 2, -0.5), (2, 3, 0.75), (4, 5, -0.5)):
        m["W_KK"][target, source] = weight * options.effect
    m["value_K"][[0, 3]] = 1.0, -0.5
    m["policy_AK"][2, 0], m["policy_AK"][0, 0] = 1.0, -1.0
    m["reward_X"][0] = 0.25
    names = ("source", "second", "third", "fourth", "other", "other_end", "bystander_a", "bystander_b")
    return _finish(options, names, 0, 6, m, sparse=True)


def _mediated(options: PlantedOptions) -> Matrices:
    driver, pushed, brake = range(3)
    m = _nothing(PERSISTENCE, 0.5)
    m["first_XX"][pushed, pushed] = 0.5
    m["B_XA"][pushed] = -0.5, 0.0, 0.5
    m["policy_AK"][2, [driver, brake]] = options.effect, -0.5 * options.effect
    m["policy_AK"][0] = -m["policy_AK"][2]
    m["value_K"][pushed] = 1.0
    m["reward_X"][pushed] = 0.25
    names = ("driver", "pushed", "brake", *(f"bystander_{c}" for c in "abcde"))
    return _finish(options, names, driver, 3, m)


def _delayed(options: PlantedOptions) -> Matrices:
    m = _nothing(0.0, 0.0)
    for relay in range(DELAY):
        m["W_KK"][relay + 1, relay] = 1.0 if relay else options.effect
        if relay:
            m["U_KX"][relay, relay] = 0.0  # a relay holds what it was given and nothing else
    m["value_K"][DELAY] = 1.0
    m["policy_AK"][2, DELAY], m["policy_AK"][0, DELAY] = 0.5, -0.5
    m["reward_X"][0] = 0.25
    names = ("source", "relay_a", "relay_b", "relay_c", "target", "bystander_a", "bystander_b", "bystander_c")
    return _finish(options, names, 0, 5, m, sparse=True)


def _gated(options: PlantedOptions) -> Matrices:
    source, target, context, other, other_end = range(5)
    m = _nothing(0.5, 0.5)
    _make_switch(m, context, options.dwell)
    m["W_KK"][context, context], m["U_KX"][context, context] = 0.0, 1.0
    # Half of the effect is always there; a product with the context's 1 or -1 doubles it or takes it away.
    m["W_KK"][target, source] = 0.5 * options.effect
    m["W_KK"][other_end, other] = -0.5 * options.effect
    m["value_K"][[target, other_end]] = 1.0, 0.5
    m["policy_AK"][2, target], m["policy_AK"][0, target] = 0.5, -0.5
    m["reward_X"][source] = 0.25
    names = ("source", "target", "context", "other", "other_end", "bystander_a", "bystander_b", "bystander_c")
    gate = Product(source, context, target, 0.5 * options.effect)
    return _finish(options, names, source, 5, m, behaviour_switches=(context,), products=(gate,))


def _even(options: PlantedOptions) -> Matrices:
    source, target = 0, 1
    m = _nothing(PERSISTENCE, 0.5)
    m["value_K"][target] = 1.0
    m["policy_AK"][2, target], m["policy_AK"][0, target] = 0.25, -0.25
    m["reward_X"][2] = 0.25
    names = ("source", "target", *(f"bystander_{c}" for c in "abcdef"))
    return _finish(options, names, source, 3, m, products=(Product(source, source, target, 0.5 * options.effect),))


def _redundant(options: PlantedOptions) -> Matrices:
    one, other, target = range(3)
    m = _nothing(PERSISTENCE, 0.5)
    m["first_XX"][other, [one, other]] = options.overlap, math.sqrt(1 - options.overlap**2)
    m["W_KK"][target, target] = m["U_KX"][target, target] = 0.25
    m["value_K"][target] = 1.0
    m["policy_AK"][2, target], m["policy_AK"][0, target] = 0.25, -0.25
    m["reward_X"][3] = 0.25
    names = ("one", "other", "target", *(f"bystander_{c}" for c in "abcde"))
    return _finish(options, names, one, 4, m, products=(Product(one, other, target, options.effect, larger=True),))


def _null(options: PlantedOptions) -> Matrices:
    fickle, target, mood = 0, 1, SIZE - 1
    m = _nothing(PERSISTENCE, 0.5)
    m["A_XX"][mood, mood] = m["U_KX"][mood, mood] = 1.0  # an episode has one mood
    m["W_KK"][mood, mood] = 0.0
    products: tuple[Product, ...] = ()
    if options.fickle:
        products = (Product(fickle, mood, target, options.fickle), Product(fickle, mood, None, options.fickle))
        m["W_KK"][target, fickle] = m["value_K"][fickle] = options.lean * options.fickle
    names = (*(f"bystander_{c}" for c in "abcdefg"), "mood")
    return _finish(options, names, -1, 2, m, products=products)


def _mixture(options: PlantedOptions) -> Matrices:
    m = _nothing(0.0, 0.0)
    for switch in (0, 1):
        _make_switch(m, switch, options.dwell)
        m["U_KX"][switch, switch] = SEPARATION * options.effect
        m["U_KX"][switch, switch + 6] = 1.0  # the stimulus that is this direction's noise
        m["U_KX"][switch + 6, switch + 6] = 0.0
        m["W_KK"][switch + 6, switch + 4] = 1.0  # what another direction was a step ago
    m["value_K"][0] = 0.5
    m["policy_AK"][2, 1], m["policy_AK"][0, 1] = 0.25, -0.25
    m["reward_X"][2] = 0.25
    names = ("first", "second", "noise_a", "noise_b", "noise_c", "noise_d", "earlier_c", "earlier_d")
    return _finish(options, names, 0, 2, m, behaviour_switches=(0, 1))


def _make_switch(m: dict[str, np.ndarray], stimulus: int, dwell: int) -> None:
    m["A_XX"][stimulus, stimulus] = m["first_XX"][stimulus, stimulus] = 0.0
    m["flip_X"][stimulus] = 1 / dwell if dwell else 0.0


def _finish(
    options: PlantedOptions,
    names: tuple[str, ...],
    causal: int,
    nuisance: int,
    m: dict[str, np.ndarray],
    *,
    behaviour_switches: tuple[int, ...] = (),
    products: tuple[Product, ...] = (),
    sparse: bool = False,
) -> Matrices:
    """Noise that keeps the variance of the first state (pushes apart)."""
    from scipy.special import ndtri

    persistence = m["A_XX"].diagonal()
    flips = np.nan_to_num(m["flip_X"]) if options.noise else np.zeros(SIZE)
    return Matrices(
        names=names, causal=causal, nuisance=nuisance,
        behaviour_switches=behaviour_switches, products=products, sparse=sparse,
        noise_XX=options.noise * np.sqrt(1 - persistence**2)[:, None] * m["first_XX"],
        flip_below_X=ndtri(flips), **m,
    )  # fmt: skip


BUILDERS = {
    "confounded": _confounded, "linear": _linear, "mediated": _mediated, "delayed": _delayed,
    "gated": _gated, "even": _even, "redundant": _redundant, "null": _null, "mixture": _mixture, "pixels": _pixels,
}  # fmt: skip


@functools.lru_cache(maxsize=256)
def matrices(options: PlantedOptions) -> Matrices:
    """The numbers of a world.  Raises UserError on options that no world has."""
    if options.kind not in KINDS:
        raise UserError(f"no planted world of kind {options.kind!r}; there are: {', '.join(KINDS)}")
    if not -1 < options.rho < 1:
        raise UserError(f"planted world: rho {options.rho} is not between -1 and 1")
    if not 0 <= options.overlap <= 1 or options.tail < 0:
        raise UserError(f"planted world: needs overlap in [0, 1], not {options.overlap}, and tail >= 0")
    if options.horizon < 1 or not 0 <= options.hazard <= 1 or min(options.noise, options.dwell) < 0:
        raise UserError("planted world: needs horizon >= 1, hazard in [0, 1], dwell >= 0 and noise >= 0")
    rng = np.random.default_rng(options.seed)
    out = replace(BUILDERS[options.kind](options), C_XX=rotation(rng), R_HK=rotation(rng))
    for array in vars(out).values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return out


@dataclass(frozen=True)
class Scene:
    """How the pixel world looks: frame = base + sum over objects of tanh(x / 2) * template."""

    base_F: np.ndarray
    template_XF: np.ndarray  # one object each, nowhere overlapping
    mask_XHW: np.ndarray  # bool [X, 64, 64], where the object is

    def show(self, x_BX: np.ndarray) -> np.ndarray:
        """Stimuli [B, X] -> frames uint8 [B, 64, 64, 3].  No object hides another: each pixel shows one at most."""
        owner_F = np.abs(self.template_XF).argmax(0)
        frames = self.base_F + np.tanh(x_BX / 2)[:, owner_F] * self.template_XF.sum(0)
        out: np.ndarray = np.round(255 * frames).astype(np.uint8).reshape(-1, 64, 64, 3)
        return out

    @property
    def decode_XF(self) -> np.ndarray:
        """Frame - base -> tanh(x / 2)."""
        out: np.ndarray = self.template_XF / (self.template_XF**2).sum(1, keepdims=True)
        return out


@functools.lru_cache(maxsize=64)
def scene(options: PlantedOptions) -> Scene:
    """Objects of several sizes and colours in front of a chequered wall, placed by the seed."""
    rng = np.random.default_rng([options.seed, 1])
    y, x = np.mgrid[:64, :64]
    base = np.repeat(np.where((x // 8 + y // 8) % 2, 0.4375, 0.5625)[..., None], 3, axis=2)
    colours = np.array([[r, g, b] for r in (1, -1) for g in (1, -1) for b in (1, -1)]) * 0.375
    template, mask = np.zeros((SIZE, 64, 64, 3)), np.zeros((SIZE, 64, 64), bool)
    sizes = rng.permutation([6, 7, 8, 9, 10, 11, 12, 13])
    for i, cell in enumerate(rng.permutation(16)[:SIZE]):  # of a grid of 4 x 4 cells of 16 pixels
        top, left = (16 * int(c) + int(rng.integers(16 - sizes[i] + 1)) for c in divmod(int(cell), 4))
        mask[i, top : top + sizes[i], left : left + sizes[i]] = True
        template[i, mask[i]] = colours[i]
    return Scene(base.ravel(), template.reshape(SIZE, -1), mask)


def shocks(normal: np.ndarray, sparse: bool) -> np.ndarray:
    """Standard normal draws -> the world's noise, of mean 0 and variance 1; sparse: all but SPARSE_SHARE are 0."""
    if not sparse:
        return normal
    edge, scale = _sparse_shape()
    out: np.ndarray = (normal - normal.clip(-edge, edge)) * scale
    return out


@functools.lru_cache(maxsize=1)
def _sparse_shape() -> tuple[float, float]:
    """Where to cut a standard normal so that SPARSE_SHARE of it is left, and the scale that gives variance 1."""
    from scipy.stats import norm

    edge = float(norm.isf(SPARSE_SHARE / 2))
    variance = 2 * ((1 + edge**2) * norm.sf(edge) - edge * norm.pdf(edge))
    return edge, float(1 / math.sqrt(variance))


def spec_of(options: PlantedOptions, slots: int) -> EnvSpec:
    """The planted world from outside: one vector ``x`` float32 [X], or ``frames`` uint8 [64, 64, 3]."""
    vector = Field(shape=(SIZE,), dtype="float32", kind="real")
    frames = Field(shape=(64, 64, 3), dtype="uint8", kind="image")
    return EnvSpec(
        env_id=f"planted/{options.kind}",
        obs={"frames": frames} if options.kind == "pixels" else {"x": vector},
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

    truth: ``stimulus`` float32 [B, X], the world's state x; ``behaviour`` int64 [B] where there are several.
    """

    def __init__(self, options: PlantedOptions, slots: int) -> None:
        self.options, self.spec, self._m = options, spec_of(options, slots), matrices(options)
        self._switch = ~np.isnan(self._m.flip_X)
        self._x = np.zeros((slots, SIZE))
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
            normal = np.stack([self._rngs[b].standard_normal(SIZE) for b in slots])
            moving = _by_row(self._m.first_XX, normal)
            if self.options.kind == "null" and (tail := self.options.tail):
                moving[:, -1] = np.exp(tail * normal[:, -1] - tail**2 / 2)  # the mood
            self._x[slots] = np.where(self._switch, np.where(normal < 0, -1.0, 1.0), moving)
            self._age[slots] = 0

    def step(self, action: np.ndarray) -> Step:
        if not self._ready:
            raise ValueError("reset or restore the world before stepping it")
        action = np.asarray(action)
        slots, m = self.spec.slots, self._m
        if action.shape != (slots,) or action.min() < 0 or action.max() >= self.spec.n_actions:
            raise ValueError(f"expected {slots} actions from 0 to {self.spec.n_actions - 1}, got {action!r}")
        normal = np.stack([rng.standard_normal(SIZE) for rng in self._rngs])
        chance = np.array([rng.random() for rng in self._rngs])
        moved = _by_row(m.A_XX, self._x) + m.B_XA.T[action] + _by_row(m.noise_XX, shocks(normal, m.sparse))
        self._x = np.where(self._switch, np.where(normal < m.flip_below_X, -self._x, self._x), moved)
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
        truth: dict[str, np.ndarray] = {"stimulus": self._x.astype(np.float32)}
        if self._m.behaviour_switches:
            truth["behaviour"] = behaviour_of(self.options, self._x)
        if self.options.kind == "pixels":
            return {"frames": scene(self.options).show(self._x)}, truth
        return {"x": _by_row(self._m.C_XX, self._x).astype(np.float32)}, truth

    def _show_unmoved(self) -> Step:
        obs, truth = self._look()
        return Step.unmoved(obs, self._age == 0, truth)

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

    def edited(self, states: Sequence[bytes], name: str, value: float) -> tuple[bytes, ...]:
        """Snapshots with a stimulus set (core.contracts.Editable)."""
        at = {f"stimulus_{i}": 8 + 8 * i for i in range(SIZE)}.get(name)
        if at is None:
            raise UserError(f"{self.spec.env_id}: {name} cannot be set; what can: stimulus_0 to stimulus_{SIZE - 1}")
        return tuple(s[:at] + struct.pack("<d", value) + s[at + 8 :] for s in states)

    def close(self) -> None:
        """There is nothing to release."""


def behaviour_of(options: PlantedOptions, x_NX: np.ndarray) -> np.ndarray:
    """Stimuli [..., X] -> number of the behaviour, int64 [...]: its switches read as binary digits, 1 for +1."""
    digits = matrices(options).behaviour_switches
    out = np.zeros(np.shape(x_NX)[:-1], np.int64)
    for i, switch in enumerate(digits):
        out += (np.asarray(x_NX)[..., switch] > 0).astype(np.int64) << i
    return out


class PlantedAgent(nn.Module):
    """Keeps core.contracts.Agent: a recurrent agent, linear but for its products.  Its weights are known and not to be
    trained."""

    def __init__(self, options: PlantedOptions | None = None) -> None:
        super().__init__()
        self.options = PlantedOptions() if options is None else options
        m = matrices(self.options)
        self.spec = spec_of(self.options, 1)
        self.obs_name = next(iter(self.spec.obs))
        self.points = {"h": SIZE, "embedding": SIZE}
        self.W_HH = _weight(m.R_HK @ m.W_KK @ m.R_HK.T)
        if self.options.kind == "pixels":
            s = scene(self.options)
            self.base_F = _weight(s.base_F)
            self.U_HF = _weight(m.R_HK @ m.U_KX @ s.decode_XF)
        else:
            self.U_HX = _weight(m.R_HK @ m.U_KX @ m.C_XX.T)
        self.policy_AH = _weight(m.policy_AK @ m.R_HK.T)
        self.value_H = _weight(m.value_K @ m.R_HK.T)
        if m.products:
            none = np.zeros(SIZE)
            into = [none if p.target is None else p.weight * m.R_HK[:, p.target] for p in m.products]
            self.source_HG = _weight(m.R_HK[:, [p.source for p in m.products]])
            self.gate_HG = _weight(m.R_HK[:, [p.gate for p in m.products]])
            self.product_GH = _weight(np.stack(into))
            self.product_value_G = _weight(np.array([p.weight if p.target is None else 0.0 for p in m.products]))
            self.larger_G = _weight(np.array([float(p.larger) for p in m.products]))
        self.has_products = bool(m.products)
        self.h_initial = _weight(np.zeros(SIZE))

    def initial(self, batch: int) -> Tensor:
        return self.h_initial.expand(batch, -1)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        seen = obs[self.obs_name]
        if self.options.kind != "pixels":
            return seen.to(self.U_HX.dtype) @ self.U_HX.T
        frames = seen.to(self.U_HF.dtype) / 255 if seen.dtype == torch.uint8 else seen
        return (frames.flatten(1) - self.base_F) @ self.U_HF.T

    def advance(self, seen: Tensor, state: Tensor, is_first_B: Tensor) -> Tensor:
        previous = torch.where(is_first_B[:, None], self.initial(state.shape[0]), state)
        linear = previous @ self.W_HH.T + seen
        return linear + self._products(previous) @ self.product_GH if self.has_products else linear

    def heads(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        value = state @ self.value_H
        if self.has_products:
            value = value + self._products(state) @ self.product_value_G
        return state @ self.policy_AH.T, value

    def read(self, point: str, seen: Tensor, state: Tensor) -> Tensor:
        return {"h": state, "embedding": seen}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return {"h": (seen, x_BN), "embedding": (x_BN, state)}[point]

    def _products(self, h_BH: Tensor) -> Tensor:
        source, gate = h_BH @ self.source_HG, h_BH @ self.gate_HG
        return torch.where(self.larger_G > 0, torch.maximum(source, gate), source * gate)


class PlantedModel(nn.Module):
    """The planted world itself as core.contracts.World: differentiable, exact (``.double()`` for checks).

    A latent is z = (first stimuli x [X], the agent's state before them [H]).  The state is (x, step); ``features`` is
    x, which is all there is.  Noise: standard normal [B, X].  Without it the world takes its mean and switches stay.
    Frames are not rounded to whole numbers of 1/255, as the environment's are.
    """

    A_XX: Tensor
    B_XA: Tensor
    noise_XX: Tensor
    C_XX: Tensor
    base_F: Tensor
    template_XF: Tensor
    decode_XF: Tensor
    reward_X: Tensor
    hazard_X: Tensor
    flip_below_X: Tensor
    switch_X: Tensor

    def __init__(self, options: PlantedOptions | None = None) -> None:
        super().__init__()
        self.options = PlantedOptions() if options is None else options
        self.spec, self.initial_frames = spec_of(self.options, 1), 1
        m = matrices(self.options)
        for name in ("A_XX", "B_XA", "noise_XX", "C_XX", "reward_X", "hazard_X", "flip_below_X"):
            self.register_buffer(name, _tensor(getattr(m, name)))
        self.register_buffer("switch_X", torch.from_numpy(~np.isnan(m.flip_X)))
        self.edge, self.scale = _sparse_shape() if m.sparse else (0.0, 1.0)
        if self.options.kind == "pixels":
            s = scene(self.options)
            for name, value in (("base_F", s.base_F), ("template_XF", s.template_XF), ("decode_XF", s.decode_XF)):
                self.register_buffer(name, _tensor(value))
        self.state_size, self.latent_size = SIZE, 2 * SIZE
        self.eval()

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and log-standard-deviation of z from one observation [B, 1, ...]: it tells x exactly and
        nothing of the hidden state before it, which is taken to be initial, give or take 1."""
        x_BIX = self._state_of(obs)
        if x_BIX.shape[1] != self.initial_frames:
            raise ValueError(f"infer takes {self.initial_frames} observation, got {x_BIX.shape[1]}")
        x_BX = x_BIX[:, 0]
        mean = torch.cat([x_BX, torch.zeros_like(x_BX)], -1)
        log_std = torch.cat([torch.full_like(x_BX, SURE), torch.zeros_like(x_BX)], -1)
        return mean, log_std

    def _state_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Observations [..., X] or [..., 64, 64, 3] -> stimuli [..., X]."""
        if self.options.kind != "pixels":
            return obs["x"].to(self.C_XX.dtype) @ self.C_XX  # C is orthogonal
        frames = obs["frames"]
        frames = frames.to(self.base_F.dtype) / 255 if frames.dtype == torch.uint8 else frames
        squashed = (frames.flatten(-3) - self.base_F) @ self.decode_XF.T
        return 2 * torch.atanh(squashed.clamp(-BRIGHTEST, BRIGHTEST))

    def show(self, x_BX: Tensor) -> dict[str, Tensor]:
        """Stimuli [B, X] -> observation."""
        if self.options.kind != "pixels":
            return {"x": x_BX @ self.C_XX.T}
        frames = self.base_F + torch.tanh(x_BX / 2) @ self.template_XF
        return {"frames": frames.unflatten(-1, (64, 64, 3))}

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """Every vector is a legal latent."""
        return z_BZ

    def memory(self, z_BZ: Tensor) -> Tensor:
        """The agent's state before the first observation."""
        return z_BZ[:, self.state_size :]

    def start(self, z_BZ: Tensor, noise: Tensor | None = None) -> tuple[tuple[Tensor, Tensor], Shown]:
        x = z_BZ[:, : self.state_size]  # the latent is the first state itself: nothing leads to it
        at = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return (x, at), Shown(self.show(x), x @ self.reward_X, torch.zeros_like(x[:, 0]), x)

    def step(
        self, state: tuple[Tensor, Tensor], action_BA: Tensor, noise: Tensor | None = None
    ) -> tuple[tuple[Tensor, Tensor], Shown]:
        x, at = self._transition(state[0], action_BA, noise), state[1] + 1
        seen = self._seen(x, at)
        return (x, at), Shown(self.show(seen), seen @ self.reward_X, self._ends(x), x)

    def _seen(self, x_BX: Tensor, t_B: Tensor) -> Tensor:
        """What is shown, and paid for, of the state at steps t."""
        return x_BX

    def _ends(self, x_BX: Tensor) -> Tensor:
        """Probability of ending [B]."""
        return self.options.hazard * torch.sigmoid(x_BX @ self.hazard_X)

    def _transition(self, x_BX: Tensor, action_BA: Tensor, normal_BX: Tensor | None = None) -> Tensor:
        moved, sign = x_BX @ self.A_XX.T + action_BA @ self.B_XA.T, torch.ones_like(self.flip_below_X)
        if normal_BX is not None:
            moved = moved + ((normal_BX - normal_BX.clamp(-self.edge, self.edge)) * self.scale) @ self.noise_XX.T
            sign = torch.where(normal_BX < self.flip_below_X, -sign, sign)
        return torch.where(self.switch_X, x_BX * sign, moved)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tensor:
        like = {"generator": generator, "dtype": self.A_XX.dtype, "device": self.A_XX.device}
        return torch.randn(batch, self.state_size, **like)  # type: ignore[call-overload,no-any-return]

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """World states d_BLD along recorded observations [B, L, ...]: read off where one is seen, foretold
        from the action before where not."""
        x_BLX = self._state_of(obs)
        one_hot = nn.functional.one_hot(action_BL, self.spec.n_actions).to(x_BLX.dtype)
        states = [x_BLX[:, 0]]  # the observation a window starts from is always there
        for i in range(1, x_BLX.shape[1]):
            foretold = self._transition(states[-1], one_hot[:, i - 1])
            states.append(torch.where(seen_BL[:, i, None], x_BLX[:, i], foretold))
        return torch.stack(states, 1)


Wrong = Literal[
    "held frame", "garbage frames", "garbage states", "actions ignored", "actions reversed", "terminal wrong",
    "sign reversed later",
]  # fmt: skip
WRONG: tuple[Wrong, ...] = get_args(Wrong)
REVERSED_FROM = 2  # the step from which a sign is wrong


class WrongModel(PlantedModel):
    """A planted model that is wrong in one way: what it foretells by way of the world is not so.

    held frame: nothing moves.  garbage frames: what is seen is a wild function of the state; garbage states: the next
    state is.  actions ignored: always the second one is done; reversed: the last one for the first.  terminal wrong: an
    ending is as likely as not at every step.  sign reversed later: from step REVERSED_FROM on what is seen and paid has
    the other sign.
    """

    def __init__(self, options: PlantedOptions, wrong: Wrong) -> None:
        super().__init__(options)
        self.wrong = wrong

    def _transition(self, x_BX: Tensor, action_BA: Tensor, normal_BX: Tensor | None = None) -> Tensor:
        if self.wrong == "held frame":
            return x_BX
        if self.wrong == "actions ignored":
            action_BA = 0 * action_BA + nn.functional.one_hot(torch.ones_like(action_BA[:, 0]).long(), 3)
        if self.wrong == "actions reversed":
            action_BA = action_BA.flip(-1)
        moved = super()._transition(x_BX, action_BA, normal_BX)
        return self._wild(moved) if self.wrong == "garbage states" else moved

    def _seen(self, x_BX: Tensor, t_B: Tensor) -> Tensor:
        if self.wrong == "garbage frames":
            return self._wild(x_BX)
        late_B = t_B >= REVERSED_FROM
        return torch.where(late_B[:, None], -x_BX, x_BX) if self.wrong == "sign reversed later" else x_BX

    def _ends(self, x_BX: Tensor) -> Tensor:
        right = super()._ends(x_BX)
        return torch.full_like(right, 0.5) if self.wrong == "terminal wrong" else right

    def _wild(self, x_BX: Tensor) -> Tensor:
        """As large as stimuli are, and as good as unpredictable."""
        return math.sqrt(2) * torch.sin(997 * (x_BX @ self.C_XX.T))


class TwinModel(PlantedModel):
    """The planted world on every action, and another one between them.

    Each weight a of an action counts as a + between a (1 - a) (1 - 2 a): the same for 0 and for 1, with 1 + between
    times the slope there.  So straight-through gradients from action to world are 1 + between times those of
    ``PlantedModel``, and no rollout tells the two apart.
    """

    def __init__(self, options: PlantedOptions | None = None, between: float = -2.0) -> None:
        super().__init__(options)
        self.between = between

    def _transition(self, x_BX: Tensor, action_BA: Tensor, normal_BX: Tensor | None = None) -> Tensor:
        a = action_BA
        return super()._transition(x_BX, a + self.between * a * (1 - a) * (1 - 2 * a), normal_BX)


def planted_simulator(
    options: PlantedOptions | None = None, dtype: torch.dtype = torch.float32, model: PlantedModel | None = None
) -> Simulator[PlantedModel]:
    """The planted agent in its own world (or in ``model`` of it)."""
    world = PlantedModel(options) if model is None else model
    return Simulator(PlantedAgent(world.options).to(dtype).eval(), world.to(dtype), world.memory)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.tensor(array, dtype=torch.float32)


def _weight(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(_tensor(array), requires_grad=False)


def make_planted(spec: EnvSpec, slots: int) -> PlantedWorld:
    """The world of a spec again.  Raises UserError for a spec of another one."""
    options = PlantedOptions(**spec.options)
    if spec.env_id != f"planted/{options.kind}" or options.kind not in KINDS:
        raise UserError(f"no planted world {spec.env_id!r}; there are: {', '.join(f'planted/{k}' for k in KINDS)}")
    return PlantedWorld(options, slots)


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

    def look(obs: Obs, truth: Obs, is_first_B: np.ndarray) -> tuple[Acted, dict[str, np.ndarray]]:
        seen = {agent.obs_name: torch.from_numpy(obs[agent.obs_name])}
        acted = act(agent, seen, h_BH, torch.from_numpy(is_first_B), torch.zeros(episodes, dtype=torch.int64))
        return acted, {**obs, **truth, "h": acted.state.numpy(), "value": acted.value_B.numpy()}

    while len(endings) < episodes:
        acted, shown = look(step.obs, step.truth, step.is_first)
        h_BH, logits = acted.state, acted.logits_BA
        action = (logits.numpy() + rng.gumbel(size=logits.shape)).argmax(-1).astype(np.int64)
        step = world.step(action)
        rows.append({**shown, "logits": logits.numpy(), "action": action, "reward": step.reward})
        if step.final_obs is None or step.final_truth is None:
            raise ValueError("the planted world shows every last observation")
        last = look(step.final_obs, step.final_truth, np.zeros(episodes, bool))[1]
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
                obs={agent.obs_name: column[agent.obs_name]},
                truth={k: column[k] for k in step.truth},
                **{k: column[k] for k in ("h", "value", "action", "logits", "reward")},
                terminated=terminated,
                truncated=not terminated,
                meta={"seed": seed, "slot": b},
            )
        )
    return out
