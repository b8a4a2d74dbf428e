"""Neural MMO behind the VecEnv contract: many agents as slots, deaths, masks, actions in parts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.contracts import EnvSpec, Step, UserError, VecEnv
from envs.nmmo import COLUMN, FEATURES, NmmoEnv, NmmoOptions, features, held_out, map_folder, options_of, ready_maps
from envs.nmmo_tasks import CATEGORIES, embeddings, tasks_of
from envs.registry import make

SMALL = NmmoOptions(players=8, npcs=6, horizon=30, entities_seen=3, market_seen=4, map_pool=18, num_maps=2)
WORLDS = 2


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("maps")


@pytest.fixture(scope="module")
def env(maps: Path) -> Iterator[NmmoEnv]:
    env = NmmoEnv(SMALL, WORLDS, maps)
    yield env
    env.close()


def legal(step: Step, spec: EnvSpec, rng: np.random.Generator) -> np.ndarray:
    """A random legal choice of every part, int64 [B, P]."""
    parts = np.split(step.obs["Mask"], np.cumsum(list(spec.action_parts.values()))[:-1], axis=1)
    return np.stack([(part * rng.uniform(0.1, 1, part.shape)).argmax(1) for part in parts], 1)


def play(env: NmmoEnv, ticks: int, seed: int = 0) -> Iterator[tuple[Step, np.ndarray, Step]]:
    """(step, action, next step) under random legal actions."""
    rng = np.random.default_rng(seed)
    step = env.reset(seed)
    for _ in range(ticks):
        action = legal(step, env.spec, rng)
        after = env.step(action)
        yield step, action, after
        step = after


def everything(step: Step) -> dict[str, np.ndarray]:
    out = {f"obs/{k}": v for k, v in step.obs.items()} | {f"truth/{k}": v for k, v in step.truth.items()}
    return out | {k: getattr(step, k) for k in ("reward", "terminated", "truncated", "is_first", "alive")}


def test_shapes_dtypes_and_names_are_the_spec_s(env: NmmoEnv) -> None:
    spec = env.spec
    assert isinstance(env, VecEnv) and spec.slots == WORLDS * SMALL.players
    assert sum(spec.action_parts.values()) == spec.n_actions == len(set(spec.action_names)) == spec.obs["Mask"].shape[0]
    assert spec.action_parts["Attack.Target"] == 4 and spec.action_parts["Buy.MarketItem"] == 5
    assert EnvSpec.from_json(spec.to_json()) == spec and options_of(spec) == SMALL
    for _, _, step in play(env, 3):
        assert step.obs.keys() == spec.obs.keys()
        for name, field in spec.obs.items():
            assert step.obs[name].shape == (spec.slots, *field.shape) and step.obs[name].dtype == field.dtype, name
        assert all(len(v) == spec.slots for v in (*step.truth.values(), *(step.final_truth or {}).values()))
        assert step.reward.dtype == np.float32 and step.final_obs is None


def test_same_seed_same_everything_and_another_seed_another(env: NmmoEnv, maps: Path) -> None:
    other = NmmoEnv(SMALL, WORLDS, maps)
    for (_, _, a), (_, _, b) in zip(play(env, 40, seed=3), play(other, 40, seed=3), strict=True):
        for name, array in everything(a).items():
            assert array.tobytes() == everything(b)[name].tobytes(), name
    assert env.reset(3).obs["Tile"].tobytes() != other.reset(4).obs["Tile"].tobytes()
    other.close()


def test_the_next_game_of_a_world_does_not_depend_on_which_world_ends_first(env: NmmoEnv) -> None:
    begun = []
    for first in range(WORLDS):
        step = env.reset(5)
        games = {}
        for tick in range(2):
            for player in env._worlds[(first + tick) % WORLDS].env.realm.players.values():
                player.resources.health.update(0)
            step = env.step(np.array([[n - 1 for n in env.spec.action_parts.values()]] * env.spec.slots))
            for w in range(WORLDS):
                mine = step.is_first & (step.truth["world"] == w)
                if mine.any():
                    games[w] = {k: v[mine].tobytes() for k, v in everything(step).items()}
        begun.append(games)
    assert set(begun[0]) == set(begun[1]) == set(range(WORLDS)) and begun[0] == begun[1]
    assert begun[0][0]["truth/task"] != begun[0][1]["truth/task"]


def test_a_world_alone_plays_the_games_of_its_number_among_more(env: NmmoEnv, maps: Path) -> None:
    """Also those after the first, on other maps."""
    alone = NmmoEnv(SMALL, 1, maps, first_world=1)
    mine = slice(SMALL.players, 2 * SMALL.players)
    now, begun = everything(alone.reset(4)), 0
    for step, action, after in play(env, 70, seed=4):
        assert all(v.tobytes() == everything(step)[k][mine].tobytes() for k, v in now.items() if k != "truth/world")
        now = everything(alone.step(action[mine]))
        begun += after.is_first[mine].any()
    assert begun > 1
    alone.close()


def inward(step: Step, spec: EnvSpec, rng: np.random.Generator) -> np.ndarray:
    """Random legal choices, and a way that mostly leads to the middle of the map, where NPCs hunt: int64 [B, P]."""
    action, part = legal(step, spec, rng), list(spec.action_parts).index("Move.Direction")
    start = int(np.cumsum([0, *spec.action_parts.values()])[part])
    row, col = (32 - step.truth["position"]).T
    way = np.where(np.abs(row) > np.abs(col), np.where(row < 0, 0, 1), np.where(col < 0, 3, 2))
    free = (step.obs["Mask"][np.arange(len(way)), start + way] > 0) & (rng.random(len(way)) < 0.8)
    action[:, part] = np.where(free, way, action[:, part])
    return action


def test_a_game_does_not_depend_on_the_games_before_it(maps: Path) -> None:
    """Game 3 alone and after three others on other maps, by the whole entity table; nmmo keeps the paths of NPCs that
    hunt, and a game alone has to find its own."""
    hunted = replace(SMALL, npcs=64, horizon=40, entities_seen=32)

    def game(env: NmmoEnv, seed: int) -> tuple[int, int, list[bytes]]:
        """The map's number, the paths that were kept, and what was shown."""
        rng, step, shown, paths = np.random.default_rng(seed), env.reset(seed), [], 0
        number = int(step.truth["map"][0])
        while not shown or not step.is_first.any():
            shown.append(step.obs["Entity"].tobytes())
            paths = len(env._worlds[0].env.realm.map.pathfinding_cache)  # forgotten when the last step resets
            step = env.step(inward(step, env.spec, rng))
        return number, paths, shown

    played, alone = NmmoEnv(hunted, 1, maps), NmmoEnv(hunted, 1, maps)
    before, after = [game(played, seed) for seed in range(3)], game(played, 3)
    assert {number for number, _, _ in before} - {after[0]}, "all games were on one map"
    assert min(paths for _, paths, _ in (*before, after)) > 0, "nobody was hunted"
    assert game(alone, 3)[2] == after[2]
    played.close()
    alone.close()


