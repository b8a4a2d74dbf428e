"""The zoo's policies, their rewards, and the agent that a policy module becomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents import evaluate
from agents.policies import (
    ZOO,
    PolicyAgent,
    entropies,
    kl_per_part,
    load_module,
    load_policy,
    log_probs,
    part_slices,
    sample,
    save_policy,
)
from agents.zoo.encoders import ENTITY, ITEM, LSTM, EntityFeatures, Items, MaterialTiles
from core import artefacts
from core.contracts import EnvSpec, Field, Step, UserError
from core.directions import fingerprint

K, N, M, SIZE, B = 9, 12, 20, 32, 6  # rows of Entity, Inventory and Market; size; batch
SYSTEMS = ("all", "core")
CASES = [(module, systems) for module in ZOO for systems in SYSTEMS]


def spec_of(systems: str) -> EnvSpec:
    """A world as envs/nmmo.py shows it: with every game system, or with movement and combat only."""
    parts = {
        "Attack.Style": 4, "Attack.Target": K + 1, "Buy.MarketItem": M + 1, "Destroy.InventoryItem": N + 1,
        "Give.InventoryItem": N + 1, "Give.Target": K + 1, "GiveGold.Price": 100, "GiveGold.Target": K + 1,
        "Move.Direction": 5, "Sell.InventoryItem": N + 1, "Sell.Price": 99, "Use.InventoryItem": N + 1,
    }  # fmt: skip
    fields = {
        "Tile": ((225, 3), "int16"), "Entity": ((K, 31), "int16"), "Inventory": ((N, 16), "int16"),
        "Market": ((M, 16), "int16"), "Task": ((8,), "float16"), "Tick": ((1,), "int16"),
    }  # fmt: skip
    if systems == "core":
        parts = {k: v for k, v in parts.items() if k.startswith(("Attack", "Move"))}
        fields = {k: fields[k] for k in ("Tile", "Entity", "Tick")}
    fields["Mask"] = ((sum(parts.values()),), "int8")
    return EnvSpec(
        env_id="nmmo",
        obs={k: Field(shape=shape, dtype=dtype) for k, (shape, dtype) in fields.items()},
        action_names=tuple(f"{part}={i}" for part, n in parts.items() for i in range(n)),
        slots=B,
        action_parts=parts,
    )


def observations(spec: EnvSpec, batch: int = B, seed: int = 0, *, everything: bool = False) -> dict[str, Tensor]:
    """Plausible observations; a third of the rows of every table is empty unless ``everything``, and the mask is random
    (at least one choice a part) unless ``everything`` is allowed."""
    rng = np.random.default_rng(seed)
    entity = rng.integers(0, 100, (batch, K, 31))
    entity[:, :, ENTITY["id"]] = rng.permuted(np.tile(np.arange(1, K + 1), (batch, 1)), axis=1)
    entity[:, K // 2 :, ENTITY["id"]] *= -1  # NPCs; the own row is a player
    entity[:, :, ENTITY["npc_type"]] = rng.integers(-1, 4, (batch, K))
    entity[:, :, ENTITY["row"] : ENTITY["col"] + 1] = rng.integers(40, 55, (batch, K, 2))
    tick = rng.integers(10, 1000, (batch, 1))
    entity[:, :, ENTITY["latest_combat_tick"]] = tick - rng.integers(0, 10, (batch, K))
    row, col = (x.ravel() + entity[:, :1, ENTITY["row"] + i] - 7 for i, x in enumerate(np.mgrid[:15, :15]))
    out = {
        "Tile": np.stack([row, col, rng.integers(0, 16, (batch, 225))], 2),
        "Entity": entity,
        "Tick": tick,
    }
    for name, rows in (("Inventory", N), ("Market", M)):
        out[name] = rng.integers(1, 18, (batch, rows, 16))
        if not everything:
            out[name][rng.random((batch, rows)) < 1 / 3] = 0
    if not everything:
        entity[:, 1:][rng.random((batch, K - 1)) < 1 / 3] = 0
    out["Task"] = rng.normal(size=(batch, 8))
    mask = rng.random((batch, spec.n_actions)) < 0.5
    for piece in part_slices(spec).values():
        mask[np.arange(batch), rng.integers(piece.start, piece.stop, batch)] = True
    out["Mask"] = mask | everything
    return {k: torch.as_tensor(out[k]).to(getattr(torch, about.dtype)) for k, about in spec.obs.items()}


def agent_of(module: str, systems: str) -> PolicyAgent:
    torch.manual_seed(0)
    return PolicyAgent(module, spec_of(systems), SIZE)


def forward(agent: PolicyAgent, obs: dict[str, Tensor], core: Tensor | None = None) -> tuple[Tensor, ...]:
    """(h, the recurrence's state, logits, value) of one step in the middle of a life; core: its state before."""
    batch = len(obs["Tick"])
    seen, (h, initial) = agent.encode(obs), agent.initial(batch)
    state = agent.advance(seen, (h, initial if core is None else core), torch.zeros(batch, dtype=torch.bool))
    return *state, *agent.heads(seen, state)


def core_state(agent: PolicyAgent, batch: int = B) -> Tensor:
    """An arbitrary state of the recurrence."""
    return torch.randn_like(agent.initial(batch)[1])


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_shapes_and_masks(module: str, systems: str) -> None:
    agent, spec = agent_of(module, systems), spec_of(systems)
    obs = observations(spec)
    h, state, logits, value = forward(agent, obs)
    about = agent.describe()
    assert h.shape == (B, agent.points["h"]) and agent.points["h"] == about["hidden_size"]
    assert state.shape == agent.initial(B)[1].shape == (B, about["state_size"])
    assert logits.shape == (B, spec.n_actions) and value.shape == (B,)
    assert all(torch.isfinite(x).all() for x in (h, state, logits, value))
    assert torch.equal(logits == -1e9, obs["Mask"] == 0)
    assert float(logits.detach()[obs["Mask"] != 0].abs().max()) < 100
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([piece.start for piece in part_slices(spec).values()])
    for _ in range(50):
        action = sample(logits, spec, generator)
        assert action.dtype == torch.int64 and action.shape == (B, len(spec.action_parts))
        assert obs["Mask"].gather(1, action + starts).all()
    assert torch.isfinite(log_probs(logits, action, spec)).all()


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_batched_is_single_and_nothing_is_changed(module: str, systems: str) -> None:
    agent = agent_of(module, systems)
    obs = observations(agent.spec)
    state = core_state(agent)
    kept = {k: v.clone() for k, v in obs.items()} | {"state": state.clone()}
    weights = fingerprint(agent)
    together = forward(agent, obs, state)
    for b in range(B):
        alone = forward(agent, {k: v[b : b + 1] for k, v in obs.items()}, state[b : b + 1])
        for x, y in zip(alone, together, strict=True):
            torch.testing.assert_close(x[0], y[b], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(kept[k], v) for k, v in (obs | {"state": state}).items()) and fingerprint(agent) == weights
    assert all(torch.equal(x, y) for x, y in zip(forward(agent, obs, state), together, strict=True))


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_other_number_types(module: str, systems: str) -> None:
    """float64 throughout, or an encoder in bfloat16: the same function, less or more exactly."""
    agent = agent_of(module, systems)
    obs = observations(agent.spec)
    seen = agent.encode(obs)
    like_h = (seen[0], agent.initial(B)[1])
    logits, value = agent.heads(seen, like_h)
    with torch.autocast("cpu", torch.bfloat16):
        half = agent.encode(obs)
    torch.testing.assert_close(half[0].float(), seen[0], rtol=0.1, atol=0.1)
    torch.testing.assert_close(agent.heads(half, like_h)[0], logits, rtol=0.1, atol=0.1)
    agent.double()
    h, _, *exact = forward(agent, obs)
    assert h.dtype == exact[0].dtype == torch.float64
    precise = agent.encode(obs)
    torch.testing.assert_close(precise[0].float(), seen[0], rtol=1e-4, atol=1e-4)
    for mine, other in zip(agent.heads(precise, (precise[0], like_h[1])), (logits, value), strict=True):
        torch.testing.assert_close(mine.float(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_every_parameter_learns(module: str, systems: str) -> None:
    agent = agent_of(module, systems)
    state, loss = None, torch.zeros(())
    for seed in range(3):
        _, state, logits, value = forward(agent, observations(agent.spec, 16, seed), state)
        action = sample(logits.detach(), agent.spec, torch.Generator().manual_seed(seed))
        loss = loss + log_probs(logits, action, agent.spec).sum() + value.square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in agent.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all() and parameter.grad.any(), name


@pytest.mark.parametrize(
    ("module", "recurrence", "layers"),
    [
        ("start_kit", "LSTM, 1 layer, 32", 1),
        ("yaofeng", "LSTM, 2 layers, 32", 2),
        ("takeru", "none", 0),
        ("hybrid", "LSTM, 1 layer, 32", 1),
    ],
)
def test_recurrence_is_as_reported_and_as_measured(module: str, recurrence: str, layers: int) -> None:
    agent = agent_of(module, "all")
    about = agent.describe()
    assert about["recurrence"] == recurrence and about["remembers"] == (layers > 0) and about["forgets_at_start"]
    assert (about["memory_change"] > 0.01) == (layers > 0)
    assert about["state_size"] == 2 * layers * SIZE and about["remembers_replaced_h"] == (layers > 0)
    assert about["parameters"] == sum(p.numel() for p in agent.parameters())
    json.dumps(about)
    obs = observations(agent.spec)
    seen, state = agent.encode(obs), (agent.initial(B)[0], core_state(agent))
    is_first = torch.arange(B) % 2 == 0
    mixture = agent.advance(seen, state, is_first)
    fresh = agent.advance(seen, agent.initial(B), torch.zeros(B, dtype=torch.bool))
    going = agent.advance(seen, state, torch.zeros(B, dtype=torch.bool))
    for mixed, new, old in zip(mixture, fresh, going, strict=True):
        assert torch.equal(mixed, torch.where(is_first[:, None], new, old))
    if layers:
        assert not torch.equal(fresh[0], going[0])
        nowhere = (state[0], torch.full_like(state[1], torch.nan))
        assert torch.isfinite(agent.advance(seen, nowhere, is_first | True)[0]).all()


def test_the_lstm_is_the_fields() -> None:
    torch.manual_seed(0)
    ours, cells = LSTM(5, 4, layers=2).double(), [nn.LSTMCell(n, 4).double() for n in (5, 4)]
    for i, cell in enumerate(cells):
        cell.weight_ih.data, cell.weight_hh.data = ours.inputs[i].weight.data, ours.recurrent[i].weight.data
        cell.bias_ih.data, cell.bias_hh.data = ours.inputs[i].bias.data, torch.zeros(16, dtype=torch.float64)
    x, state = (torch.randn(3, n, dtype=torch.float64, requires_grad=True) for n in (5, 16))
    no = torch.zeros(3, dtype=torch.bool)
    h, after = ours.advance(x, state, no)
    lower = cells[0](x, (state[:, :4], state[:, 4:8]))
    upper = cells[1](lower[0], (state[:, 8:12], state[:, 12:]))
    torch.testing.assert_close(after, torch.cat([*lower, *upper], 1), rtol=1e-12, atol=1e-12)
    assert torch.equal(h, after[:, 8:12])
    assert torch.autograd.gradgradcheck(lambda x, s: ours.advance(x, s, no)[1], (x, state))


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_heads_point_at_rows_not_at_places(module: str, systems: str) -> None:
    agent, spec = agent_of(module, systems), spec_of(systems)
    obs = observations(spec, everything=True)
    logits = forward(agent, obs)[2]
    rng = np.random.default_rng(1)
    for table, end, rows, first in (("Entity", "Target", K, 1), ("Inventory", "InventoryItem", N, 0),
                                    ("Market", "MarketItem", M, 0)):  # fmt: skip
        order = torch.tensor([*range(first), *(first + rng.permutation(rows - first))])
        other = forward(agent, obs | ({table: obs[table][:, order]} if table in obs else {}))[2]
        for part, piece in part_slices(spec).items():
            moved = torch.cat([order, torch.tensor([rows])]) if part.endswith(end) else slice(None)
            torch.testing.assert_close(other[:, piece], logits[:, piece][:, moved], rtol=1e-4, atol=1e-6)
            if part.endswith(end):  # and the choices differ from one another, so that the order could be wrong
                assert logits[:, piece].std(1).min() > 1e-5


@pytest.mark.parametrize("module", ["takeru", "yaofeng"])
def test_folded_tiles_are_the_plain_convolution(module: str) -> None:
    tiles = agent_of(module, "core").double().policy.tiles
    assert isinstance(tiles, MaterialTiles)
    shown = observations(spec_of("core"))["Tile"]
    plain = tiles.convolve(tiles.material(shown[..., 2].long()).unflatten(1, (15, 15)).permute(0, 3, 1, 2))
    folded, weights = tiles(shown), list(tiles.parameters())
    torch.testing.assert_close(folded, plain, rtol=1e-9, atol=1e-9)
    for mine, other in zip(*(torch.autograd.grad(x.square().sum(), weights) for x in (folded, plain)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


def test_item_rows_and_their_mean() -> None:
    torch.manual_seed(0)
    items = Items(SIZE)
    table = observations(spec_of("all"))["Inventory"]
    own = torch.arange(B, dtype=torch.int16)
    pooled, keys = items(table, own)
    for b in range(B):
        filled = table[b, :, 0] != 0
        hidden = items.row(items.features(table[b][filled], own[b].expand(int(filled.sum()))))
        torch.testing.assert_close(pooled[b, :-1], hidden.mean(0))
        torch.testing.assert_close(keys[b][filled], items.key(hidden))
        assert not keys[b][~filled].any() and pooled[b, -1].item() == pytest.approx(np.log1p(int(filled.sum())))


def test_entity_features_by_hand() -> None:
    own, other = ({"id": 3, "row": 40, "col": 50, "attacker_id": -2}, {"id": -2, "row": 44, "col": 46, "npc_type": 3})
    other |= {"health": 50, "food": 25, "attacker_id": 3, "latest_combat_tick": 96, "gold": 99}
    rows = np.zeros((2, 31), np.int16)
    for i, row in enumerate((own, other)):
        for name, value in row.items():
            rows[i, ENTITY[name]] = value
    rows[1, 15], rows[1, 16] = 7, 20  # melee level and experience
    table = torch.from_numpy(rows)
    x = EntityFeatures(SIZE, ids=False)(table, table[[0, 0]], torch.full((2, 1), 100, dtype=torch.int16))
    want = torch.zeros(2, x.shape[1])
    want[0, 5], want[0, 26], want[0, 32] = 1, 1, 1  # never fought; a player; kind 0
    want[1, :2] = torch.tensor([0.5, -0.5])
    want[1, 5:8] = torch.tensor([0.4, 0.5, 0.25])  # fought 4 ticks ago; health, food
    want[1, 9], want[1, 17] = 0.7, np.log(21) / 10
    want[1, 25], want[1, 27], want[1, 28] = 1, 1, 1  # has fought; attacks me; attacked by me
    want[1, 30], want[1, 35] = np.log(100) / 7, 1
    torch.testing.assert_close(x, want)


@pytest.mark.parametrize("module", ZOO)
def test_who_sees_the_others(module: str) -> None:
    """In takeru and hybrid other agents never enter h; only the heads see them."""
    agent = agent_of(module, "all")
    obs = observations(agent.spec)
    others = obs["Entity"].clone()
    others[:, 1:, ENTITY["health"]] = 7
    h, _, logits, _ = forward(agent, obs)
    h_other, _, logits_other, _ = forward(agent, obs | {"Entity": others})
    assert torch.equal(h, h_other) == (module in ("takeru", "hybrid"))
    assert not torch.equal(logits, logits_other)


@pytest.mark.parametrize("module", ZOO)
def test_who_knows_its_name(module: str) -> None:
    """takeru and hybrid embed ids, start_kit and yaofeng see no more than that an entity is a player."""
    agent = agent_of(module, "core")
    obs = observations(agent.spec)
    other = obs["Entity"].clone()
    other[:, :, ENTITY["attacker_id"]] = 77  # nobody
    h = forward(agent, obs | {"Entity": other.clone()})[0]
    assert (other[:, 0, ENTITY["id"]] > 0).all()
    other[:, 0, ENTITY["id"]] += 20
    assert torch.equal(h, forward(agent, obs | {"Entity": other})[0]) == (module in ("start_kit", "yaofeng"))


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_what_each_field_does_to_h(module: str, systems: str) -> None:
    """Every field but the mask changes h (the tick dates the last fight); start_kit alone sees where tiles lie."""
    agent, spec = agent_of(module, systems), spec_of(systems)
    obs = observations(spec)
    h = forward(agent, obs)[0]
    for name in obs:
        same = torch.equal(h, forward(agent, obs | {name: obs[name].flip(0)})[0])
        assert same == (name == "Mask"), name
    place = obs["Tile"].clone()
    place[:, 5, 1] -= 1
    assert torch.equal(h, forward(agent, obs | {"Tile": place})[0]) == (module != "start_kit")


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_any_numbers_are_read(module: str, systems: str) -> None:
    """A dead slot's zeros and the extremes of int16: nothing infinite, nothing NaN, gradients included."""
    agent, spec = agent_of(module, systems), spec_of(systems)
    rng = np.random.default_rng(0)
    shown = observations(spec)
    wild = {k: torch.from_numpy(rng.integers(-(2**15), 2**15, v.shape)).to(v.dtype) if v.dtype == torch.int16 else v
            for k, v in shown.items()}  # fmt: skip
    for obs in ({k: torch.zeros_like(v) for k, v in shown.items()}, wild):
        agent.zero_grad()
        h, _, logits, value = forward(agent, obs)
        action = sample(logits, spec, torch.Generator().manual_seed(0))
        rows = log_probs(logits, action, spec), entropies(logits, spec)
        (rows[0].sum() + rows[1].sum() + value.sum()).backward()
        gradients = [p.grad for p in agent.parameters() if p.grad is not None]
        assert all(torch.isfinite(x).all() for x in (h, logits, value, *rows, *gradients))


def test_distributions_are_those_of_torch() -> None:
    spec = spec_of("all")
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(B, spec.n_actions, generator=generator, dtype=torch.float64) for _ in range(2))
    allowed = observations(spec)["Mask"] != 0
    p, q = p.masked_fill(~allowed, -1e9), q.masked_fill(~allowed, -1e9)
    action = sample(p, spec, generator)
    for i, piece in enumerate(part_slices(spec).values()):
        mine, other = (torch.distributions.Categorical(logits=x[:, piece]) for x in (p, q))
        torch.testing.assert_close(log_probs(p, action, spec)[:, i], mine.log_prob(action[:, i]))
        torch.testing.assert_close(entropies(p, spec)[:, i], mine.entropy())
        torch.testing.assert_close(kl_per_part(p, q, spec)[:, i], torch.distributions.kl_divergence(mine, other))
    assert (kl_per_part(p, p, spec) == 0).all()
    several = torch.stack([allowed[:, s].sum(1) > 1 for s in part_slices(spec).values()], 1)
    assert ((kl_per_part(p, q, spec) > 0) == several).all()
    assert torch.equal(sample(p, spec, greedy=True)[:, 0], p[:, part_slices(spec)["Attack.Style"]].argmax(1))
    again = [sample(p, spec, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*again)
    n, move = 20_000, part_slices(spec)["Move.Direction"]
    drawn = sample(p[:1].expand(n, -1), spec, generator)[:, list(spec.action_parts).index("Move.Direction")]
    want = p[0, move].softmax(0)
    share = torch.bincount(drawn, minlength=5) / n
    assert ((share - want).abs() <= 5 * (want * (1 - want) / n).sqrt()).all()


# --- rewards ----------------------------------------------------------------------------------------------------------


def step_of(rows: list[dict[str, int]], **others: object) -> Step:
    """One slot a row; keys are columns of the own Entity row, ``unique`` and ``reward``; ``armour`` is equipped,
    ``spare`` carried."""
    n = len(rows)
    entity, items = np.zeros((n, K, 31), np.int16), np.zeros((n, N, 16), np.int16)
    entity[:, 1:] = 50  # the others' rows do not count
    for b, row in enumerate(rows):
        for key, value in row.items():
            if key in ENTITY:
                entity[b, 0, ENTITY[key]] = value
            elif key == "experience":
                entity[b, 0, 16] = entity[b, 0, 30] = value  # melee and alchemy
        items[b, 0, ITEM["mage_defense"]] = items[b, 0, ITEM["range_defense"]] = row.get("armour", 0)
        items[b, 1, ITEM["melee_defense"]] = row.get("spare", 0)
        items[b, 0, ITEM["equipped"]] = 1
        items[b, :, ITEM["melee_attack"]] = 9
    no = np.zeros(n, bool)
    fields = {"terminated": no, "truncated": no, "is_first": no} | others
    return Step(
        obs={"Entity": entity, "Inventory": items},
        reward=np.array([row.get("reward", 0) for row in rows], np.float32),
        truth={"unique_events": np.array([row.get("unique", 0) for row in rows], np.int16)},
        **fields,  # type: ignore[arg-type]
    )


BEFORE = {"health": 50, "experience": 100, "gold": 10, "armour": 5, "spare": 0}
AFTERS = [
    {**BEFORE},
    {**BEFORE, "health": 60, "unique": 1},
    {**BEFORE, "health": 40, "unique": 5, "reward": 1},
    {**BEFORE, "experience": 105, "gold": 30, "armour": 10, "spare": 90},
]
HAND = {
    "start_kit": [0, 0.03 + 0.01, 1 + 0.03, 0],
    "takeru": [0, 0.01, 1.05, 0],
    "yaofeng": [0, 0.1 * 0.3, 1 - 0.1 * 0.3, 0.1 * (0.002 * 10 + 0.001 * 20 + 0.04 * 10)],
}
HAND["hybrid"] = HAND["yaofeng"]


@pytest.mark.parametrize("module", ZOO)
def test_rewards_by_hand(module: str) -> None:
    wrapper = load_module(module).reward()
    before, after = step_of([BEFORE] * 4), step_of(AFTERS)
    reward = wrapper(before, after)
    assert reward.dtype == np.float32
    np.testing.assert_allclose(reward, HAND[module], atol=1e-7)
    assert after.reward.tolist() == [0, 0, 1, 0]
    everywhere = np.ones(4, bool)
    bare = [step_of(AFTERS, is_first=everywhere), step_of(AFTERS, alive=~everywhere)]
    for other in bare:  # a new life; dead now; dead before
        np.testing.assert_array_equal(wrapper(before, other), other.reward)
    np.testing.assert_array_equal(wrapper(step_of([BEFORE] * 4, alive=~everywhere), after), after.reward)
    np.testing.assert_allclose(wrapper(step_of([BEFORE] * 4, is_first=everywhere), after), HAND[module], atol=1e-7)
    half = np.arange(4) < 2
    mixed = wrapper(before, step_of(AFTERS, alive=half))
    np.testing.assert_allclose(mixed, np.where(half, HAND[module], after.reward), atol=1e-7)


def test_growth_without_an_inventory() -> None:
    steps = [step_of([BEFORE]), step_of([{**BEFORE, "armour": 90, "health": 60}])]
    for step in steps:
        del step.obs["Inventory"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(load_module("yaofeng").reward()(*steps), [0.03], atol=1e-7)


# --- saving, loading, a user's module ---------------------------------------------------------------------------------

MINE = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn
from agents.zoo.hybrid import Recurrent, RewardWrapper
from agents.zoo.takeru import Policy as Takeru

@dataclass
class Options:
    scale: float = 2.0

class Policy(Takeru):
    def decode(self, h, seen):
        logits, value = super().decode(h, seen)
        return logits, Options().scale * value
"""


def saved(agent: PolicyAgent, path: Path) -> Path:
    with artefacts.new_run(path, "train", {}) as run:
        save_policy(agent, run.path)
    return path


@pytest.mark.parametrize(("module", "systems"), CASES)
def test_save_and_load(module: str, systems: str, tmp_path: Path) -> None:
    agent = agent_of(module, systems)
    loaded = load_policy(saved(agent, tmp_path / "run"))
    assert fingerprint(loaded) == fingerprint(agent) and loaded.spec == agent.spec and loaded.name == module
    assert list(loaded.spec.action_parts) == list(agent.spec.action_parts)
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    obs = observations(agent.spec)
    assert all(torch.equal(x, y) for x, y in zip(forward(loaded, obs), forward(agent, obs), strict=True))


def test_a_users_module_travels_with_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    torch.manual_seed(0)
    agent = PolicyAgent(file, spec_of("core"), SIZE)
    zoo = agent_of("hybrid", "core")
    obs = observations(agent.spec)
    assert agent.name == "mine" and agent.recurrence == zoo.recurrence
    torch.testing.assert_close(forward(agent, obs)[3], 2 * forward(zoo, obs)[3])
    run = saved(agent, tmp_path / "run")
    file.write_text(MINE.replace("2.0", "3.0"))  # the user goes on working; the run keeps what it was trained with
    loaded = load_policy(run)
    assert loaded.name == "mine" and torch.equal(forward(loaded, obs)[3], forward(agent, obs)[3])
    assert artefacts.verify(run) == []  # reading leaves nothing behind
    again = saved(loaded, tmp_path / "again")
    assert (again / "policy_module.py").read_text() == MINE
    ran = tmp_path / "it ran"
    (run / "policy_module.py").write_text(f"open({str(ran)!r}, 'w')\n" + MINE)
    with pytest.raises(UserError, match=r"policy_module.py: content differs from its manifest; copy or make it again"):
        load_policy(run)
    artefacts.Run(path=run, stage="train", config={}).finish()  # a manifest that knows it; policy.json does not
    with pytest.raises(UserError, match=r"policy_module.py is not the module that its description names"):
        load_policy(run)
    assert not ran.exists()
    (run / "policy_module.py").unlink()
    with pytest.raises(UserError, match="policy_module.py is missing"):
        load_policy(run)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "no Policy and no Recurrent and no RewardWrapper"),
        ("from agents.zoo.takeru import Policy, RewardWrapper", "has no Recurrent;"),
        ("from agents.zoo.takeru import Policy, Recurrent", "has no RewardWrapper;"),
        ("from agents.zoo.takeru import *\nPolicy = 3", "Policy is not a torch.nn.Module class"),
        ("from agents.zoo.takeru import *\nRecurrent = dict", "Recurrent is not a torch.nn.Module class"),
        ("from agents.zoo.takeru import *\nRewardWrapper = 1", "RewardWrapper is not a class"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        ("from agents.zoo.takeru import *\nclass Policy(Policy):\n  def __init__(self, spec, size): 1 / 0", "ZeroDiv"),
        (
            "from agents.zoo.takeru import *\nclass Policy(Policy):\n  def decode(self, h, seen):\n"
            "    return super().decode(h, seen)[0][:, 1:], h[:, 0]",
            "decode's logits has shape",
        ),
        (
            "from agents.zoo.hybrid import *\nclass Recurrent(Recurrent):\n  def advance(self, e, state, is_first):\n"
            "    return super().advance(e, state, is_first)[0], state[:, 1:]",
            "advance's state has shape",
        ),
    ],
)
def test_bad_modules(source: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(source)
    with pytest.raises(UserError, match=says) as error:
        PolicyAgent(file, spec_of("core"), SIZE)
    assert "\n" not in str(error.value)


def without(spec: EnvSpec, field: str) -> EnvSpec:
    return EnvSpec.from_json({**spec.to_json(), "obs": {k: v for k, v in spec.to_json()["obs"].items() if k != field}})


def test_what_no_head_or_encoder_reads_is_refused() -> None:
    spec = spec_of("all")
    for field, says in (
        ("Inventory", "no head for action part 'Destroy.InventoryItem'"),
        ("Market", "no head for action part 'Buy.MarketItem'"),
        ("Entity", "shows no Entity"),
        ("Mask", "shows no Mask"),
    ):
        with pytest.raises(UserError, match=says):
            PolicyAgent("hybrid", without(spec, field), SIZE)
    PolicyAgent("hybrid", without(spec, "Task"), SIZE)
    parts = dict(spec.action_parts) | {"Give.Target": K + 2, "Attack.Style": 3}
    with pytest.raises(UserError, match="no head for action part 'Give.Target': 11 choices for the 9 rows of Entity"):
        PolicyAgent("hybrid", EnvSpec.from_json({**spec.to_json(), "action_parts": parts}), SIZE)
    with pytest.raises(UserError, match="one discrete action"):
        PolicyAgent("hybrid", EnvSpec.from_json({**spec.to_json(), "action_parts": {}}), SIZE)
    with pytest.raises(UserError, match="at least 16, not 8"):
        PolicyAgent("hybrid", spec, 8)
    with pytest.raises(UserError, match="did you mean yaofeng"):
        PolicyAgent("yaofen", spec, SIZE)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    agent = agent_of("hybrid", "all")
    run = saved(agent, tmp_path / "run")
    known = json.loads((run / "policy.json").read_text())

    def with_policy(**changes: object) -> None:
        artefacts.write_json(run / "policy.json", known | changes)
        artefacts.Run(path=run, stage="train", config={}).finish()

    for changes, says in (
        ({"size": 48}, "another architecture"),
        ({"module": "yaofeng"}, "another architecture"),
        ({"spec": spec_of("core").to_json()}, "another architecture"),
        ({"module": "theirs"}, "no policy 'theirs'"),
        ({"module": str(tmp_path / "x.py")}, "no policy"),
        ({"size": "big"}, "no policy 'hybrid' of size 'big'"),
        ({"spec": {}}, "not the description of an environment"),
    ):
        with_policy(**changes)
        with pytest.raises(UserError, match=says):
            load_policy(run)
    (run / "policy.json").write_text("{}")
    with pytest.raises(UserError, match="content differs from its manifest"):
        load_policy(run)
    artefacts.Run(path=run, stage="train", config={}).finish()
    with pytest.raises(UserError, match="not the description of a policy"):
        load_policy(run)
    with_policy()
    assert fingerprint(load_policy(run)) == fingerprint(agent)
    (run / artefacts.MANIFEST).unlink()
    with pytest.raises(UserError, match="half-written"):
        load_policy(run)
    with artefacts.new_run(tmp_path / "other", "train", {}), pytest.raises(UserError, match="half-written"):
        load_policy(tmp_path / "other")
    with pytest.raises(UserError, match="holds no policy"):
        load_policy(tmp_path / "other")


def test_an_agent_of_another_world_is_evaluated_by_another_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.json").touch()
    with pytest.raises(SystemExit) as end:
        evaluate.choose([str(tmp_path), "pve"])
    assert end.value.code == 2
    assert f"{tmp_path} is an agent of another world: say --agent {tmp_path}\n" in capsys.readouterr().err


def test_large_empty_tables_are_not_computed() -> None:
    """Rows without an id change nothing, whatever else they hold."""
    agent = agent_of("start_kit", "all")
    obs = observations(agent.spec)
    other = {k: v.clone() for k, v in obs.items()}
    for table in ("Entity", "Inventory", "Market"):
        empty = other[table][..., 0] == 0
        assert empty.any()
        other[table][..., 1:][empty] = 77
    assert all(torch.equal(x, y) for x, y in zip(forward(agent, obs), forward(agent, other), strict=True))
