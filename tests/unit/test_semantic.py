"""The policy that clusters its own states: its losses against their definition, its points, its controller, what it
refuses."""

from __future__ import annotations

import csv
import json
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from agents import train
from agents.load import load_agent
from agents.ppo import PPOConfig, Rollout, clipped_loss, loss_of, single_steps, update
from agents.progress import COLUMNS, progress_rows
from agents.recurrent import AgentConfig, RecurrentAgent
from agents.semantic import (
    DESCRIPTION,
    Controller,
    SemanticAgent,
    SemanticOptions,
    fdr_loss,
    load_semantic,
    save_semantic,
    semantic_loss_of,
    vq_loss,
)
from core import artefacts, config as cli
from core.artefacts import new_run
from core.contracts import UserError
from core.directions import fingerprint
from envs import registry
from envs.planted import PlantedOptions, spec_of
from envs.procgen import GAMES
from envs.procgen_returns import RETURNS, returns_of

VECTOR = spec_of(PlantedOptions(), 1)
OPTIONS = SemanticOptions()


def agent_of(recurrence: str = "features", blocks: int = 1, **options: object) -> SemanticAgent:
    torch.manual_seed(0)
    sizes = {"embedding_size": 10, "hidden_size": 10, "blocks": blocks}
    net = AgentConfig(encoder="mlp", recurrence=recurrence, **sizes)  # type: ignore[arg-type]
    agent = SemanticAgent(net, VECTOR, SemanticOptions(**options))  # type: ignore[arg-type]
    with torch.no_grad():
        agent.policy.weight.mul_(100)
    return agent.eval()


def by_definition(h: Tensor, plane: Tensor, o: SemanticOptions) -> Tensor:
    """The embedding's loss as METHODS writes it."""

    def neighbourhoods(x: Tensor, alpha: float) -> Tensor:
        squared = ((x[:, None] - x[None]) ** 2).sum(-1)
        kernel = (1 + squared / alpha) ** (-(alpha + 1) / 2) * (1 - torch.eye(len(x), dtype=x.dtype))
        return (kernel / kernel.sum(0)).clamp_min(1e-10)

    p = neighbourhoods(h.detach() if o.stop_p else h, o.alpha1)
    return -(p * neighbourhoods(plane, o.alpha2).log()).sum() / len(h) ** 2


# The losses


@pytest.mark.parametrize("stop_p", [False, True])
@pytest.mark.parametrize(("spread", "wide", "away"), [(1, 1, 0), (8, 3, 0), (1, 12, 0), (1, 1, 1000)])
def test_the_embeddings_loss_and_gradient_are_those_of_a_float64_reference(
    stop_p: bool, spread: float, wide: float, away: float
) -> None:
    """Also of features far from 0, and of planes so wide that the clip counts."""
    g, options = torch.Generator().manual_seed(0), SemanticOptions(stop_p=stop_p)
    h, y = torch.rand(300, 24, generator=g) * spread + away, torch.randn(300, 2, generator=g) * wide
    exact = [x.double().requires_grad_() for x in (h, y)]
    want = by_definition(*exact, options)  # type: ignore[arg-type]
    told = torch.autograd.grad(want, exact, allow_unused=True)
    got = fdr_loss(h.requires_grad_(), y.requires_grad_(), options)
    assert abs(float(got.detach() / want.detach()) - 1) < 1e-5
    found = torch.autograd.grad(got, [h, y], allow_unused=True)
    assert (found[0] is None) == stop_p == (told[0] is None)
    for a, b in zip(found, told, strict=True):
        assert a is None or float((a - b).norm() / b.norm()) < 1e-4


def test_the_embeddings_gradient_in_double_is_exact() -> None:
    g = torch.Generator().manual_seed(1)
    h, y = (torch.randn(7, n, generator=g, dtype=torch.float64, requires_grad=True) for n in (3, 2))
    assert torch.autograd.gradcheck(lambda *x: fdr_loss(*x, OPTIONS), (h, y))


def test_a_plane_that_tells_nothing_apart_costs_the_logarithm_of_the_neighbours() -> None:
    """ln 2048 / 2048 = .00372, where the reference curves begin."""
    h = torch.rand(2048, 16, generator=torch.Generator().manual_seed(0))
    assert float(fdr_loss(h, torch.zeros(2048, 2), OPTIONS)) == pytest.approx(math.log(2047) / 2048, rel=1e-4)


