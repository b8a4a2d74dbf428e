"""Branches: from a snapshot every action is tried in the world itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.branches import LEAD, STEPS, record_branches, require_branches
from agents.load import load_agent
from agents.play import Exploration
from core import config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from envs.registry import make

BUNDLED = Path(__file__).resolve().parents[2] / "bundles" / "coinrun-context" / "agent"
CPU = torch.device("cpu")


def test_every_action_is_held_from_the_same_state() -> None:
    """What follows is what the world does from there, and the agent's states are its own along what it was shown."""
    agent = load_agent(BUNDLED)
    env, aside = (make(agent.spec, 3) for _ in range(2))
    found = list(record_branches(agent, env, aside, 4, seed=5, device=CPU, exploration=Exploration()))
    tried = [ids[0] for ids in agent.spec.distinct_actions().values()]
    assert len(tried) == 9 and [e.meta["action"] for e in found] == 4 * tried
    assert [e.meta["snapshot"] for e in found] == [n for n in range(4) for _ in tried]
    for group in (found[9 * n : 9 * n + 9] for n in range(4)):
        for e in group:
            assert e.steps == LEAD + STEPS or e.terminated or e.truncated
            assert e.action[LEAD:].tolist() == [e.meta["action"]] * (e.steps - LEAD)
            for name in ("h", "value"):
                assert np.array_equal(getattr(e, name)[: LEAD + 1], getattr(group[0], name)[: LEAD + 1])
            assert np.array_equal(e.obs["frames"][: LEAD + 1], group[0].obs["frames"][: LEAD + 1])
            state = torch.from_numpy(e.h[:1])
            for i in range(1, len(e.h)):
                seen = agent.encode({"frames": torch.from_numpy(e.obs["frames"][i : i + 1])})
                state = agent.advance(seen, state, torch.zeros(1, dtype=torch.bool))
                torch.testing.assert_close(state[0], torch.from_numpy(e.h[i]), rtol=1e-4, atol=1e-5)
        last = {e.obs["frames"][-1].tobytes() for e in group}
        assert len(last) > 1  # actions matter
    env.close()
    aside.close()


def test_the_agents_own_way_is_not_disturbed() -> None:
    """The snapshots' frames are those of an undisturbed recording with the same seed."""
    from agents.play import Chooser, play

    agent = load_agent(BUNDLED)
    env, aside, alone = (make(agent.spec, 2) for _ in range(3))
    found = list(record_branches(agent, env, aside, 2, seed=3, device=CPU, exploration=Exploration()))
    chooser = Chooser(Exploration(), 2, np.random.default_rng(3), agent.spec.parts)
    shown = []
    for moment in play(agent, alone, chooser, seed=3, device=CPU):
        shown.append(moment.obs["frames"])
        if len(shown) > 60:
            break
    for e in found[::9]:
        b = e.meta["slot"]
        assert any(np.array_equal(frames[b], e.obs["frames"][0]) for frames in shown)
    for world in (env, aside, alone):
        world.close()


def test_a_world_without_snapshots_has_no_branches() -> None:
    class Still:
        spec = replace(load_agent(BUNDLED).spec, can_snapshot=False)

    with pytest.raises(UserError, match="--branches: procgen/coinrun takes no snapshots"):
        require_branches(Still())  # type: ignore[arg-type]


def test_branches_lie_beside_the_rollouts(tmp_path: Path) -> None:
    from agents.record import STAGE, RecordConfig, main

    argv = ["--agent", f"{BUNDLED}", "--out", f"{tmp_path}/r", "--episodes", "2", "--slots", "2", "--threads", "1"]
    main(cli.parse(RecordConfig, [*argv, "--branches", "2"], STAGE))
    store, branches = RolloutStore(tmp_path / "r"), RolloutStore(tmp_path / "r", "branches")
    assert len(store) == 2 and len(branches) == 18
    assert store.manifest["facts"]["branches"] == {"snapshots": 2, "before": LEAD, "held": STEPS}
    assert "branches/shard_00000.h5" in store.manifest["files"]
    assert {branches.meta(e)["snapshot"] for e in range(18)} == {0, 1}
    main(cli.parse(RecordConfig, [*argv[:3], f"{tmp_path}/none", *argv[4:]], STAGE))
    with pytest.raises(UserError, match="holds no branches"):
        RolloutStore(tmp_path / "none", "branches")