def test_what_was_shown_is_not_changed_by_what_comes(env: NmmoEnv) -> None:
    kept = [(step, {k: v.copy() for k, v in everything(step).items()}) for step, _, _ in play(env, 5)]
    for step, copy in kept:
        for name, array in everything(step).items():
            np.testing.assert_array_equal(array, copy[name], err_msg=name)


def test_agents_die_once_and_worlds_begin_again_on_the_same_step(env: NmmoEnv) -> None:
    deaths = restarts = cut = 0
    was_alive = np.ones(env.spec.slots, bool)
    world = np.repeat(np.arange(WORLDS), SMALL.players)
    for step, _, after in play(env, 120, seed=1):
        assert step.alive is not None and after.alive is not None and after.final_truth is not None
        np.testing.assert_array_equal(step.alive, was_alive)
        done = after.terminated | after.truncated
        assert not (after.terminated & after.truncated).any() and not (done & ~step.alive).any()
        assert not after.reward[~step.alive].any() and (after.reward[after.terminated] == -1).all()
        for w in range(WORLDS):
            mine = world == w
            left = step.alive[mine] & ~done[mine]
            assert after.is_first[mine].all() == (not left.any()) and len(set(after.is_first[mine])) == 1
            np.testing.assert_array_equal(after.alive[mine], np.ones_like(left) if not left.any() else left)
            restarts += int(not left.any())
        assert (after.truth["tick"][after.is_first] == 0).all()
        # Truncated means the time was up; nobody lives longer.
        assert (after.final_truth["tick"][after.truncated] == SMALL.horizon).all()
        assert (after.final_truth["tick"] <= SMALL.horizon).all()
        here = after.obs["Entity"][after.alive][:, 0, 0]
        np.testing.assert_array_equal(here, after.truth["agent"][after.alive])
        assert not after.obs["Entity"][~after.alive].any()
        deaths, cut, was_alive = deaths + after.terminated.sum(), cut + after.truncated.sum(), after.alive
    assert deaths >= 5 and restarts >= 4 and cut >= 1, "the test saw too little to mean anything"


