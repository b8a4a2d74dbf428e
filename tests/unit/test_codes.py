"""Changes of a policy's codes: in words, as changes of h, and the random ones that they are held against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig
from agents.semantic import SemanticAgent, SemanticOptions
from analysis.semantics import causes
from analysis.semantics.states import States, placed
from core.contracts import UserError
from core.directions import Basis
from envs.planted import PlantedOptions, spec_of
from validation.hypotheses.changes import Redirect
from validation.hypotheses.frames import mixed_frames, own_frame
from validation.hypotheses.grammar import Hypothesis, parse_hypothesis

B = 200


def made() -> tuple[SemanticAgent, States, Basis, Tensor]:
    """A policy whose codes are spread over its states, those, the plane's basis, and h."""
    torch.manual_seed(0)
    net = AgentConfig(encoder="mlp", embedding_size=6, hidden_size=6, recurrence="features")
    agent = SemanticAgent(net, spec_of(PlantedOptions(), 1), SemanticOptions()).eval().requires_grad_(False)
    h = torch.randn(B, 6) * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0]) + 1
    agent.codebook_C2.copy_(agent.plane(h)[:8])
    plane_N2, code_N = placed(agent, h.numpy())
    index_N2 = np.stack([np.arange(B) // 20, np.arange(B) % 20], 1)
    states = States(h.numpy(), plane_N2, code_N, np.zeros(B), np.zeros(B, np.int64), index_N2, index_N2[:, 0], 8)
    return agent, states, causes.plane_basis(agent, states), h


def changed(h: Tensor, words: str, basis: Basis) -> Tensor:
    (hypothesis,) = parse_hypothesis(words, basis)
    t, mask = torch.zeros(len(h), dtype=torch.int64), torch.ones(len(h), dtype=torch.bool)
    mask[-1] = False
    out = hypothesis.build(basis)(h, t, mask)
    assert torch.equal(out[-1], h[-1])
    return out[:-1]


def test_a_code_that_is_held_is_the_one_put_at_the_agents_point() -> None:
    agent, _, basis, h = made()
    out = changed(h, "hold code:3", basis)
    _, want = agent.replaced("code", torch.eye(8)[3].expand(B, -1), h, h)
    torch.testing.assert_close(out, want[:-1], rtol=1e-3, atol=1e-3)
    assert (agent.code(agent.plane(out)) == 3).all() and not torch.equal(out, h[:-1])


def test_two_codes_change_places_and_others_stay() -> None:
    agent, _, basis, h = made()
    before = agent.code(agent.plane(h))[:-1]
    out = changed(h, "swap code:2 code:5", basis)
    after = agent.code(agent.plane(out))
    for one, other in ((2, 5), (5, 2)):
        assert (before == one).any() and (after[before == one] == other).all()
    rest = (before != 2) & (before != 5)
    assert rest.any() and torch.equal(out[rest], h[:-1][rest])


def test_a_push_along_the_plane_leaves_what_is_orthogonal_to_it() -> None:
    agent, _, basis, h = made()
    out = changed(h, "shift plane:1 by +1", basis)
    moved = agent.plane(out) - agent.plane(h[:-1])
    want = torch.tensor([0.0, basis.facts["unit"]]).expand(B - 1, -1)
    torch.testing.assert_close(moved, want, rtol=1e-3, atol=1e-3)


def test_what_a_code_is_held_against_is_the_same_move_turned_in_the_plane() -> None:
    """As long, in the same plane, and to other places: random codes."""
    agent, _, basis, h = made()
    (hold,) = parse_hypothesis("hold code:3", basis)
    own = own_frame(basis, hold.ids)
    t, mask = torch.zeros(B, dtype=torch.int64), torch.ones(B, dtype=torch.bool)
    move = (hold.build(basis)(h, t, mask) - h) / basis.std_H
    elsewhere = []
    for seed in range(6):
        (turned,) = mixed_frames(basis, [2], torch.Generator().manual_seed(seed))
        control = Redirect(hold.build(basis), basis, own, turned)
        random = (control(h, t, mask) - h) / basis.std_H
        torch.testing.assert_close(random.norm(dim=1), move.norm(dim=1), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(random @ own.T @ own, random, rtol=1e-3, atol=1e-3)
        elsewhere.append(float((agent.code(agent.plane(h + random * basis.std_H)) != 3).float().mean()))
    assert sum(share > 0.5 for share in elsewhere) >= 4


def test_words_name_codes_and_say_what_a_quantity_becomes() -> None:
    _, _, basis, _ = made()
    for words in ("hold code:3 always on prob:right as 0.41", "swap code:2 code:5 for 3 steps on value", "hold code:0"):
        (h,) = parse_hypothesis(words, basis)
        assert h.name == words and parse_hypothesis(h.name, basis) == [h] and h.ids == (0, 1)
    (h,) = parse_hypothesis("hold code:3 always on prob:right as 0.41", basis)
    assert (h.codes, h.says, h.on) == ((3,), 0.41, "prob:right")
    assert h.control == Hypothesis("hold", "plane", (0, 1), steps=None, codes=(3,))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hold code:8", "there is no code 8; there are 0 to 7"),
        ("hold plane:0", "hold takes a code, as in hold code:3"),
        ("hold code:1 code:2", "hold takes a code"),
        ("swap code:1", "swap takes two codes, as in swap code:3 code:5"),
        ("swap code:1 code:1", "names code 1 twice"),
        ("hold code:1 as 0.3", "name it: on QUANTITY as NUMBER"),
        ("hold code:1 on value as much", "as much: not a number"),
        ("hold code:1 on value as nan", "as nan: not a number"),
    ],
)
def test_words_that_mean_nothing_are_user_errors(words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_hypothesis(words, made()[2])


def test_a_basis_without_codes_says_so() -> None:
    basis = replace(made()[2], facts={})
    with pytest.raises(UserError, match="the plane basis has no codes"):
        parse_hypothesis("hold code:1", basis)


def test_hypotheses_say_of_every_live_code_what_the_policy_does_in_its_states() -> None:
    """Not what a recording did, of which half are random actions: an action that the policy chooses in .9 of the states
    of a code, and in .1 of others, was taken in about .6 of them."""
    agent, states, basis, _ = made()
    actions = spec_of(PlantedOptions(), 1).distinct_actions()
    names, rng = list(actions), np.random.default_rng(0)
    chance_NK = np.full((B, len(names)), 0.1 / (len(names) - 1))
    of_N = np.where(states.code_N == 0, 1, 0)
    chance_NK[np.arange(B), of_N] = 0.9
    recorded_N = np.where(rng.random(B) < 0.5, of_N, rng.integers(len(names), size=B))
    logits_NA = np.full((B, sum(agent.spec.parts)), -1e9, np.float32)
    for k, ids in enumerate(actions.values()):
        logits_NA[:, ids] = np.log(chance_NK[:, k : k + 1] / len(ids))
    states = replace(states, action_N=np.array([list(actions.values())[k][0] for k in recorded_N]), logits_NA=logits_NA)
    words = causes.hypotheses(states, agent.spec)
    assert f"hold code:0 always on prob:{names[1]} as 0.900" in words
    assert len({h.name for w in words for h in parse_hypothesis(w, basis)}) == len(words) == 8 + 1 + 2
    words = causes.hypotheses(replace(states, logits_NA=None), agent.spec)  # no logits: what was done is all there is
    what, share = words[0].removeprefix("hold code:0 always on prob:").split(" as ")
    assert float(share) == pytest.approx((recorded_N[states.code_N == 0] == names.index(what)).mean(), abs=5.1e-4)