def test_states_of_one_place_give_a_finite_loss_and_gradient() -> None:
    h = torch.zeros(5, 4, requires_grad=True)
    loss = fdr_loss(h, torch.full((5, 2), 1e6), OPTIONS)
    (grad,) = torch.autograd.grad(loss, h)
    assert loss.isfinite() and grad.isfinite().all()


def test_codes_are_drawn_to_states_and_with_beta_states_to_codes() -> None:
    plane = torch.tensor([[1.0, 0.0]], requires_grad=True)
    code = torch.tensor([[0.0, 2.0]], requires_grad=True)
    loss = vq_loss(plane, code, 0.0)
    assert float(loss.detach()) == 2.5  # (1 + 4) / 2
    grads = torch.autograd.grad(loss, [plane, code], allow_unused=True)
    assert grads[0] is None and torch.equal(grads[1], code - plane)
    weighted = torch.autograd.grad(vq_loss(plane, code, 0.5), [plane, code])
    assert torch.equal(weighted[0], 0.5 * (plane - code)) and torch.equal(weighted[1], code - plane)


def test_codes_are_running_means_of_their_states_at_any_size_of_the_plane() -> None:
    """Four groups of states, a hundred units out: by Adam's steps codes would need 200,000 minibatches to get there."""
    agent, g = agent_of(), torch.Generator().manual_seed(0)
    centres = torch.tensor([[100.0, 100.0], [-100.0, 100.0], [100.0, -100.0], [-100.0, -100.0]])
    for _ in range(1000):
        plane = centres.repeat(16, 1) + torch.randn(64, 2, generator=g)
        agent.draw_codes(plane, agent.code(plane), 0.01)
    assert len(agent.code(centres).unique()) == 4
    assert torch.allclose(agent.codebook_C2[agent.code(centres)], centres, atol=2)
    before = agent.codebook_C2.detach().clone()
    agent.draw_codes(centres[:1], agent.code(centres[:1]), 0.5)
    assert (agent.codebook_C2 != before).any(1).sum() == 1  # those without states stay


@pytest.mark.parametrize(("rate", "weight"), [(0.01, 1.0), (0.01, 0.0), (0.0, 1.0)])
def test_the_codebooks_loss_has_no_part_in_the_clip_of_the_policys_gradient(rate: float, weight: float) -> None:
    """A codebook far from its states has a gradient that would leave PPO's nothing of the norm that is clipped."""
    agent = agent_of(codebook_rate=rate)
    with torch.no_grad():
        agent.codebook_C2 += 1000
    before, r = agent.codebook_C2.detach().clone(), rollout_of(agent)
    config = PPOConfig(envs=6, rollout_steps=4)
    step = semantic_loss_of(agent.semantic, Controller(50, 10, weight=weight))
    loss, parts = step(agent, r, r.reward, torch.arange(6), config, 0.01)
    loss.backward()  # type: ignore[no-untyped-call]
    plain, _ = loss_of(agent, r, r.reward, torch.arange(6), config, 0.01)
    want = plain + weight * (500 * parts["fdr_loss"] + parts["vq_loss"])
    assert float(loss.detach()) == pytest.approx(float(want.detach()), rel=1e-6)
    if rate:
        assert agent.codebook_C2.grad is None
        assert torch.equal(agent.codebook_C2, before) == (weight == 0)  # the controller's weight is theirs, too
    else:
        assert agent.codebook_C2.grad is not None and agent.codebook_C2.grad.norm() > 500
        assert torch.equal(agent.codebook_C2, before)


def test_the_gradient_of_the_loss_reaches_encoder_embedding_and_codebook_as_asked() -> None:
    def reached(**options: object) -> set[str]:
        agent = agent_of(**options)
        seen = agent.encode(
            {"x": torch.randn(64, VECTOR.obs["x"].shape[0], generator=torch.Generator().manual_seed(2))}
        )
        plane = agent.plane(seen)
        fdr = fdr_loss(seen, plane.detach(), agent.semantic)
        fdr.backward() if fdr.requires_grad else None  # type: ignore[no-untyped-call]
        return {name.partition(".")[0] for name, p in agent.named_parameters() if p.grad is not None}

    assert reached() == {"encoder"} and reached(stop_p=True) == set()


