"""Saliency tried by removing objects: boxes against the pixels of the real game, scores where the truth is planted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis.saliency.attributions import deeplift, integrated
from analysis.saliency.frame import Frame
from analysis.shared.quantities import known_quantities
from core.contracts import EnvSpec, Field, UserError
from core.stats import Estimate
from core.trees import Tree
from envs.procgen import GAMES, ProcgenEnv, ProcgenOptions
from envs.procgen_state import NEEDED, THINGS, state_of
from envs.procgen_truth import kinds_of
from validation.interventions.verdicts import BY_CONSTRUCTION, NO, OPEN, YES
from validation.saliency_trial import methods
from validation.saliency_trial.config import SaliencyTrialConfig
from validation.saliency_trial.figures import estimate_of
from validation.saliency_trial.methods import BEHIND, DEEPLIFT, GRADIENT, INTEGRATED, MEAN, TIMES_INPUT, Boxes
from validation.saliency_trial.objects import box_of, items_of, without
from validation.saliency_trial.readings import AtOnce
from validation.saliency_trial.removal import Changes, chunks, source_of, with_policy
from validation.saliency_trial.scores import Claim, above, hits_in, ranks_in, score_rows, signs, verdict
from validation.saliency_trial.trial import tried

SIDE, N, EACH = 24, 40, 4
ACTIONS = {"left": [0], "right": [1]}
SPEC = EnvSpec(
    env_id="tiny/pixels", obs={"frames": Field(shape=(SIDE, SIDE, 3), dtype="uint8")}, action_names=("left", "right"),
    slots=1,
)  # fmt: skip


class Looks(nn.Module):
    """An agent whose value, and whose choice, is the mean red of one place of the frame."""

    def __init__(self, spec: EnvSpec, at: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.spec, self.points = spec, {"h": 1}
        weight = torch.zeros(spec.obs["frames"].shape)
        x0, y0, x1, y1 = at
        weight[y0:y1, x0:x1, 0] = 1 / ((x1 - x0) * (y1 - y0))
        self.weight = nn.Parameter(weight, requires_grad=False)

    def initial(self, batch: int) -> Tree:
        return torch.zeros(batch, 1)

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        x = obs["frames"]
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return (x * self.weight).flatten(1).sum(1, keepdim=True)

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        return seen + 0 * state

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        return torch.cat([3 * state, torch.zeros_like(state)], 1), state[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        return state

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        return seen, x_BN


@pytest.fixture(scope="module")
def planted() -> dict[str, Any]:
    """N frames with EACH objects each; the first of every frame stands where the agent looks."""
    rng = np.random.default_rng(0)
    frames = np.full((N, SIDE, SIDE, 3), 40, np.uint8)
    corner = np.array([[2, 2], [2, 14], [14, 2], [14, 14]])
    own = np.concatenate([np.concatenate([corner, corner + 6], 1)] * N)
    of = np.repeat(np.arange(N), EACH)
    for n in range(N):
        for x, y in corner:
            frames[n, y : y + 6, x : x + 6] = rng.integers(90, 250, 3)
    edited = frames[of].copy()
    for o, (x0, y0, x1, y1) in enumerate(own):
        edited[o, y0:y1, x0:x1] = 40
    agent = Looks(SPEC, (3, 3, 7, 7))
    read = AtOnce(agent.initial(N), ACTIONS)
    rows = torch.from_numpy(of)
    device = torch.device("cpu")
    now, gone = (read(agent, rows, methods.as_floats(x, device)) for x in (frames[of], edited))
    once = {q: (gone[q] - now[q]).double().numpy() for q in now}
    late = {f"{q}@{'' if q == 'value' else '1..'}4": np.stack([v, v]) for q, v in once.items()}
    late["return@4"] = late["value@4"]
    changes = Changes(once, late, edited, 0.0)
    return {"agent": agent, "frames": frames, "own": own, "of": of, "changes": changes, "read": read}


def test_where_the_truth_is_planted_the_right_methods_find_it_and_random_boxes_do_not(planted: dict[str, Any]) -> None:
    config = SaliencyTrialConfig(starts=N, horizon=4, draws=2, boxes=16, integrated_steps=4, shuffles=2)
    near = np.tile([-1.0, -2.0, -3.0, -4.0], N)
    agent, changes = planted["agent"], planted["changes"]
    result = tried(
        agent, {"": planted["read"]}, agent.initial(N), planted["frames"], planted["own"], planted["of"], changes, near,
        ACTIONS, config,
    )  # fmt: skip
    rows = {(r["method"], r["quantity"]): r for r in result.tables["scores"]}
    for q in ("value", "policy", "prob:left", "value@4", "policy@1..4"):
        for method in (GRADIENT, TIMES_INPUT, INTEGRATED, DEEPLIFT, MEAN, BEHIND):
            row = rows[method, q]
            assert row["hit"] + row["chance"] == pytest.approx(1) and row["n"] == N, (method, q)
            assert row["chance"] == pytest.approx(1 / EACH)
            assert abs(row["hit of boxes"] - row["chance"]) < 0.1 and row["hit of randomised"] < 0.7
            at_once = "@" not in q
            assert row["finds"] == (BY_CONSTRUCTION if method == BEHIND and at_once else YES), (method, q, row["why"])
            if method != GRADIENT and not q.startswith("policy"):
                assert row["sign"] == 1, (method, q)
            else:
                assert "sign" not in row
        assert rows["area of the box", q]["rank"] == 0 and rows["area of the box", q]["hit"] == pytest.approx(0)
    exact = result.arrays[f"said value by {BEHIND}"] - np.abs(changes.once["value"])
    assert np.abs(exact).max() < 1e-6
    assert rows["the same, other action noise", "value@4"]["rank"] == pytest.approx(1)
    # Attributions of the wrong agent: one that looks where nothing stands.
    wrong = tried(
        Looks(SPEC, (9, 9, 13, 13)), {"": planted["read"]}, agent.initial(N), planted["frames"], planted["own"],
        planted["of"], changes, near, ACTIONS, replace(config, methods=("gradient",)),
    )  # fmt: skip
    said = {r["finds"] for r in wrong.tables["scores"] if r["kind"] == "method"}
    assert said == {NO}


def test_integrated_gradients_and_deeplift_are_those_of_captum(planted: dict[str, Any]) -> None:
    agent, read, of, own = planted["agent"], planted["read"], planted["of"], planted["own"]
    x = methods.as_floats(planted["frames"], torch.device("cpu"))
    boxes = Boxes(of, own[None])
    found = methods.by_gradients(read, agent, x, boxes, 16, 7, "")
    zero = torch.zeros(N)
    frame = Frame(agent, {"frames": x}, {"frames": 0 * x}, agent.initial(N), zero, zero.long())
    value = known_quantities(SPEC)["value"]
    theirs = integrated(frame, value, 32).maps["frames"].detach().abs().sum(-1).numpy()
    assert np.allclose(found[INTEGRATED].size["value"], methods.box_sums(theirs, *boxes), atol=1e-4)
    mine = methods.by_deeplift(agent, agent.initial(N), x, boxes, ACTIONS, read)
    left = deeplift(frame, known_quantities(SPEC)["left"]).maps["frames"].detach().sum(-1).numpy()
    prob = read(agent, torch.arange(N), x)["prob:left"].numpy()[of]
    assert np.allclose(mine.change["prob:left"], -prob * methods.box_sums(left, *boxes), atol=1e-5)


def test_sums_over_boxes() -> None:
    rng = np.random.default_rng(1)
    maps, of = rng.normal(size=(3, 9, 9)), np.array([0, 0, 2])
    own = np.array([[0, 0, 9, 9], [2, 3, 4, 8], [8, 0, 9, 1]])
    at = methods.random_boxes(own, 9, 5, rng)
    assert at.shape == (6, 3, 4) and (at[0] == own).all() and at.min() == 0 and at.max() == 9
    assert (at[:, :, 2:] - at[:, :, :2] == own[:, 2:] - own[:, :2]).all()
    sums = methods.box_sums(maps, of, at)
    for layer in range(6):
        for o in range(3):
            x0, y0, x1, y1 = at[layer, o]
            assert sums[layer, o] == pytest.approx(maps[of[o], y0:y1, x0:x1].sum())


def test_a_box_is_filled_by_what_is_around_it_or_behind_it() -> None:
    frame = np.zeros((20, 20, 3), np.uint8)
    frame[5:9, 5:9] = 200
    assert not methods.mean_around(frame, np.array([5, 5, 9, 9])).any()
    assert (methods.mean_around(frame, np.array([0, 0, 20, 20])) == 8).all()
    edited = frame[None].copy()
    edited[0, 5:9, 5:9] = 7
    edited[0, 0, 0] = 99  # changed elsewhere: stays
    boxes = Boxes(np.array([0]), np.array([[[5, 5, 9, 9]], [[13, 13, 17, 17]]]))
    behind = methods.filled(BEHIND, boxes, edited)
    assert (behind(0, 0, frame)[5:9, 5:9] == 7).all() and not behind(0, 0, frame)[0, 0].any()
    assert not behind(1, 0, frame)[13:17, 13:17].any()  # a random box: the mean


def test_ranks_and_hits_of_one_start() -> None:
    true = np.array([3.0, 1.0, 2.0])
    sizes = np.array([[30.0, 1.0, 2.0], [1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [2.0, 2.0, 1.0]])
    assert ranks_in(sizes, true)[:3] == pytest.approx([1, -1, 0])
    assert hits_in(sizes, true) == pytest.approx([1, 0, 1 / 3, 0.5])
    change, truth = np.array([1.0, -1.0, 0.0, 2.0]), np.array([2.0, 2.0, -3.0, 0.0])
    assert signs(change, truth, np.zeros(4, int), np.array([0])) == pytest.approx([0.5])  # right, wrong, no word


def test_a_start_at_which_nothing_changes_says_nothing() -> None:
    of = np.repeat(np.arange(10), 3)
    true = np.tile([1.0, 2.0, 3.0], 10)
    true[of == 0] = 1e-9
    rows = score_rows([], {"size": np.arange(30.0)}, {"value": true}, of, {}, 0.1, np.random.default_rng(0))
    assert rows[0]["n"] == 9 and rows[0]["rank"] == pytest.approx(1) and rows[0]["chance"] == pytest.approx(1 / 3)


def test_a_quantity_that_no_removal_changes_is_left_open() -> None:
    of, size = np.repeat(np.arange(10), 3), np.arange(30.0)
    claim = Claim(GRADIENT, "", "value", size, None, size[None], size[None])
    rows = score_rows([claim], {"size": size}, {"value": np.zeros(30)}, of, {}, 0.1, np.random.default_rng(0))
    assert [row["n"] for row in rows] == [0, 0] and rows[0]["finds"] == OPEN and np.isnan(rows[0]["rank_q"])
    assert np.isnan(estimate_of(rows[0], "rank").value)


@pytest.mark.parametrize(("starts", "told"), [(6, 0.3), (10, 0.15)])
def test_a_method_that_few_starts_show_is_not_told_to_find_nothing(starts: int, told: float) -> None:
    """Right at some of the starts, silent at the others: a mean rank correlation above the smallest size of .1, which a
    sample without such a start has nothing of."""
    said = []
    for seed in range(60):
        g = np.random.default_rng(seed)
        of, true = np.repeat(np.arange(starts), 4), g.random(4 * starts) + 0.1
        size = np.where(np.repeat(g.random(starts) < told, 4), true, 1.0)
        claim = Claim(GRADIENT, "", "value", size, None, g.random((4, len(of))), g.random((4, len(of))))
        said.append(score_rows([claim], {}, {"value": true}, of, {}, 0.1, g)[0]["finds"])
    assert np.mean([x == NO for x in said]) <= 0.07  # .16 and .19 without room for such starts


def test_verdicts() -> None:
    sure, wide = Estimate(0.5, 0.4, 0.6, 50), Estimate(0.2, -0.1, 0.5, 50)
    nothing = Estimate(0.0, -0.05, 0.05, 50)
    assert above(sure, sure, 0.01, 0.1) == YES and above(sure, sure, 0.2, 0.1) == OPEN
    assert above(wide, wide, 0.01, 0.1) == OPEN and above(nothing, nothing, 0.9, 0.1) == NO
    assert above(sure._replace(n=5), sure, 0.01, 0.1) == OPEN
    every = dict.fromkeys(("rank", "boxes", "randomised", "hit"), YES)
    assert verdict(every) == (YES, "")
    assert verdict(every | {"boxes": NO, "hit": OPEN}) == (NO, "no better than random boxes")
    assert verdict(every | {"hit": OPEN}) == (OPEN, "not shown: its hits")


def test_what_stands_for_a_late_quantity() -> None:
    assert [source_of(q) for q in ("value", "value@8", "return@8", "prob:up@1..8", "policy@1..8")] == [
        "value", "value", "value", "prob:up", "policy",
    ]  # fmt: skip
    found = with_policy({"prob:a": np.array([0.3]), "prob:b": np.array([-0.1]), "prob:a@1..2": np.array([0.2])})
    assert found["policy"] == pytest.approx([0.2]) and found["policy@1..2"] == pytest.approx([0.1])
    assert list(chunks([3, 3, 5, 1], 6)) == [[0, 1], [2, 3]]


# Boxes against the game's own pixels

INSIDE = 0.98  # share of the pixels that change which lie in the box (measured: 1 in 13 games, the least .988)


@pytest.mark.parametrize("game", GAMES)
def test_the_pixels_that_change_lie_in_the_object_s_box(game: str) -> None:
    slots = 16
    env = ProcgenEnv(ProcgenOptions(game=game), slots)
    spare = ProcgenEnv(ProcgenOptions(game=game), slots)
    rng = np.random.default_rng(0)
    inside, changed, boxed, shown, known = 0, 0, 0, 0, 0
    try:
        env.reset(3)
        for step in range(40):
            now = env.step(np.where(rng.random(slots) < 0.5, 7, rng.integers(15, size=slots)))
            if step % 10 != 9:
                continue
            snapshots = env.snapshot()
            before = spare.restore(snapshots).obs["frames"]
            assert np.array_equal(before, now.obs["frames"])
            states = [state_of(s) for s in snapshots]
            items = [items_of(state) for state in states]
            for nth in range(min(6, max(map(len, items)))):
                gone = [without(s, its[nth]) if nth < len(its) else s for s, its in zip(snapshots, items, strict=True)]
                after = spare.restore(gone).obs["frames"]
                differs = (after != before).any(-1)
                for b, its in enumerate(items):
                    if nth >= len(its):
                        assert not differs[b].any()
                        continue
                    x0, y0, x1, y1 = box_of(states[b], its[nth], 64)
                    assert 0 <= x0 < x1 <= 64 and 0 <= y0 < y1 <= 64
                    inside, changed = inside + differs[b, y0:y1, x0:x1].sum(), changed + differs[b].sum()
                    boxed += (x1 - x0) * (y1 - y0) if differs[b].any() else 0
                    known, shown = known + 1, shown + bool(differs[b].any())
    finally:
        env.close()
        spare.close()
    assert known >= 10 and shown >= 0.5 * known, (known, shown)
    assert inside >= INSIDE * changed, f"{inside} of {changed}"
    assert changed >= 0.15 * boxed, f"boxes of {boxed} pixels for {changed}"


@pytest.mark.parametrize("game", GAMES)
def test_every_game_has_objects_that_it_can_lose(game: str) -> None:
    kinds = kinds_of(game)
    assert kinds and set(kinds) <= set(THINGS[game]) - set(NEEDED.get(game, ())) - {"wall", "lava"}


def test_crates_that_share_a_place_are_one() -> None:
    env = ProcgenEnv(ProcgenOptions(), 32)
    env.reset(0)
    for _ in range(8):
        env.step(np.full(32, 7))
    together = 0
    for snapshot in env.snapshot():
        state = state_of(snapshot)
        for item in items_of(state):
            if item.number > 1:
                together += 1
                left = state_of(without(snapshot, item))
                assert len(left.entities) == len(state.entities) - item.number
                assert (item.x, item.y) not in {(float(e["x"]), float(e["y"])) for e in left.entities[left.of("crate")]}
    env.close()
    assert together


def test_too_few_objects_is_one_line() -> None:
    from agents.recurrent import AgentConfig, RecurrentAgent
    from validation.saliency_trial.starts import collect

    env = ProcgenEnv(ProcgenOptions(game="maze"), 64)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=8), env.spec).requires_grad_(
        False
    )
    for objects, remedy in ((3, "lower --objects"), (2, "take a game with more")):
        said = f"^only 0 of .* states of procgen/maze have {objects} objects in the picture; {remedy}"
        with pytest.raises(UserError, match=said):
            collect(agent, env, 64, objects=objects, initial_frames=1, latest=3, seed=0, device=torch.device("cpu"))
    env.close()


def test_bad_settings_leave_nothing_behind(tmp_path: Path) -> None:
    from validation.saliency_trial.__main__ import main

    config = SaliencyTrialConfig(out=tmp_path / "out")
    for change, says in (
        ({"objects": 1}, "--objects must be at least 2"), ({"starts": 3}, "3 independent units are too few"),
        ({"methods": ()}, "--methods is empty"), ({"world_draws": 9}, "--world_draws 9 is more than --draws 8"),
        ({"smallest": 0.0}, "--smallest must lie"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=says):
            main(replace(config, **change))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
