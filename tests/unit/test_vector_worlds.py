"""World models of vectors, of images of any size and of several fields, around agents of any kind."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.recurrent import AgentConfig, RecurrentAgent
from benchmarks.stepwise import loss_stepwise
from core.artefacts import new_run, write_json
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter
from core.roll import Noise, Simulator, one_hot
from core.trees import Tree, where
from envs.planted import PlantedAgent, PlantedOptions, spec_of
from generative.bundle import round_to_half
from generative.fields import Scale, error_of_field, loss_of_field, noise_size, shown_as
from generative.grid import GridWorld
from generative.losses import Batch, LossConfig, draw, loss_of
from generative.nets import ConvDecoder, ConvEncoder, halvings
from generative.record_samples import noise_of, parse_actions, to_episodes
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import as_module, simulator_of, teacher_forced
from generative.train import (
    columns_of,
    free_running_errors,
    reconstructions,
    statistics,
    to_batch,
    unit_of_rewards,
    whole_error,
)
from generative.vector import VectorWorld

REAL = Field(shape=(3,), dtype="float32")
BINARY = Field(shape=(4,), dtype="int8", kind="binary")
ONE_HOT = Field(shape=(5,), dtype="float32", kind="one_hot", groups=(2, 3))
IMAGE = Field(shape=(9, 12, 1), dtype="uint8")
SPEC = EnvSpec(
    env_id="toy/rooms",
    obs={"speed": REAL, "lamps": BINARY, "keys": ONE_HOT, "map.small": IMAGE},
    action_names=("left", "wait", "right", "off", "on"),
    action_parts={"walk": 3, "switch": 2},
    slots=1,
)
TINY = ModelConfig(
    deterministic_size=12, hidden_size=16, groups=3, classes=4, depth=2, head_layers=1, latent_size=6, initial_frames=2
)
RESIDUAL = replace(TINY, layout="residual")
L = 5


class Lstm(nn.Module):
    """Somebody's LSTM of all fields; its state is (h, c), c of any size."""

    def __init__(self, spec: EnvSpec, size: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spec, self.points, self.size = spec, {"h": size, "cell": size}, size
        self.lstm = nn.LSTMCell(sum(f.size for f in spec.obs.values()), size)
        self.actor, self.critic = nn.Linear(size, spec.n_actions), nn.Linear(size, 1)
        nn.init.normal_(self.actor.weight, std=3.0)

    def initial(self, batch: int) -> Tree:
        zeros = self.actor.weight.new_zeros(batch, self.size)
        return zeros, zeros

    def encode(self, obs: Any) -> Tree:
        like = self.actor.weight
        rows = [x.to(like.dtype) / 255 if x.dtype == torch.uint8 else x.to(like.dtype) for x in obs.values()]
        return torch.cat([x.flatten(1) for x in rows], 1)

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        return self.lstm(seen, where(is_first_B, self.initial(len(is_first_B)), state))

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        return self.actor(state[0]), self.critic(state[0])[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        return {"h": state[0], "cell": state[1]}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        return seen, {"h": (x_BN, state[1]), "cell": (state[0], x_BN)}[point]


def rooms(spec: EnvSpec = SPEC, config: ModelConfig = TINY) -> Simulator[RSSMWorld]:
    """An untrained simulator whose states move its observations."""
    torch.manual_seed(0)
    simulator = simulator_of(config, Lstm(spec).eval().requires_grad_(False))
    with torch.no_grad():
        for network in (simulator.world.decoder, getattr(simulator.world, "changes", None)):
            for p in () if network is None else network.parameters():
                p.mul_(3)
    return simulator


def obs_like(spec: EnvSpec, batch: tuple[int, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Legal observations of every field."""
    out = {}
    for k, field in spec.obs.items():
        if field.means == "image":
            out[k] = rng.integers(0, 256, (*batch, *field.shape), dtype=np.uint8)
        elif field.means == "one_hot":
            hot = [np.eye(n)[rng.integers(n, size=batch)] for n in field.categories]
            out[k] = np.concatenate(hot, -1).astype(field.dtype)
        elif field.means == "binary":
            out[k] = rng.integers(0, 2, (*batch, *field.shape)).astype(field.dtype)
        else:
            out[k] = rng.normal(size=(*batch, *field.shape)).astype(field.dtype)
    return out


def windows(simulator: Simulator[RSSMWorld], size: int = 3, dtype: torch.dtype = torch.float32) -> Batch:
    """Windows of chance in which everything happens."""
    rng, world = np.random.default_rng(0), simulator.world
    obs = {k: torch.from_numpy(x) for k, x in obs_like(world.spec, (size, TINY.initial_frames - 1 + L), rng).items()}
    parts = world.spec.parts
    action = torch.stack([torch.from_numpy(rng.integers(n, size=(size, L + 1))) for n in parts], -1)
    action = action if len(parts) > 1 else action[..., 0]
    every = torch.ones(size, L, dtype=torch.bool)
    zeros = torch.zeros(size, L, dtype=dtype)
    h = torch.zeros(size, L, simulator.agent.points["h"], dtype=dtype)
    state = torch.zeros(size, world.memory_size, dtype=dtype)
    return Batch(obs, every, every, zeros, zeros, action[:, 1:], h, state, action[:, 0])


def store_of(path: Path, spec: EnvSpec = SPEC, episodes: int = 4, steps: int = 9, **more: Any) -> RolloutStore:
    """A recording of chance by ``Lstm``; state[t] counts."""
    rng = np.random.default_rng(1)
    with new_run(path, "record", {}) as run:
        write_json(run.path / "spec.json", spec.to_json())
        with StoreWriter(run.path) as writer:
            for _ in range(episodes):
                action = np.stack([rng.integers(n, size=steps) for n in spec.parts], -1)
                count = np.arange(steps + 1, dtype=np.float32)
                episode = Episode(
                    obs=obs_like(spec, (steps + 1,), rng), h=np.repeat(count[:, None], 4, 1),
                    state=100 + np.repeat(count[:, None], 8, 1), value=count,
                    action=action if len(spec.parts) > 1 else action[:, 0], reward=count[1:],
                    terminated=False, truncated=True,
                )  # fmt: skip
                writer.add(replace(episode, **more))
        run.facts = {"source": "real"}
    return RolloutStore(path)


# Fields


def test_a_field_says_what_it_means_or_its_dtype_does() -> None:
    assert REAL.means == "real" and IMAGE.means == "image" and BINARY.means == "binary"
    assert Field(shape=(2,), dtype="bool").means == "binary" and Field(shape=(2,), dtype="int16").means == "other"
    assert ONE_HOT.categories == (2, 3) and replace(ONE_HOT, groups=()).categories == (5,)
    assert EnvSpec.from_json(json.loads(json.dumps(SPEC.to_json()))).obs["keys"].groups == (2, 3)
    old = SPEC.to_json()
    for field in old["obs"].values():
        del field["kind"], field["groups"]
    again = EnvSpec.from_json(old)
    assert again == SPEC and again.obs["keys"].means == "real"  # the same world, of which less is known


def test_a_picture_is_what_means_an_image() -> None:
    """Not what has the shape of one; one in colour is shown and measured."""
    codes = Field(shape=(8, 8, 3), dtype="uint8", kind="other")
    stack, grey, seen = (Field(shape=(8, 8, n), dtype="uint8") for n in (4, 1, 3))
    spec = replace(SPEC, obs={"speed": REAL, "codes": codes, "stack": stack, "grey": grey, "seen": seen})
    assert spec.pictures == ("stack", "grey", "seen") and spec.main_field == spec.picture == "seen"
    assert replace(spec, obs={"stack": stack, "grey": grey}).picture == "grey"
    without = replace(spec, obs={"codes": codes, "speed": REAL})
    assert (without.pictures, without.picture, without.main_field) == ((), None, "codes")


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("no kind of observation field 'onehot'", {"kind": "onehot"}),
        ("one-hot vector's add up", {"kind": "one_hot", "groups": (2, 2)}),
        ("one-hot vector's add up", {"kind": "one_hot", "groups": (5, 0)}),
        ("one-hot vector's add up", {"groups": (2, 3)}),
    ],
)
def test_what_no_field_can_be(said: str, more: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=said):
        Field(shape=(5,), dtype="float32", **more)


@pytest.mark.parametrize(
    "field",
    [
        Field(shape=(3,), dtype="int16"),
        Field(shape=(3, 2), dtype="float32"),
        Field(shape=(), dtype="float32"),
        Field(shape=(8, 8), dtype="uint8"),
        Field(shape=(8, 8, 3), dtype="float32", kind="image"),
    ],
)
def test_unsupported_fields_are_named(field: Field) -> None:
    spec = replace(SPEC, obs={"speed": REAL, "odd": field})
    with pytest.raises(UserError, match="observation field 'odd' .* supported are"):
        VectorWorld(TINY, spec, 4)


@pytest.mark.parametrize("obs", [{"x": REAL}, {"a": IMAGE}, {"a": Field(shape=(64, 64, 3), dtype="uint8"), "x": REAL}])
def test_a_grid_holds_one_image_of_its_size(obs: dict[str, Field]) -> None:
    sizes = {"deterministic_size": 64, "groups": 64, "latent_size": 64}
    config = ModelConfig(layout="grid", hidden_size=4, depth=2, **sizes)
    with pytest.raises(UserError, match="--layout grid is for worlds that show one image"):
        GridWorld(config, replace(SPEC, obs=obs), 4)


@pytest.mark.parametrize(
    ("shape", "strided"),
    [((64, 64, 3), 4), ((84, 84, 4), 4), ((210, 160, 3), 5), ((7, 7, 3), 0), ((1, 1, 1), 0), ((31, 17, 2), 2),
     ((8, 40, 1), 1)],
)  # fmt: skip
def test_convolutions_fit_images_of_any_size(shape: tuple[int, int, int], strided: int) -> None:
    """Every pixel is read, and every pixel is written by what was read."""
    torch.manual_seed(0)
    encoder, decoder = ConvEncoder(2, shape).double(), ConvDecoder(5, 2, shape).double()
    frames = torch.rand(2, *shape, dtype=torch.float64, requires_grad=True)
    features = encoder(frames)
    assert halvings(shape) == strided and features.shape == (2, encoder.size)
    (grad,) = torch.autograd.grad((features * torch.randn_like(features)).sum(), frames)
    assert bool((grad != 0).all())
    a, b = decoder(torch.randn(2, 5, dtype=torch.float64))
    assert a.shape == shape and bool((a != b).all())


# What is shown


@pytest.mark.parametrize("layout", ["vector", "residual"])
def test_an_observation_is_legal_and_noise_is_the_only_chance(layout: Any) -> None:
    simulator = rooms(config=replace(TINY, layout=layout))
    world = simulator.world
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    noise = noise_of(simulator, 3, range(4), L, torch.device("cpu"))
    with torch.no_grad():
        modal, drawn, again = (simulator.rollout(z, L, noise=n) for n in (None, noise, noise))
    for out in (modal, drawn):
        assert {k: tuple(x.shape[2:]) for k, x in out.obs.items()} == {k: f.shape for k, f in SPEC.obs.items()}
        assert bool(((out.obs["lamps"] == 0) | (out.obs["lamps"] == 1)).all())
        for part, n in zip(out.obs["keys"].split([2, 3], -1), (2, 3), strict=True):
            assert torch.equal(part, torch.eye(n)[part.argmax(-1)])
        assert float(out.obs["map.small"].min()) >= 0 and float(out.obs["map.small"].max()) <= 1
        assert out.action.shape == (4, L + 1, 2)
    assert all(torch.equal(drawn.obs[k], again.obs[k]) for k in SPEC.obs)
    assert not torch.equal(drawn.obs["lamps"], modal.obs["lamps"])
    # One world's state, other draws of the fields alone.
    state, _ = world.start(z)
    action = one_hot(torch.tensor([[0, 1]] * 4), SPEC.parts, z)
    draws = torch.cat([torch.zeros(4, world.rssm.stochastic_size), 9 * torch.randn(4, 2 * 4 + 5)], 1)
    (a, one), (b, other) = world.step(state, action), world.step(state, action, draws)
    assert torch.equal(a.d_BD, b.d_BD) and torch.equal(one.obs["speed"], other.obs["speed"])
    assert not torch.equal(one.obs["keys"], other.obs["keys"])


def test_draws_have_the_probabilities_that_were_said() -> None:
    n, generator = 20_000, torch.Generator().manual_seed(0)
    for field, logits in ((ONE_HOT, [0.0, 1.0, -1.0, 0.5, 0.0]), (BINARY, [-2.0, 0.0, 1.0, 3.0])):
        said = torch.tensor(logits).expand(n, -1)
        noise = -torch.log(-torch.log(torch.rand(n, noise_size(field), generator=generator)))
        want = torch.sigmoid(said[0])
        if field is ONE_HOT:
            want = torch.cat([x.softmax(-1) for x in said[0].split([2, 3])])
        got = shown_as(field, said, None, noise).mean(0)
        torch.testing.assert_close(got, want, atol=4 * 0.5 / math.sqrt(n), rtol=0)  # 4 standard errors
        assert set(shown_as(field, said, None)[0].tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("layout", ["vector", "residual"])
def test_gradients_pass_from_every_field_to_actions_and_latents(layout: Any) -> None:
    simulator = rooms(config=replace(TINY, layout=layout))
    simulator.world.double()
    simulator.agent.double()
    world = simulator.world
    z = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    state, _ = world.start(z)
    action = one_hot(torch.tensor([[0, 1], [2, 0]]), SPEC.parts, z).requires_grad_()
    _, shown = world.step(state, action)
    for k, x in shown.obs.items():
        grads = torch.autograd.grad((x * torch.randn_like(x)).sum(), (action, z), retain_graph=True)
        assert all(bool((g != 0).any(1).all()) for g in grads), k
    # Straight through: the gradient of the probabilities.
    said = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 5, dtype=torch.float64)
    for field, soft in ((ONE_HOT, lambda x: torch.cat([p.softmax(-1) for p in x.split([2, 3], -1)], -1)),
                        (replace(BINARY, shape=(5,)), torch.sigmoid)):  # fmt: skip
        shown_and_soft = (shown_as(field, said, None), soft(said))
        got, want = (torch.autograd.grad((f * weight).sum(), said)[0] for f in shown_and_soft)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", ["vector", "residual"])
def test_recorded_observations_are_followed_along_all_fields(layout: Any) -> None:
    simulator = rooms(config=replace(TINY, layout=layout))
    batch = windows(simulator)
    out = teacher_forced(simulator, batch.obs, batch.action, batch.seen)
    d = simulator.world.observe(batch.obs, batch.action, batch.seen)
    assert out.d.shape == d.shape == (3, L, 12)
    for k in SPEC.obs:
        other = {**batch.obs, k: batch.obs[k].roll(1, 0)}
        assert not torch.equal(simulator.world.observe(other, batch.action, batch.seen), d), k


# A world that is told its last observation


def test_an_untrained_residual_world_goes_on_showing_what_it_showed() -> None:
    torch.manual_seed(0)
    world = simulator_of(RESIDUAL, Lstm(SPEC).eval()).world.requires_grad_(False).eval()
    obs = {k: x[:, :2] for k, x in windows(rooms(config=RESIDUAL), size=16).obs.items()}
    state, begun = world.begin_at(obs)
    assert torch.equal(begun.obs["keys"], obs["keys"][:, 1]) and torch.equal(begun.obs["speed"], obs["speed"][:, 1])
    later = world.step(state, one_hot(torch.zeros(16, 2, dtype=torch.int64), SPEC.parts, begun.reward_B))[1].obs
    assert torch.equal(later["keys"], begun.obs["keys"]) and torch.equal(later["lamps"], begun.obs["lamps"].float())
    assert float((later["map.small"] - begun.obs["map.small"]).abs().mean()) < 0.1
    assert float((later["speed"] - begun.obs["speed"]).abs().mean()) < 0.5


def test_a_residual_world_hears_its_action_however_large_its_embedding_has_grown() -> None:
    """One that was trained on a recording that explores grew to 30 a number, and the world ignored what was done."""
    torch.manual_seed(0)
    obs = {k: x[:, :2] for k, x in windows(rooms(config=RESIDUAL), size=16).obs.items()}
    heard = []
    for size in (1.0, 100.0):
        torch.manual_seed(0)
        world = simulator_of(RESIDUAL, Lstm(SPEC).eval()).world.requires_grad_(False).eval()
        next(p for n, p in world.named_parameters() if n.startswith("embed") and p.ndim == 2).mul_(size)
        state, begun = world.begin_at(obs)
        acts = (torch.full((16, 2), a) * torch.tensor([1, 0]) for a in range(3))
        later = torch.stack([world.step(state, one_hot(a, SPEC.parts, begun.reward_B))[0].d_BD for a in acts])
        heard.append(float(later.std(0).mean()))
    assert heard[0] > 0 and heard[1] > heard[0] / 2


def test_a_residual_world_is_trained_as_it_goes_on_by_itself() -> None:
    """Where frames are hidden, what is said of a step is what a rollout from there shows; where they are seen it is a
    change of the recorded one before."""
    simulator = rooms(config=RESIDUAL)
    world = simulator.world.double().requires_grad_(False)
    batch = windows(simulator, dtype=torch.float64)
    seen = torch.zeros(3, L, dtype=torch.bool)
    seen[:, 0] = seen[2] = True  # of the last window all
    path, said = world.path(batch.obs, batch.action, seen)
    shown = {k: x.unflatten(0, (3, L)) for k, x in world.show(said).items()}
    acted = one_hot(batch.action, SPEC.parts, path.d_BLD)
    state, begun = world.begin_at({k: x[:, :2] for k, x in batch.obs.items()})
    torch.testing.assert_close(state.d_BD, path.d_BLD[:, 0])
    for i in range(1, L):
        state, own = world.step(state, acted[:, i - 1])
        torch.testing.assert_close(state.d_BD[:2], path.d_BLD[:2, i])
        for k, x in own.obs.items():
            torch.testing.assert_close(shown[k][:2, i], x[:2])
        last = world.read(batch.obs, i)  # the window's first observation is the one before step 0
        e = world.seen(last)
        again = world.show(world.change(path.d_BLD[:, i], path.s_BLS[:, i], e, last))
        for k, x in again.items():
            torch.testing.assert_close(shown[k][2, i], x[2])


def test_a_residual_world_needs_the_observation_before_a_start() -> None:
    with pytest.raises(UserError, match="2 observations at least, not --initial_frames 1"):
        simulator_of(replace(RESIDUAL, initial_frames=1), Lstm(SPEC))


# Losses


def test_losses_are_likelihoods_of_their_kind() -> None:
    torch.manual_seed(0)
    said = torch.randn(6, 5)
    index = torch.tensor([[0, 2], [1, 0], [1, 1], [0, 0], [0, 1], [1, 2]])
    hot = one_hot(index, (2, 3), said)
    got = loss_of_field(ONE_HOT, said, hot, None)
    logits = said.split([2, 3], 1)
    want = sum(nn.functional.cross_entropy(x, index[:, i], reduction="none") for i, x in enumerate(logits))
    torch.testing.assert_close(got, want)
    wrong = torch.stack([(x.argmax(1) != index[:, i]).float() for i, x in enumerate(logits)]).mean(0)
    torch.testing.assert_close(error_of_field(ONE_HOT, shown_as(ONE_HOT, said, None), hot, None), wrong)
    bits = (torch.rand(6, 4) > 0.5).float()
    p = torch.sigmoid(said[:, :4])
    want = -(bits * p.log() + (1 - bits) * (1 - p).log()).sum(1)
    torch.testing.assert_close(loss_of_field(BINARY, said[:, :4], bits, None), want)
    torch.testing.assert_close(
        error_of_field(BINARY, shown_as(BINARY, said[:, :4], None), bits, None), ((p > 0.5) != bits).float().mean(1)
    )
    scale = Scale(3)
    scale.fit(torch.tensor([1.0, 0.0, 50.0]), torch.tensor([2.0, 0.1, 0.0]))
    values = torch.tensor([[3.0, 0.1, 50.0], [1.0, -0.2, 51.0]])
    zero = torch.zeros(2, 3)
    assert torch.equal(shown_as(REAL, zero, scale), torch.tensor([1.0, 0.0, 50.0]).expand(2, 3))
    torch.testing.assert_close(loss_of_field(REAL, zero, values, scale), torch.tensor([1.0, 2.5]))
    error = error_of_field(REAL, shown_as(REAL, zero, scale), values, scale)
    torch.testing.assert_close(error, torch.tensor([2.0, 5.0]) / 3)


@pytest.mark.parametrize("layout", ["vector", "residual"])
def test_every_field_s_loss_is_named_and_weighted(layout: Any) -> None:
    simulator = rooms(config=replace(TINY, layout=layout))
    batch = windows(simulator)
    draws = draw(simulator.world, 3, L, LossConfig(), torch.Generator().manual_seed(1))
    loss, parts = loss_of(simulator, batch, LossConfig(), draws)
    names = {"obs/speed", "obs/lamps", "obs/keys", "obs/map.small"}
    rest = {"kl", "reward", "terminal", "hidden", "feature", "slowness", "latent", "start"}
    rest |= {"drawn"} if layout == "residual" else set()
    assert set(parts) == names | rest | {n.replace("obs/", "error/") for n in names}
    heavier, same = loss_of(simulator, batch, LossConfig(vector_weight=26.0), draws)
    assert all(torch.equal(parts[k], same[k]) for k in parts if k != "drawn")  # which is weighted already
    if layout == "vector":
        vectors = sum(parts[f"obs/{k}"] for k in ("speed", "lamps", "keys"))
        torch.testing.assert_close((heavier - loss).detach(), vectors, rtol=1e-3, atol=1e-3)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in simulator.world.parameters())
    assert all(p.grad is None for p in simulator.agent.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("feature_weight", [0.0, 2.0])
def test_the_loss_is_the_oracle_s(feature_weight: float) -> None:
    """All at once or step by step, with several fields, several parts and an LSTM's state."""
    simulator = rooms()
    simulator.world.double()
    simulator.agent.double()  # type: ignore[attr-defined]
    batch = windows(simulator, dtype=torch.float64)
    seen = batch.seen.clone()
    seen[0, 3:] = False
    config, generator = LossConfig(feature_weight=feature_weight), torch.Generator().manual_seed(1)
    draws = draw(simulator.world, 3, L, config, generator)
    draws = draws._replace(latent_BZ=draws.latent_BZ.double())
    batch = replace(batch, seen=seen)
    found = []
    for loss in (loss_of(simulator, batch, config, draws)[0], loss_stepwise(simulator, batch, config, draws)):
        found.append((loss.detach(), torch.autograd.grad(loss, list(simulator.world.parameters()))))
    torch.testing.assert_close(*(loss for loss, _ in found), rtol=1e-6, atol=0)
    for a, b in zip(*(grads for _, grads in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_an_alone_image_s_loss_keeps_its_name_whatever_the_field_s() -> None:
    simulator = rooms(replace(SPEC, obs={"screen": IMAGE}))
    draws = draw(simulator.world, 3, L, LossConfig(), torch.Generator().manual_seed(1))
    _, parts = loss_of(simulator, windows(simulator), LossConfig(), draws)
    assert {"image", "frame_mse"} <= set(parts) and not any("/" in k for k in parts)


def test_what_is_unknown_of_an_action_is_counted_part_by_part() -> None:
    """A start head that says nothing costs log 3 + log 2."""
    simulator = rooms()
    batch = windows(simulator)
    with torch.no_grad():
        simulator.world.start_agent[-1].weight.zero_()  # type: ignore[operator,union-attr]
        simulator.world.start_agent[-1].bias.zero_()  # type: ignore[operator,union-attr]
    draws = draw(simulator.world, 3, L, LossConfig(), torch.Generator().manual_seed(1))
    start = loss_of(simulator, batch, LossConfig(), draws)[1]["start"]
    assert float(start) == pytest.approx(math.log(3) + math.log(2))
    # Either part of an action that was taken matters for what follows.
    for part in range(2):
        other = replace(batch, action=torch.stack([(a + (i == part)) % n for i, (a, n) in enumerate(
            zip(batch.action.unbind(-1), SPEC.parts, strict=True))], -1))  # fmt: skip
        assert loss_of(simulator, other, LossConfig(), draws)[0] != loss_of(simulator, batch, LossConfig(), draws)[0]


def test_units_do_not_matter(tmp_path: Path) -> None:
    """Speeds in other units, far from 0, give the same losses and the same observations in these units."""
    spec = replace(SPEC, obs={"speed": REAL})
    plain = store_of(tmp_path / "plain", spec)
    x = [plain.episode(i).obs["speed"] for i in range(4)]
    mean, deviation = statistics(plain, "speed", range(4))
    pooled = np.concatenate([rows[:-1] for rows in x]).astype(np.float64)  # those that have a transition
    np.testing.assert_allclose(mean, pooled.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, pooled.std(0), rtol=1e-5)
    simulator = rooms(spec)
    simulator.agent.lstm.weight_ih.zero_()  # type: ignore[attr-defined]  # its own units matter to the agent
    batch = windows(simulator)
    draws = draw(simulator.world, 3, L, LossConfig(), torch.Generator().manual_seed(1))
    found = []
    for unit, zero in ((1.0, 0.0), (2.0**-10, 0.0), (2.0**10, 2.0**14)):
        scale = simulator.world.scales["speed"]
        assert scale is not None
        scale.fit(torch.tensor(mean) * unit + zero, torch.tensor(deviation) * unit)
        other = replace(batch, obs={"speed": batch.obs["speed"] * unit + zero})
        out = simulator.rollout(torch.ones(1, 6), 3).obs["speed"]
        errors, held = free_running_errors(simulator, other)
        found.append([loss_of(simulator, other, LossConfig(), draws)[0].detach(), (out - zero) / unit,
                      errors["speed"], held["speed"]])  # fmt: skip
    for a in found[1:]:
        for ours, theirs in zip(a, found[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_a_number_that_never_changes_keeps_its_units(tmp_path: Path) -> None:
    obs = {"speed": np.tile(np.array([1e4, 0.0, 0.1], np.float32), (10, 1))}
    store = store_of(tmp_path / "still", replace(SPEC, obs={"speed": REAL}), obs=obs)
    scale = Scale(3)
    scale.fit(*map(torch.from_numpy, statistics(store, "speed", range(4))))
    assert torch.equal(scale.deviation, torch.ones(3)) and torch.allclose(scale.mean, torch.tensor([1e4, 0.0, 0.1]))


@pytest.mark.parametrize(("size", "unit"), [(1e6, 9e6), (1e-6, 9e-6), (1.0, 1.0), (0.0, 1.0)])
def test_rewards_of_any_size_are_learned_and_shown_in_their_own(size: float, unit: float, tmp_path: Path) -> None:
    """Rewards of a million were all of the loss: with their gradient clipped nothing else was learned."""
    reward = (size * np.arange(1, 10)).astype(np.float32)
    with store_of(tmp_path / "r", reward=reward) as store:
        assert unit_of_rewards(store, range(4)) == pytest.approx(unit)
        window = store.read_windows(columns_of(store), np.array([[0, 3]]), 2 - 1 + L)
        batch = to_batch(window, 2, torch.device("cpu"), unit)
    torch.testing.assert_close(batch.reward[0] * unit, torch.from_numpy(reward[3:8]))
    for simulator in (rooms(), rooms(config=RESIDUAL)):
        z = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
        plain = simulator.rollout(z, 3).reward
        simulator.world.reward_unit = unit
        torch.testing.assert_close(simulator.rollout(z, 3).reward, unit * plain)


def test_half_precision_leaves_statistics_alone() -> None:
    simulator = rooms()
    scale = simulator.world.scales["speed"]
    assert scale is not None
    scale.fit(torch.full((3,), 1e6), torch.full((3,), 1.0001))
    round_to_half(as_module(simulator))
    assert torch.equal(scale.mean, torch.full((3,), 1e6)) and torch.equal(scale.deviation, torch.full((3,), 1.0001))
    assert all(torch.equal(p, p.half().float()) for p in simulator.world.parameters())


# Windows, errors and videos


def test_windows_have_every_field_and_the_whole_state(tmp_path: Path) -> None:
    with store_of(tmp_path / "r") as store:
        window = store.read_windows(columns_of(store), np.array([[0, 3]]), 2 - 1 + L)
        batch = to_batch(window, 2, torch.device("cpu"))
        assert set(batch.obs) == set(SPEC.obs)
        assert np.array_equal(batch.obs["map.small"][0], store.episode(0).obs["map.small"][3:9])
        assert batch.state_before.tolist() == [[103.0] * 8] and batch.h[0, :, 0].tolist() == [4, 5, 6, 7, 8]
        assert np.array_equal(batch.action_before[0], store.episode(0).action[3])
        assert np.array_equal(batch.action[0], store.episode(0).action[4:9])
    with store_of(tmp_path / "h", state=None) as store:
        window = store.read_windows(columns_of(store), np.array([[0, 3]]), 2 - 1 + L)
        assert to_batch(window, 2, torch.device("cpu")).state_before.tolist() == [[3.0] * 4]


def test_one_error_for_several_fields() -> None:
    """The mean, with an image's in units of its pixels' variance; of a field alone, its own."""
    simulator = rooms()
    batch = windows(simulator)
    errors, held = free_running_errors(simulator, batch)
    assert set(errors) == set(SPEC.obs) and all(x.shape == (3, L) for x in errors.values())
    assert all(float(x[:, 0].max()) == 0 for x in held.values())  # right at step 0
    pixels = batch.obs["map.small"][:, 1:].float() / 255
    scaled = {**errors, "map.small": errors["map.small"] / pixels.flatten(0, 1).var(0, correction=0).mean()}
    whole = whole_error(simulator.world, errors, batch)
    torch.testing.assert_close(whole, torch.stack(list(scaled.values())).mean(0))
    alone = rooms(replace(SPEC, obs={"screen": IMAGE}))
    errors, _ = free_running_errors(alone, windows(alone))
    assert torch.equal(whole_error(alone.world, errors, windows(alone)), errors["screen"])


def test_videos_are_of_images() -> None:
    simulator = rooms()
    films = reconstructions(simulator, windows(simulator), 0)
    assert set(films) == {"true_true", "simulated_true", "simulated_simulated", "random"}
    assert films["true_true"].shape == (L, 18, 36, 3) and films["random"].shape == (L, 9, 36, 3)
    two = rooms(replace(SPEC, obs={"a": IMAGE, "b": Field(shape=(8, 8, 4), dtype="uint8")}))
    assert {"a/random", "b/true_true"} < set(reconstructions(two, windows(two), 0))
    none = rooms(replace(SPEC, obs={"speed": REAL}))
    assert reconstructions(none, windows(none), 0) == {}


# Any agent


def test_any_agent_s_state_is_remembered_in_its_own_shape() -> None:
    simulator = rooms()
    h, c = simulator.remembered(torch.randn(3, 6))
    assert h.shape == c.shape == (3, 4)
    with torch.no_grad():
        simulator.world.start_agent[-1].bias.fill_(7.0)  # type: ignore[operator,union-attr]
    assert float(simulator.world.memory(torch.zeros(1, 6)).detach().min()) > 5  # not bounded
    planted = simulator_of(TINY, PlantedAgent(PlantedOptions()))
    assert planted.remembered(torch.randn(3, 6)).shape == (3, 8)
    own = RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=5, hidden_size=6), spec_of(PlantedOptions(), 1))
    bounded = simulator_of(TINY, own).world
    with torch.no_grad():
        bounded.start_agent[-1].bias.fill_(7.0)  # type: ignore[operator,union-attr]
    assert float(bounded.memory(torch.zeros(1, 6)).detach().max()) < 1


def test_samples_of_vectors_are_vectors(tmp_path: Path) -> None:
    simulator = rooms()
    z = torch.randn(3, 6)
    scale = simulator.world.scales["speed"]
    assert scale is not None
    scale.fit(torch.tensor([1000.0, 0.0, 0.0]), torch.tensor([1e-2, 1.0, 1.0]))
    with torch.no_grad():
        out = simulator.rollout(z, L)
    with new_run(tmp_path / "samples", "record_samples", {}) as run:
        write_json(run.path / "spec.json", SPEC.to_json())
        with StoreWriter(run.path) as writer:
            for episode in to_episodes(out, z, SPEC, [{"i": i} for i in range(3)]):
                writer.add(episode)
    with RolloutStore(tmp_path / "samples") as store:
        for i in range(3):
            episode = store.episode(i)
            rows = len(episode.h)
            assert {k: str(x.dtype) for k, x in episode.obs.items()} == {k: f.dtype for k, f in SPEC.obs.items()}
            assert np.array_equal(episode.obs["speed"], out.obs["speed"][i, :rows])
            assert np.array_equal(episode.obs["lamps"], out.obs["lamps"][i, :rows].numpy())
            assert np.abs(episode.obs["map.small"] / 255 - out.obs["map.small"][i, :rows].numpy()).max() < 0.003
            assert episode.state is not None and np.array_equal(episode.state, out.state[i, :rows])
            assert episode.action.shape == (episode.steps, 2)


def test_actions_of_several_parts_by_name_or_number() -> None:
    one = replace(SPEC, action_parts={})
    assert parse_actions(["right", "0"], one, 3).tolist() == [2, 0, 0, 0]
    assert parse_actions(["right,on", "0,0", "wait,1"], SPEC, 3).tolist() == [[2, 1], [0, 0], [1, 1], [1, 1]]
    for words, said in ((["right"], "names 1 of the 2 parts of an action \\(walk, switch\\)"),
                        (["on,right"], "no action 'on'.* there are: left, wait, right"), (["0,2"], "no action '2'"),
                        (["0,0"] * 4, "4 actions for --steps 3")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            parse_actions(words, SPEC, 3)


def test_noise_of_a_world_without_categories_is_as_it_was() -> None:
    """Frames and real numbers draw nothing: the noise is the stochastic state's alone."""
    simulator = rooms(replace(SPEC, obs={"screen": IMAGE, "speed": REAL}))
    drawn = simulator.draw_noise(2, torch.Generator().manual_seed(0))
    assert isinstance(drawn, Noise) and drawn.world.shape == (2, simulator.world.rssm.stochastic_size)
    assert rooms().draw_noise(2, torch.Generator().manual_seed(0)).world.shape == (2, 12 + 2 * 4 + 5)