def rollout_of(agent: RecurrentAgent, steps: int = 4, envs: int = 6) -> Rollout:
    g = torch.Generator().manual_seed(1)
    number = {name: torch.randn(steps, envs, generator=g) for name in ("logp", "value", "reward")}
    is_first = torch.zeros(steps, envs, dtype=torch.bool)
    is_first[2, 1] = True
    return Rollout(
        obs={"x": torch.randn(steps, envs, VECTOR.obs["x"].shape[0], generator=g)}, is_first=is_first,
        action=torch.randint(0, VECTOR.n_actions, (steps, envs), generator=g), logp=number["logp"] - 2,
        value=number["value"], reward=number["reward"], done=is_first, state_first=torch.randn(envs, 10, generator=g),
        next_value=torch.zeros(envs),
    )  # fmt: skip


@pytest.mark.parametrize(("recurrence", "blocks"), [("features", 1), ("gru", 1), ("gru", 2)])
def test_the_whole_loss_is_ppos_plus_the_weighted_ones(recurrence: str, blocks: int) -> None:
    agent = agent_of(recurrence, blocks)
    r, columns = rollout_of(agent), torch.tensor([4, 0, 5])
    r.state_first = r.state_first if blocks == 1 else (r.state_first, r.state_first)
    advantage = r.reward
    config = PPOConfig(envs=6, rollout_steps=4)
    controller = Controller(50, 10, weight=0.25)
    loss, parts = semantic_loss_of(agent.semantic, controller)(agent, r, advantage, columns, config, 0.01)
    plain, _ = loss_of(agent, r, advantage, columns, config, 0.01)
    want = plain + 0.25 * (500 * parts["fdr_loss"] + parts["vq_loss"])
    assert float(loss.detach()) == pytest.approx(float(want.detach()), rel=1e-6)
    assert 1 <= parts["codes_used"] <= 8 and parts["semantic_weight"] == 0.25


def test_minibatches_of_steps_are_the_same_steps_one_by_one() -> None:
    """For an agent without a memory the loss over all of them is the same."""
    agent, config = agent_of(), PPOConfig(envs=6, rollout_steps=4)
    r = rollout_of(agent)
    single = single_steps(r)
    whole, _ = loss_of(agent, r, r.reward, torch.arange(6), config, 0.01)
    apart, _ = loss_of(agent, single, r.reward.reshape(1, -1), torch.arange(24), config, 0.01)
    torch.testing.assert_close(whole, apart)
    logits, value = agent.heads(*(x[0] for x in (agent.encode({"x": single.obs["x"]}),) * 2))
    same, _ = clipped_loss(logits, value, single, r.reward.reshape(1, -1), torch.arange(24), config, 0.01)
    torch.testing.assert_close(whole, same)


def test_an_update_by_steps_uses_every_step_once_a_pass() -> None:
    agent, seen = agent_of(), []

    def counts(agent: RecurrentAgent, r: Rollout, advantage: Tensor, columns: Tensor, *rest: object) -> object:
        seen.extend(columns.tolist())
        return loss_of(agent, r, advantage, columns, *rest)  # type: ignore[arg-type]

    config = PPOConfig(envs=6, rollout_steps=4, epochs=1, minibatches=3, minibatch_of="steps")
    adam = torch.optim.Adam(agent.parameters())
    update(agent, adam, rollout_of(agent), config, np.random.default_rng(0), 0.01, counts)  # type: ignore[arg-type]
    assert sorted(seen) == list(range(24))


# The points


@given(st.integers(0, 2**31 - 1))
@settings(max_examples=15, deadline=None)
def test_a_push_in_the_plane_moves_h_by_the_least_that_leads_there(seed: int) -> None:
    agent, g = agent_of(), torch.Generator().manual_seed(seed)
    h, to = torch.randn(6, 10, generator=g), torch.randn(6, 2, generator=g)
    with torch.no_grad():
        _, moved = agent.replaced("plane", to, h, h)
        torch.testing.assert_close(agent.read("plane", h, moved), to, rtol=1e-4, atol=1e-4)
        assert torch.equal(agent.replaced("plane", agent.read("plane", h, h), h, h)[1], h)
    down = agent.plane_axes()[0]
    span = torch.linalg.qr(down.T)[0]
    change = (moved - h).double()
    torch.testing.assert_close(change @ span @ span.T, change, rtol=1e-4, atol=1e-5)