def test_the_own_row_is_first_the_others_by_distance_and_a_target_is_the_one_shown(env: NmmoEnv) -> None:
    """What nmmo is told to attack is the entity that was shown in that row; and nmmo then names the attacker."""
    hits = cropped = 0
    part = list(env.spec.action_parts).index("Attack.Target")
    for step, action, after in play(env, 25, seed=2):
        entity = step.obs["Entity"]
        alive = step.alive
        assert alive is not None
        place = [COLUMN["row"], COLUMN["col"]]
        away = np.abs(entity[..., place] - entity[:, :1, place]).max(-1)
        shown = entity[..., 0] != 0
        for b in np.flatnonzero(alive):
            assert (np.diff(away[b][shown[b]]) >= 0).all() and shown[b][: shown[b].sum()].all()
            raw = env._worlds[b // SMALL.players].env.obs[int(step.truth["agent"][b])]
            del raw
        cropped += int((step.truth["visible"][:, 0] + 1 > SMALL.entities_seen).sum())
        target = action[:, part]
        for b in np.flatnonzero(alive & (target < SMALL.entities_seen)):
            victim = entity[b, target[b], 0]
            struck = after.obs["Entity"][b][after.obs["Entity"][b][:, 0] == victim]
            if len(struck) and struck[0, COLUMN["attacker_id"]] == step.truth["agent"][b]:
                hits += 1
    assert cropped > 0 and hits >= 5


def test_choices_of_rows_are_nmmo_s_choices(env: NmmoEnv) -> None:
    step = env.reset(7)
    parts = list(env.spec.action_parts)
    action = legal(step, env.spec, np.random.default_rng(0))
    for row in range(SMALL.entities_seen):
        action[:, parts.index("Attack.Target")] = row
        whole = env._whole(action)
        for b in range(env.spec.slots):
            ids = env._worlds[b // SMALL.players].env.obs[int(step.truth["agent"][b])].gym_obs.values["Entity"][:, 0]
            assert ids[whole[b, parts.index("Attack.Target")]] == step.obs["Entity"][b, row, 0]
    last = np.array(list(env.spec.action_parts.values())) - 1
    nothing = env._whole(np.tile(last, (env.spec.slots, 1)))
    np.testing.assert_array_equal(nothing[0], np.array(env._raw_sizes) - 1)  # the last choice stays the last


def test_every_part_has_a_legal_choice_and_illegal_moves_do_nothing(env: NmmoEnv) -> None:
    direction = list(env.spec.action_parts).index("Move.Direction")
    start = int(np.cumsum([0, *env.spec.action_parts.values()])[direction])
    blocked = 0
    for step, _, after in play(env, 20, seed=5):
        assert step.alive is not None and after.alive is not None
        parts = np.split(step.obs["Mask"], np.cumsum(list(env.spec.action_parts.values()))[:-1], axis=1)
        assert all((part[step.alive].sum(1) > 0).all() for part in parts)
        on = step.alive & after.alive & ~after.is_first
        moved = np.abs(after.truth["position"] - step.truth["position"]).sum(1)
        assert (moved[on] <= 1).all()
    step = env.reset(9)
    action = np.tile(np.array(list(env.spec.action_parts.values())) - 1, (env.spec.slots, 1))
    for way in range(4):
        walls = step.obs["Mask"][:, start + way] == 0
        action[:, direction] = way
        after = env.step(action)
        blocked += walls.sum()
        np.testing.assert_array_equal(after.truth["position"][walls], step.truth["position"][walls])
        step = after
    assert blocked > 0


def test_features_are_what_the_game_says(env: NmmoEnv) -> None:
    seen = {name: set() for name in FEATURES}  # type: ignore[var-annotated]
    ate = 0
    for step, action, after in play(env, 40, seed=4):
        values = features(step.obs, step.truth, action, env.spec)
        assert values.shape == (env.spec.slots, len(FEATURES)) and values.dtype == np.float32
        assert step.alive is not None and after.alive is not None and after.final_truth is not None
        assert not values[~step.alive].any()
        for name, column in zip(FEATURES, values[step.alive].T, strict=True):
            seen[name] |= set(column.tolist())
        own = dict(zip(FEATURES, values.T, strict=True))
        np.testing.assert_array_equal(own["tick"][step.alive], step.truth["tick"][step.alive])
        same = own["n_visible_npcs"] + own["n_visible_players"] + step.alive  # itself
        np.testing.assert_array_equal(own["n_visible_entities"], same)
        on = after.alive & ~after.is_first & (after.truth["ate"] > 0)
        food = after.obs["Entity"][:, 0, COLUMN["food"]]
        before = step.obs["Entity"][on, 0, COLUMN["food"]]
        assert ((food[on] > before) | (food[on] == 100)).all()
        ate += on.sum()
    assert ate > 0
    for name in ("self_health", "self_food", "n_visible_players", "in_combat", "is_moving", "is_attacking"):
        assert len(seen[name]) > 1, name


def test_features_agree_with_nmmo_s_own_objects(env: NmmoEnv) -> None:
    for _, _, step in play(env, 6, seed=6):
        action = np.zeros((env.spec.slots, len(env.spec.action_parts)), np.int64)
        own = dict(zip(FEATURES, features(step.obs, step.truth, action, env.spec).T, strict=True))
        for b in np.flatnonzero(step.alive):
            player = env._worlds[b // SMALL.players].env.realm.players[int(step.truth["agent"][b])]
            assert own["self_health"][b] == player.resources.health.val
            assert own["self_food"][b] == player.resources.food.val
            assert own["self_water"][b] == player.resources.water.val
            assert own["self_gold"][b] == player.gold.val
            fought = player.latest_combat_tick.val
            recent = fought > 0 and player.realm.tick - fought < 10
            assert own["in_combat"][b] == (player.attacker_id.val != 0 or recent) >= player.in_combat
            assert own["n_inventory_items"][b] == len(player.inventory.items)
            assert tuple(step.truth["position"][b]) == player.pos
            here = env._worlds[b // SMALL.players].env.realm.map.tiles[player.pos]
            assert step.truth["tile"][b] == here.state.index  # eaten foliage is scrub until it has grown again


def test_held_out_maps_are_no_training_maps(maps: Path) -> None:
    away = replace(SMALL, **held_out(SMALL.__dict__))
    assert away.first_map > SMALL.first_map + SMALL.num_maps - 1
    env = make(NmmoEnv(away, 1, maps).spec, away.players, maps=maps)
    numbers = {int(env.reset(seed).truth["map"][0]) for seed in range(12)}
    assert len(numbers) > 3 and min(numbers) >= away.first_map and max(numbers) <= SMALL.map_pool
    env.close()


def test_tasks_are_spread_evenly_and_survival_pays_a_little_every_tick(env: NmmoEnv) -> None:
    names = [task.name for task in env.tasks]
    assert {task.category for task in env.tasks} == set(CATEGORIES) and len(set(names)) == len(names)
    shown = embeddings(env.tasks)
    assert len(np.unique(shown, axis=0)) == len(names)
    paid = 0
    for step, _, after in play(env, 10, seed=8):
        np.testing.assert_array_equal(step.obs["Task"][step.alive], shown[step.truth["task"][step.alive]])
        survives = step.alive & (step.truth["task"] == names.index("survive")) & ~after.terminated
        np.testing.assert_allclose(after.reward[survives], 1 / SMALL.horizon, atol=1e-6)
        paid += survives.sum()
    counts = np.bincount(env.reset(0).truth["task"][: SMALL.players], minlength=len(names))
    assert counts.max() <= 1 and paid > 0
    every = np.concatenate([env.reset(seed).truth["task"] for seed in range(12)])
    assert set(every) == set(range(len(names))), "fewer agents than tasks: some are never asked"
    assert len(tasks_of(30, "core")) < len(names)


def test_core_systems_have_fewer_fields_and_parts(maps: Path) -> None:
    env = NmmoEnv(replace(SMALL, systems="core"), 1, maps)
    assert set(env.spec.action_parts) == {"Attack.Style", "Attack.Target", "Move.Direction"}
    assert "Inventory" not in env.spec.obs
    for step, action, _ in play(env, 5):
        assert not features(step.obs, step.truth, action, env.spec)[:, FEATURES.index("is_trading")].any()
    env.close()


def test_maps_are_made_once_and_are_the_same_everywhere(maps: Path, tmp_path: Path) -> None:
    here, there = ready_maps(SMALL, maps), ready_maps(SMALL, tmp_path)
    for number in (1, 18):
        a, b = (np.load(folder / f"map{number}" / "map.npy") for folder in (here, there))
        np.testing.assert_array_equal(a, b)
    (tmp_path / "any").mkdir()
    assert there.stat().st_mode == (tmp_path / "any").stat().st_mode  # others may read them, where they may anything
    before = (there / "map1" / "map.npy").stat().st_mtime_ns
    ready_maps(SMALL, tmp_path)
    assert (there / "map1" / "map.npy").stat().st_mtime_ns == before
    (there / "map3" / "map.npy").unlink()
    with pytest.raises(UserError, match="no map 3"):
        ready_maps(SMALL, tmp_path)
    with pytest.raises(UserError, match="has no map 1"):
        ready_maps(SMALL, tmp_path / "elsewhere", generate=False)
    assert not map_folder(SMALL, tmp_path / "elsewhere").exists()
    (tmp_path / "a_file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        ready_maps(SMALL, tmp_path / "a_file")


def test_maps_that_another_process_has_made_meanwhile_are_whole(
    maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its folder appeared after the look for the maps in it, it was said to lack the first of them."""
    made, folder, exists = ready_maps(SMALL, maps), map_folder(SMALL, tmp_path), Path.exists

    def seen_too_early(path: Path) -> bool:
        found = exists(path)
        if path.name == "map.npy" and not exists(folder):
            shutil.copytree(made, folder)
        return found

    monkeypatch.setattr(Path, "exists", seen_too_early)
    assert ready_maps(SMALL, tmp_path) == folder and [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entities_seen": 1}, "entities_seen"),
        ({"entities_seen": 50}, "only 14 players and NPCs"),
        ({"num_maps": 19}, "not all among"),
        ({"horizon": 1}, "horizon"),
        ({"players": 1, "npcs": 0}, "two players or NPCs"),
        ({"market_seen": 5000}, "the market has only"),
    ],
)
def test_impossible_worlds_are_refused(change: dict[str, int], said: str, maps: Path) -> None:
    with pytest.raises(UserError, match=said):
        NmmoEnv(replace(SMALL, **change), 1, maps)  # type: ignore[arg-type]


def test_actions_of_another_shape_are_refused(env: NmmoEnv) -> None:
    env.reset(0)
    with pytest.raises(ValueError, match="actions of shape"):
        env.step(np.zeros(env.spec.slots, np.int64))
