"""Known starts: the recorded frame and the agent's state, for every kind of world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import new_run, write_json
from core.contracts import EnvSpec, Field, UserError
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore, StoreWriter
from core.roll import Simulator
from core.trees import flatten
from envs.planted import PlantedOptions, planted_simulator
from generative.record_samples import RecordSamplesConfig
from generative.rssm import ModelConfig
from generative.simulator import simulator_of
from generative.starts import AT_ONCE, as_started, begin_at, from_known, informed_by, known_latents, started

SPEC = EnvSpec(
    env_id="procgen/coinrun", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=("left", "right"),
    slots=1,
)  # fmt: skip
SIZES = {
    "vector": ModelConfig(
        deterministic_size=8, hidden_size=8, groups=2, classes=2, depth=2, head_layers=1, latent_size=4
    ),
    "grid": ModelConfig(
        layout="grid", deterministic_size=64, hidden_size=8, groups=64, classes=2, depth=2, latent_size=64
    ),
    "context": ModelConfig(
        layout="context", deterministic_size=64, hidden_size=8, groups=64, classes=2, depth=2, latent_size=64,
        trunk_blocks=1,
    ),
}  # fmt: skip


def agent_of(seed: int = 0) -> RecurrentAgent:
    torch.manual_seed(seed)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), SPEC)
    return agent.eval().requires_grad_(False)


def simulator(layout: str) -> Simulator[Any]:
    found = simulator_of(SIZES[layout], agent_of())
    found.world.eval().requires_grad_(False)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RolloutStore:
    """Two episodes of the agent's own states along random frames."""
    path, agent, rng = tmp_path_factory.mktemp("starts") / "rollouts", agent_of(), np.random.default_rng(0)
    with new_run(path, "record", RecordSamplesConfig()) as run:
        with StoreWriter(run.path) as writer:
            for _ in range(2):
                frames = rng.integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
                state, h = agent.initial(1), []
                for i in range(6):
                    state = agent.advance(
                        agent.encode({"frames": torch.from_numpy(frames[i : i + 1])}), state, first(i)
                    )
                    h.append(state[0].numpy())
                writer.add(
                    Episode(
                        obs={"frames": frames}, h=np.stack(h), value=np.zeros(6, np.float32),
                        action=np.zeros(5, np.int64), reward=np.zeros(5, np.float32), terminated=False, truncated=True,
                    )
                )  # fmt: skip
        write_json(run.path / "spec.json", SPEC.to_json())
        run.facts = {"agent": fingerprint(agent), "source": "real"}
    return RolloutStore(path)


def first(i: int) -> Tensor:
    return torch.tensor([i == 0])


@pytest.mark.parametrize("layout", sorted(SIZES))
def test_a_known_start_is_the_recorded_frame_and_state(layout: str, store: RolloutStore) -> None:
    known = simulator(layout)
    starts = np.array([[0, 0], [1, 2]])
    z = known_latents(known, store, starts, torch.device("cpu"))
    out = from_known(known).rollout(z, 2)
    for b, (e, t) in enumerate(starts):
        episode = store.episode(int(e))
        assert torch.equal(out.obs["frames"][b, 0], torch.from_numpy(episode.obs["frames"][t + 2]) / 255)
        torch.testing.assert_close(out.h[b, 0], torch.from_numpy(episode.h[t + 2]))
    assert not torch.equal(out.obs["frames"][:, 1], out.obs["frames"][:, 0])
    assert fingerprint(from_known(known)) == fingerprint(known)
    z.requires_grad_()
    from_known(known).rollout(z, 2).value[:, 2].sum().backward()
    frames, state = from_known(known).world.unpack(z.grad)
    assert bool((frames["frames"][:, -1].abs().amax((1, 2, 3)) > 0).all()) and bool((state.abs().amax(1) > 0).all())


def test_before_an_episode_the_agent_remembers_what_it_begins_with(store: RolloutStore) -> None:
    """In a world that looks at one observation."""
    known = simulator_of(replace(SIZES["vector"], initial_frames=1), agent_of())
    z = known_latents(known, store, np.array([[0, 0], [1, 3]]), torch.device("cpu"))
    h = from_known(known).rollout(z, 0).h[:, 0]
    torch.testing.assert_close(h, torch.from_numpy(np.stack([store.episode(0).h[0], store.episode(1).h[3]])))


def test_a_world_with_no_start_of_its_own_shows_the_frame_too() -> None:
    planted = planted_simulator(PlantedOptions(kind="linear"), torch.float32)
    obs = {k: torch.full((3, 1, *f.shape), 0.3) for k, f in planted.world.spec.obs.items()}
    _, shown = begin_at(planted.world, obs)
    assert all(torch.equal(x, obs[k][:, -1]) for k, x in shown.obs.items())


def test_what_is_known_of_one_agent_is_not_of_another(store: RolloutStore) -> None:
    other = replace(simulator("vector"), agent=agent_of(seed=1))
    with pytest.raises(UserError, match=r"was recorded with agent .* --start inferred"):
        known_latents(other, store, np.array([[0, 0]]), torch.device("cpu"))


def test_a_missing_state_is_one_line(store: RolloutStore) -> None:
    class Wide(RecurrentAgent):
        def initial(self, batch: int) -> Tensor:
            return super().initial(batch).repeat(1, 2)

    agent = agent_of()
    wide = Wide(agent.config, SPEC)
    wide.load_state_dict(agent.state_dict())
    with pytest.raises(UserError, match=r"hold 5 of the 10 numbers of the agent's state.*--start inferred"):
        known_latents(replace(simulator("vector"), agent=wide), store, np.array([[0, 0]]), torch.device("cpu"))


def test_each_kind_starts_as_it_was_trained_to(store: RolloutStore) -> None:
    assert [informed_by(simulator(k).world, None) for k in ("vector", "grid", "context")] == [
        "inferred", "inferred", "recorded",
    ]  # fmt: skip
    assert informed_by(simulator("vector").world, "recorded") == "recorded"
    plain = simulator("vector")
    assert as_started(plain, store) is plain


@pytest.mark.parametrize(("layout", "asked"), [("vector", "recorded"), ("vector", None), ("context", None)])
def test_many_windows_start_as_each_alone(layout: str, asked: Any) -> None:
    world = simulator(layout).world
    frames = torch.randint(0, 256, (AT_ONCE + 2, world.initial_frames, 64, 64, 3), dtype=torch.uint8)
    state, shown = started(world, {"frames": frames}, asked)
    alone, last = started(world, {"frames": frames[-1:]}, asked)
    torch.testing.assert_close(flatten(state)[-1:], flatten(alone))
    torch.testing.assert_close(shown.obs["frames"][-1:], last.obs["frames"])
    told = asked == "recorded" or layout == "context"
    assert torch.equal(shown.obs["frames"], frames[:, -1] / 255) == told