def test_a_code_put_in_place_is_read_there_and_its_own_changes_nothing() -> None:
    agent = agent_of()
    with torch.no_grad():
        agent.codebook_C2.mul_(20)
        h = torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
        own = agent.read("code", h, h)
        assert own.sum(1).eq(1).all() and torch.equal(agent.replaced("code", own, h, h)[1], h)
        for c in range(8):
            want = torch.eye(8)[c].expand(40, -1)
            _, held = agent.replaced("code", want, h, h)
            assert torch.equal(agent.read("code", h, held), want)
            changed = (held != h).any(1)
            assert torch.equal(changed, own[:, c] == 0)
            torch.testing.assert_close(agent.plane(held)[changed], agent.codebook_C2[c].expand(int(changed.sum()), -1))


def test_the_ordinal_feature_is_the_index_over_the_codes_and_off_by_default() -> None:
    plain, ordinal = agent_of(), agent_of(ordinal=True)
    assert not SemanticOptions().ordinal
    h = torch.randn(30, 10, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for agent in (plain, ordinal):
            agent.codebook_C2.mul_(20)
        code = ordinal.read("code", h, h).argmax(1)
        assert len(code.unique()) > 1
        want = plain.heads(h, h + code[:, None] / 8)
        assert all(torch.equal(a, b) for a, b in zip(ordinal.heads(h, h), want, strict=True))


# The controller


def test_the_controllers_weight() -> None:
    """0 for the first 49 updates, then the return's share of 0.8 of the highest, looked at every 50."""
    controller = Controller.of(OPTIONS, "coinrun", "easy")
    weights = []
    for n in range(1, 151):
        controller.collected(deque([2.0 if n < 100 else 9.0]))
        weights.append(controller.weight)
    assert weights == [0.0] * 49 + [2 / 8] * 50 + [1.0] * 51


def test_the_controller_is_clamped_and_faithful_where_asked() -> None:
    low = deque([-1.0])
    ours = Controller.of(SemanticOptions(refresh=1), "fruitbot", "hard")
    theirs = Controller.of(SemanticOptions(refresh=1, faithful_controller=True), "fruitbot", "hard")
    ours.collected(low), theirs.collected(low)
    assert ours.weight == 0 and theirs.weight == pytest.approx(-1 / (0.8 * 32.4))
    assert ours.highest == 27.2 and theirs.highest == 32.4
    nothing = Controller(1, 10.0)
    nothing.collected(deque())  # no episode has ended
    assert nothing.weight == 0
    with pytest.raises(UserError, match="mode 'memory'.*say --score_max"):
        Controller.of(OPTIONS, "maze", "memory")
    assert Controller.of(SemanticOptions(score_max=3.0), "maze", "memory").highest == 3


def test_every_game_has_its_range_of_returns() -> None:
    assert all(set(games) == set(GAMES) for games in RETURNS.values())
    assert all(low < high for games in RETURNS.values() for low, high in games.values())
    with pytest.raises(UserError, match="no range of returns is known for 'coinrum' .did you mean coinrun"):
        returns_of("coinrum", "easy")


# The training


def trained(out: Path, *more: str) -> Path:
    argv = ["--preset", "debug", "--threads", "1", "--policy", "semantic", "--out", f"{out}", *more]
    train.main(cli.parse(train.TrainConfig, argv, train.STAGE))
    return out


def curve(path: Path) -> list[dict[str, str]]:
    with open(path / "curve.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "wall_s"} for row in csv.DictReader(file)]


def test_a_training_stops_and_goes_on_to_the_same_agent_and_writes_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The controller's count and weight go on, too; the earlier commands' flags are understood."""
    words = ["--env_name", "ninja", "--rand_seed=3", "--timesteps_per_proc", "1024", "--num-embeddings", "5"]
    whole = trained(tmp_path / "whole", *words)
    trained(tmp_path / "cut", *words, "--stop_after", "0.001s")
    with pytest.raises(UserError, match="semantic.alpha1 was 20.0 and is now 3.0"):
        trained(tmp_path / "cut", *words, "--resume", "--alpha1", "3")
    cut = trained(tmp_path / "cut", *words, "--resume")
    assert curve(whole) == curve(cut) and len(curve(whole)) == 4
    agent = load_agent(whole)
    assert isinstance(agent, SemanticAgent) and agent.spec.env_id == "procgen/ninja" and agent.points["code"] == 5
    assert fingerprint(agent) == fingerprint(load_agent(cut)) and artefacts.verify(cut) == []
    with open(cut / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and [row["misc/nupdates"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["misc/total_timesteps"] for row in rows] == ["256", "512", "768", "1024"]
    assert all(float(row["loss/skill_loss"]) > 0 and float(row["fps"]) > 0 for row in rows)
    assert "time is up" in capsys.readouterr().err


def test_progress_has_the_loss_that_was_minimised() -> None:
    row = {"step": 512, "wall_s": "2", "policy_loss": "1", "value_loss": "2", "entropy": "3", "loss": "1.775"}
    ppo = PPOConfig(envs=8, rollout_steps=32)
    (plain,) = progress_rows([row], ppo)
    assert plain["loss/loss"] == "1.775"
    assert plain["loss/vq_loss"] == "" and float(plain["fps"]) == 256 and plain["misc/serial_timesteps"] == 64
    more = row | {"fdr_loss": "0.002", "vq_loss": "0.5", "semantic_weight": "0.5"}
    (both,) = progress_rows([more], ppo, 500, 1)
    assert float(both["loss/cluster_value_loss"]) == pytest.approx(0.75)


def test_a_resume_to_more_steps_leaves_the_losses_of_before_it(tmp_path: Path) -> None:
    """They were made of the coefficients of the time (the entropy's is annealed), and hold the consistency term."""

    def losses(*more: str) -> list[dict[str, float]]:
        words = (
            "--policy",
            "plain",
            "--env_name",
            "ninja",
            "--consistency",
            "9",
            "--epochs",
            "1",
            "--anneal_entropy",
            *more,
        )
        with open(trained(tmp_path / "r", *words) / "progress.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        return [{k: float(v) for k, v in row.items() if v and k.startswith("loss/")} for row in rows]

    before = losses("--timesteps_per_proc", "512")
    rest = [r["loss/policy_loss"] + 0.5 * r["loss/value_loss"] - 0.01 * left * r["loss/policy_entropy"]
            for left, r in zip((1, 0.5), before, strict=True)]  # fmt: skip
    assert all(r["loss/loss"] > one + 1e-6 for r, one in zip(before, rest, strict=True))
    more = ("--timesteps_per_proc", "1024", "--resume")
    assert losses(*more)[:2] == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "debug", "--policy", "semantic", "--semantic_minibatch", "64"], "a minibatch has 128 steps"),
        (["--preset", "debug", "--policy", "semantic", "--codes", "1"], "--codes must be at least 2"),
        (["--preset", "debug", "--policy", "semantic", "--alpha1", "0"], "--alpha1 and --alpha2"),
        (["--preset", "debug", "--policy", "semantic", "--consistency", "0.1"], "have a loss each"),
        (["--preset", "debug", "--minibatch_of", "steps"], "for agents without a memory"),
        (["--preset", "debug", "--recurrence", "features"], "must be the same"),
        (
            ["--preset", "debug", "--recurrence", "none", "--minibatch_of", "steps", "--minibatches", "3"],
            "does not divide",
        ),
        (
            ["--preset", "debug", "--recurrence", "none", "--minibatch_of", "steps", "--minibatches", "256"],
            "one step alone, and no spread",
        ),
        (["--preset", "debug", "--envs", "2", "--rollout_steps", "1"], "one step alone, and no spread"),
        (
            ["--preset", "debug", "--policy", "semantic", "--game", "maze", "--distribution_mode", "memory"],
            "--score_max",
        ),
    ],
)
def test_a_training_that_cannot_be_is_refused_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        train.main(cli.parse(train.TrainConfig, [*words, "--threads", "1", "--out", f"{tmp_path}/a"], train.STAGE))
    assert not list(tmp_path.iterdir())


