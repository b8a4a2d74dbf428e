"""What several tests need: a made-up extraction in the form that analysis.extract_activations writes and clusters of
it, for the stages that read them; made-up agents, simulators and studies for what puts runs on a page; a browser."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
from core.artefacts import Result, new_run, write_json
from core.contracts import EnvSpec, Field
from core.episodes import Episode, RolloutStore, StoreWriter

# Files of minutes.  They begin, so that no process is left alone with one when the others have ended.
LONGEST = (
    "test_demo_report", "test_validation_planted", "test_pipeline", "test_training", "test_ranks", "test_nmmo_joins",
    "test_validation_interventions", "test_nmmo", "test_validation", "test_hidden_states", "test_activations",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pretend_gpu", action="store_true",
        help="every stage computes on a pretended GPU: that everything lies where it is computed with (make test-all)",
    )  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --pretend_gpu, torch sees a GPU, and what stages say of theirs is that one."""
    if not request.config.getoption("--pretend_gpu"):
        yield
        return
    from core import config
    from tests.pretend_gpu import GPU, pretended

    with pretended(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "device_of", lambda name: GPU)
        yield


# With --pretend_gpu: processes of their own compute on the CPU, and go on otherwise than this one; there is a GPU.
NOT_PRETENDED = (
    "test_a_training_killed_alone_goes_on_with_torchrun", "test_a_gpu_that_is_not_there_is_a_mistake",
    "test_a_training_killed_at_any_moment_resumes_to_the_same_curve",
    "test_a_signal_saves_and_names_the_command_that_goes_on",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there before the first test (modules, thousands of tests) stays, and the garbage collector does not walk
    through it, nor as often as usual through what is imported later: a seventh of the tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5000)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first; else the order stays."""
    if config.getoption("--pretend_gpu"):
        items[:] = [item for item in items if item.name.partition("[")[0] not in NOT_PRETENDED]
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The directory that ``make`` fills, in whichever process of the session asks first; the others wait for it.

    It is everybody's: who changes something copies it first.
    """
    base = factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    whole = path.with_suffix(".whole")
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            make(path)
            whole.touch()
    return path


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that tests agree to run are kept with the tests' files, not with the user's; so is what JAX compiles,
    once for all processes (a Craftax: 20 s)."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(root / "data"))
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(root / "jax"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
        yield


FEATURES = (
    "n_visible_entities", "n_visible_npcs", "n_visible_players", "self_health", "self_food", "self_water", "self_gold",
    "max_combat_level", "in_combat", "n_inventory_items", "tick", "is_moving", "is_attacking", "is_trading",
)  # fmt: skip
SIZE = 24  # of the map
EVERY = 5  # rows between clustered ones


def made_up_life(seed: int, agent: int, world: int, part: int, horizon: int) -> Episode:
    """A random walk on the map; food and water fall by one and rise by ten at meals; some die, the others are cut
    off."""
    rng = np.random.default_rng(seed)
    died = bool(seed % 3)
    steps = int(rng.integers(horizon // 2, horizon)) if died else horizon
    position = np.clip(np.cumsum(rng.integers(-1, 2, (steps, 2)), 0) + rng.integers(4, SIZE - 4, 2), 2, SIZE - 3)
    f = {name: np.zeros(steps) for name in FEATURES}
    for name, often in (("self_food", 0.12), ("self_water", 0.15)):
        level = 100
        for t, meal in enumerate(rng.random(steps) < often):
            level = int(np.clip(level - 1 + 10 * meal, 0, 100))
            f[name][t] = level
    f["self_health"] = np.clip(100 - 0.6 * np.arange(steps) * died - rng.integers(0, 9, steps), 1, 100).round()
    f["self_gold"] = np.cumsum(rng.random(steps) < 0.1)
    f["max_combat_level"] = 1 + np.arange(steps) // 25
    f["n_visible_npcs"], f["n_visible_players"] = rng.integers(0, 4, steps), rng.integers(0, 3, steps)
    f["n_visible_entities"] = f["n_visible_npcs"] + f["n_visible_players"]
    f["n_inventory_items"] = np.arange(steps) // 12
    f["tick"] = np.arange(steps)
    for name, often in (("in_combat", 0.1), ("is_moving", 0.8), ("is_attacking", 0.15), ("is_trading", 0.03)):
        f[name] = (rng.random(steps) < often).astype(float)
    features = np.stack([f[name] for name in FEATURES], 1).astype(np.float32)
    return Episode(
        obs={"Tick": np.arange(steps, dtype=np.int16)[:, None]},
        h=rng.normal(size=(steps, 6)).astype(np.float32),
        value=np.linspace(1, -0.5, steps, dtype=np.float32),
        action=rng.integers(0, 3, (steps, 2)),
        reward=(rng.random(steps) < 0.05).astype(np.float32),
        terminated=died,
        truncated=not died,
        truth={"features": features, "position": position.astype(np.int16)},
        meta={"seed": part, "world": world, "part": part, "map": 50 + world, "agent": agent, "first_tick": 0},
    )


def write_extraction(path: Path, *, parts: int = 2, worlds: int = 2, players: int = 6, horizon: int = 80) -> Path:
    """A run directory of stage ``extract_activations``: parts x worlds x players lives."""
    rng = np.random.default_rng(7)
    spec = EnvSpec(env_id="nmmo", obs={"Tick": Field(shape=(1,), dtype="int16")}, action_names=("a", "b"), slots=1)
    with new_run(path, "extract_activations", {"seed": 0}) as run:
        write_json(run.path / "spec.json", spec.to_json())
        with StoreWriter(run.path, "part_0000") as writer:
            for i, (part, world, agent) in enumerate(np.ndindex(parts, worlds, players)):
                writer.add(made_up_life(i, agent + 1, world, part, horizon))
        for world in range(worlds):
            material = rng.choice([1, 2, 2, 2, 4, 5, 15], size=(SIZE, SIZE)).astype(np.uint8)
            material[[0, -1]] = material[:, [0, -1]] = 0
            np.save(run.path / f"map_{50 + world}.npy", material)
        run.facts = {"policy": "made-up", "features": list(FEATURES), "agent": "none"}
    return path


def write_clusters(path: Path, extraction: Path) -> Path:
    """A run directory of stage ``activations``: every fifth row; labels 0 (first half of a life), 1 (second half), 2
    (anywhere) and noise, and a real condensed tree of points that are made from them."""
    from hdbscan import HDBSCAN  # type: ignore[import-untyped]

    rng = np.random.default_rng(3)
    with RolloutStore(extraction) as store:
        data, index = store.pooled("truth/features")
        phase = (index[:, 1] + 0.5) / store.steps[index[:, 0]]
    rows = np.flatnonzero(index[:, 1] % EVERY == 0)
    kind = np.where(rng.random(len(rows)) < 0.25, 2, (phase[rows] > 0.5).astype(int))
    point = np.array([[0, 0], [6, 1], [2, 7]])[kind] + rng.normal(size=(len(rows), 2)) * 0.6
    far = rng.random(len(rows)) < 0.08
    point[far] = rng.uniform(-6, 12, (far.sum(), 2))
    model = HDBSCAN(min_cluster_size=8, core_dist_n_jobs=1).fit(point)
    tree = model.condensed_tree_.to_numpy()
    result = Result(
        arrays={
            "index": index[rows], "label": model.labels_.astype(np.int64), "umap": point,
            "tree_parent": tree["parent"], "tree_child": tree["child"], "tree_lambda": tree["lambda_val"],
            "tree_size": tree["child_size"], "features": data["truth/features"][rows],
        },
        notes={"features": list(FEATURES)},
    )  # fmt: skip
    with new_run(path, "activations", {"seed": 0}, {"activations": extraction}) as run:
        result.save(run.path)
    return path


@pytest.fixture(scope="session")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 made-up lives of four games."""
    return write_extraction(tmp_path_factory.mktemp("made_up") / "extraction")


@pytest.fixture(scope="session")
def clusters(extraction: Path) -> Path:
    """Clusters of ``extraction``."""
    return write_clusters(extraction.parent / "clusters", extraction)


@pytest.fixture(scope="session")
def other_extraction(extraction: Path) -> Path:
    """Another extraction, with which ``clusters`` have nothing to do."""
    return write_extraction(extraction.parent / "other", parts=1, players=2)


# Runs for a page


def write_agent(
    path: Path,
    *,
    seed: int = 0,
    world: str = "procgen/maze",
    recurrence: str = "gru",
    options: Mapping[str, Any] = {},
    begin_with: Path | None = None,
) -> Path:
    """A run directory of stage ``train`` with an untrained agent; equal seeds give equal weights."""
    import torch

    from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
    from agents.train import TrainConfig

    spec = EnvSpec(
        env_id=world, obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=("left", "right"), slots=1,
        options={"num_levels": 100, "start_level": 0, **options},
    )  # fmt: skip
    torch.manual_seed(seed)
    net = AgentConfig(encoder="strided", embedding_size=8, hidden_size=6, recurrence=recurrence)  # type: ignore[arg-type]
    with new_run(path, "train", TrainConfig(out=path, seed=seed, begin_with=begin_with)) as run:
        save_agent(RecurrentAgent(net, spec), run.path)
        run.facts = {}
    return path


def write_simulator(path: Path, agent: Path, *, seed: int = 0) -> Path:
    """A run directory of stage ``train_gen_model`` with an untrained simulator around an agent."""
    import torch

    from agents.recurrent import load_agent
    from core.directions import fingerprint
    from generative.rssm import ModelConfig
    from generative.simulator import save_simulator, simulator_of
    from generative.train import GenTrainConfig

    torch.manual_seed(seed)
    inside = load_agent(agent)
    sizes = ModelConfig(deterministic_size=8, hidden_size=8, groups=2, classes=2, depth=4, head_layers=1, latent_size=4)
    config = GenTrainConfig(agent=agent, rollouts=path.parent / "rollouts", out=path)
    with new_run(path, "train_gen_model", config, {"agent": agent}) as run:
        save_simulator(simulator_of(sizes, inside), run.path)
        run.facts = {"agent": fingerprint(inside)}
    return path


def write_evaluation(path: Path, agent: Path, returned: float) -> Path:
    """A run directory of stage ``evaluate`` that says what an agent's mean return is."""
    from agents.evaluate import EvaluateConfig

    result = Result()
    result.scalar("return_mean", returned, "return", 16, (returned - 1, returned + 1))
    with new_run(path, "evaluate", EvaluateConfig(agent=agent, out=path), {"agent": agent}) as run:
        result.save(run.path)
    return path


def write_study(
    path: Path, simulator: Path, *, today: bool = True, facts: Mapping[str, Any] = {}, answer: str = "no"
) -> Path:
    """A run directory of stage ``interventions``: one claim of every verdict, with the verdicts of today's rules or of
    older ones."""
    from validation.interventions.__main__ import InterventionsConfig

    result = Result(tables={"effects": [], "doses": [], "needs": [], "paths": []})
    for i in range(12):
        row: dict[str, Any] = {
            "world": "real", "hypothesis": f"shift {i} by -2", "quantity": "prob:left@1..8" if i % 2 else "value@8",
            "unit": "return", "observed": 0.1 * i - 0.3, "low": 0.1 * i - 0.4, "high": 0.1 * i - 0.2, "q": 0.01 * i,
            "n": 16, "random_low": -0.2, "random_high": 0.2, "verdict": "confirmed",
        }  # fmt: skip
        if today:
            row |= {
                "foretold": 0.1, "memory": -0.05, "world_effect": 0.02, "world_low": -0.01, "world_high": 0.05,
                "exists": "yes", "size": "as foretold", "special_p": 0.025, "through_world": "by construction",
                "needed": "open",
            }  # fmt: skip
        else:
            row |= {"predicted_jacobian": 0.1, "predicted_simulated": 0.1}
        result.tables["effects"] += [row, {**row, "world": "simulator"}]
    if today:
        result.tables["paths"] = [
            {"hypothesis": "shift 0 by -2", "quantity": "value@8", "world": world, "path": path, "unit": "return",
             "value": -0.3, "low": -0.4, "high": -0.2, "n": 16}
            for world in ("real", "simulator") for path in ("whole", "memory alone", "world alone")
        ]  # fmt: skip
        result.notes = {
            "verdicts": 2,
            "claims": [_claim(i, v) for i, v in enumerate(("confirmed", "refuted", "open", "no effect"))],
            "gate": {"answer": answer, "text": "Memory alone foretells as well, by -0.01.", "rows": 12,
                     "against": {"memory alone": {"value": -0.01, "low": -0.03, "high": 0.01, "n": 16}}},
            "warnings": ["The basis and the test starts share 12 levels."], "criteria": "Exists: it does.",
        }  # fmt: skip
        nothing = {"hypothesis": "shift 9 by -2", "direction": 9, "amount": -2.0, "verdict": "open", "headline": True,
                   "sentence": "open", "text": "Direction 9 has nothing to change.", "parts": {}}  # fmt: skip
        result.notes["claims"].append(nothing)
    else:
        claim = {**result.tables["effects"][0], "direction": 0, "text": "Direction 0: it did as foretold: confirmed."}
        result.notes = {"claims": [claim], "criteria": "confirmed: the interval excludes 0."}
    with new_run(path, "interventions", InterventionsConfig(simulator=(simulator,), out=path),
                 {"simulator": simulator}) as run:  # fmt: skip
        result.save(run.path)
        run.facts = dict(facts)
    return path


def _claim(direction: int, verdict: str) -> dict[str, Any]:
    answers = {"exists": "yes", "size": "wrong", "special": "open", "through_world": "by construction",
               "needed": "not asked"}  # fmt: skip
    return {
        "hypothesis": f"shift {direction} by -2", "direction": direction, "amount": -2.0, "headline": direction < 3,
        "quantity": "value@8", "unit": "return", "n": 16, "spread": 1.5, "smallest": 0.1, "foretold": -0.31,
        "observed": -0.28, "low": -0.35, "high": -0.2, "memory": -0.05, "verdict": verdict, "sentence": verdict,
        "text": f"Direction {direction} changes the value: foretold -0.31, seen -0.28 [-0.35, -0.2]: {verdict}.",
        "parts": {name: {"answer": answer, "words": f"{name} by -0.28"} for name, answer in answers.items()},
    }  # fmt: skip


# A browser


@pytest.fixture(scope="session")
def panel_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that tests of the panel look at."""
    from tests.panel_runs import make_runs

    return once(tmp_path_factory, "panel_runs", make_runs)


@pytest.fixture(scope="session")
def panel_page(panel_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The panel of ``panel_runs`` as one file."""
    from core import config as cli
    from validation.panel.__main__ import STAGE, PanelConfig, main
    from validation.panel.page import PAGE

    def make(root: Path) -> None:
        argv = ["build", str(panel_runs), "--single_file", "--out", str(root / "panel"), "--threads", "1"]
        main(cli.parse(PanelConfig, argv, STAGE))

    return once(tmp_path_factory, "panel_page", make) / "panel" / PAGE


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system.  Without one the tests are skipped, in continuous integration they fail."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        reason = "no Chromium on PATH (make test installs Debian's where it may; else: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield started
        started.close()