def test_the_presets_are_of_the_size_that_the_losses_are_weighted_for() -> None:
    for name in ("semantic", "semantic-paper"):
        config = cli.parse(train.TrainConfig, ["--preset", name], train.STAGE)
        train.check_minibatches(config.net, config.ppo)
        assert train.semantic_of(config) is not None and config.semantic.semantic_minibatch == 2048
        plain = cli.parse(train.TrainConfig, ["--preset", name, "--policy", "plain"], train.STAGE)
        assert train.semantic_of(plain) is None and plain.ppo == config.ppo


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_published_preset_begins_where_the_published_curves_do(
    seed: int, record_property: Callable[[str, float], None]
) -> None:
    """METHODS section 13: the embedding's loss begins at .00372 (ln 2048 / 2048: the plane tells nothing apart) and the
    codebook's at .13 to .24.  With orthogonal weights they began at .0029 and above 10."""
    config = cli.parse(train.TrainConfig, ["--preset", "semantic-paper"], train.STAGE)
    spec = registry.spec_of("procgen/coinrun", {"distribution_mode": "easy", "num_levels": 0})
    torch.manual_seed(seed)
    agent = SemanticAgent(config.net, spec, config.semantic).eval()
    env, rng, frames = registry.make(spec, 64, threads=1), np.random.default_rng(0), []
    env.reset(0)
    for _ in range(160):
        frames.append(env.step(rng.integers(0, spec.n_actions, 64)).obs["frames"])
    env.close()
    with torch.no_grad():
        h = agent.encode({"frames": torch.as_tensor(np.concatenate(frames[4::5]))})
        plane = agent.plane(h)
        fdr = float(fdr_loss(h, plane, agent.semantic))
        vq = float(vq_loss(plane, agent.codebook_C2[agent.code(plane)], 0))
    record_property("fdr", fdr)
    record_property("vq", vq)
    assert 0.99 * 0.00372 < fdr < 1.01 * 0.00372 and vq < 3


# Run directories


def saved(path: Path, agent: SemanticAgent) -> Path:
    with new_run(path, "train", {}) as run:
        save_semantic(agent, run.path)
    return path


def test_a_checkpoint_of_another_codebook_and_a_policy_without_one_are_user_errors(tmp_path: Path) -> None:
    agent = agent_of()
    back = load_agent(saved(tmp_path / "a", agent))
    assert isinstance(back, SemanticAgent) and fingerprint(back) == fingerprint(agent)
    assert back.semantic == agent.semantic and not any(p.requires_grad for p in back.parameters())
    with new_run(tmp_path / "b", "train", {}) as run:
        save_semantic(agent, run.path)
        about = json.loads((run.path / DESCRIPTION).read_text()) | {"codes": 5}
        artefacts.write_json(run.path / DESCRIPTION, about)
    with pytest.raises(UserError, match=r"'codebook_C2' has shape \(8, 2\), the configuration needs \(5, 2\)"):
        load_agent(tmp_path / "b")
    with new_run(tmp_path / "c", "train", {}) as run:
        train.save_agent(RecurrentAgent(AgentConfig(encoder="mlp"), VECTOR), run.path)
    with pytest.raises(UserError, match="holds no policy with semantic clusters"):
        load_semantic(tmp_path / "c")


def test_an_earlier_training_without_these_options_can_be_resumed(tmp_path: Path) -> None:
    """Its configuration lacks their keys, which then have their defaults."""
    argv = ["--preset", "debug", "--threads", "1", "--out", f"{tmp_path}/a"]
    train.main(cli.parse(train.TrainConfig, [*argv, "--stop_after", "0.001s"], train.STAGE))
    saved_config = json.loads((tmp_path / "a" / "config.json").read_text())
    del saved_config["config"]["policy"], saved_config["config"]["semantic"], saved_config["config"]["net"]["norm"]
    (tmp_path / "a" / "config.json").write_text(json.dumps(saved_config))
    train.main(cli.parse(train.TrainConfig, [*argv, "--resume"], train.STAGE))
    assert artefacts.verify(tmp_path / "a") == []
