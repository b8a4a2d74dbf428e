"""An agent and a world model of one's own, one file each, from adoption through every stage that takes a simulator; and
what is wrong with a world model is one line that names the rule."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents import adopt as adopt_agent, record
from agents.load import load_agent
from analysis.coupling import __main__ as coupling
from analysis.probes import __main__ as probes
from analysis.saliency import __main__ as saliency
from analysis.target_functions import __main__ as target_functions
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.stages import OF_AN_AGENT
from envs.planted import PlantedAgent, PlantedModel, PlantedOptions
from envs.registry import spec_of
from generative import adopt, bundle, record_samples
from generative.adopt import AdoptWorldConfig, check, windows
from generative.adopted import simulator_in
from generative.load import load_simulator
from tests.stages.test_ranks import assert_same, torchrun
from validation.fidelity import __main__ as fidelity
from validation.interventions import __main__ as interventions
from validation.panel import __main__ as panel
from validation.report import __main__ as report
from validation.report.lineage import choose

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
STAGES = {  # what takes a simulator, and its flags
    "saliency": (saliency, "SaliencyConfig", "--samples samples --steps 4 --target_step 2 --sample_ids 0 1 --no-video"),
    "coupling": (
        coupling,
        "CouplingConfig",
        "--samples samples --hidden_states states --behaviours None --preset debug",
    ),
    "targets": (target_functions, "TargetFunctionsConfig", "--rollouts rollouts --maximise value_drop --preset debug"),
    "fidelity": (fidelity, "FidelityConfig", "--rollouts others --preset debug"),
    "interventions": (interventions, "InterventionsConfig", "--hidden_states states --preset debug"),
}


def module(name: str) -> Any:
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found is not None and found.loader is not None
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CartPole's agent and world model, untrained: adopted, recorded, simulated."""
    root, spec = tmp_path_factory.mktemp("own"), spec_of("gymnasium/CartPole-v1", {})
    torch.manual_seed(0)
    for name, made in (("cartpole", "make_agent"), ("cartpole_world", "make_world")):
        torch.save(getattr(module(name), made)(spec).state_dict(), root / f"{name}.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(root / "data"))
        words = [EXAMPLES / "cartpole.py", "--weights", root / "cartpole.pt", "--env", "gymnasium/CartPole-v1"]
        run(adopt_agent, "AdoptConfig", *words, "--out", root / "agent")
        words = [EXAMPLES / "cartpole_world.py", "--weights", root / "cartpole_world.pt", "--agent", root / "agent"]
        run(adopt, "AdoptWorldConfig", *words, "--out", root / "simulator")
        for name, seed in (("rollouts", 0), ("others", 5)):
            words = ["--agent", root / "agent", "--episodes", 24, "--slots", 8, "--seed", seed, "--out", root / name]
            run(record, "RecordConfig", *words)
        simulate(root, 8)
        yield root


def simulate(root: Path, steps: int) -> None:
    """Samples of a house's simulator from its rollouts, and the directions of both."""
    from analysis import hidden_states

    words = ["--simulator", root / "simulator", "--rollouts", root / "rollouts", "--samples", 16, "--steps", steps]
    run(record_samples, "RecordSamplesConfig", *words, "--out", root / "samples")
    words = ["--rollouts", root / "rollouts", "--samples", root / "samples", "--preset", "debug"]
    run(hidden_states, "HiddenStatesConfig", "precompute", *words, "--out", root / "states")


def run(stage: Any, config: str, *words: object) -> None:
    """A stage as it is typed."""
    stage.main(cli.parse(getattr(stage, config), [str(w) for w in (*words, "--threads", 1)], stage.STAGE))


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_takes_it(house: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    stage, config, flags = STAGES[name]
    made = ("samples", "states", "rollouts", "others")
    words = [house / word if word in made else word for word in flags.split()]
    run(stage, config, *words, "--simulator", house / "simulator", "--out", tmp_path / "out")
    manifest = artefacts.read_manifest(tmp_path / "out")
    assert manifest["facts"]["agent"] == artefacts.read_manifest(house / "agent")["facts"]["agent"]
    assert artefacts.verify(tmp_path / "out") == []


def test_probes_say_that_it_tells_no_labels(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    said = (
        r"no ground truth to read; its world tells none: give numbers in the info of reset and step \(docs/bring-your"
    )
    with pytest.raises(UserError, match=said):
        run(probes, "ProbesConfig", house / "rollouts", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["--simulator simulator", pytest.param("--policy agent", marks=pytest.mark.slow)])
def test_two_processes_give_what_one_gives_where_no_snapshot_can_be_passed_on(
    house: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Gymnasium world's snapshots are Python objects; the starts are more than are branched at once."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    option, path = what.split()
    words = ["--preset", "debug", "--starts", "40", "--horizon", "2", "--no-video"]
    words += ["--hidden_states", f"{house}/states", option, f"{house}/{path}"]
    run(interventions, "InterventionsConfig", *words, "--out", tmp_path / "one")
    command = ["-m", "validation.interventions", *words, "--threads", "1", "--out", f"{tmp_path}/two"]
    done = torchrun([command], tmp_path / "commands.json")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("note: the snapshots of gymnasium/CartPole-v1 are Python objects") == 1
    assert_same(tmp_path / "one", tmp_path / "two")


def test_a_report_and_a_panel_show_it(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of an adopted agent, in its real world and in an adopted one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    agent, simulator = (artefacts.read_manifest(house / name)["facts"]["agent"] for name in ("agent", "simulator"))
    run(report, "ReportConfig", "--runs", house, "--out", tmp_path / "report")
    words = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "report" / "report.html").read_text()).split())
    assert "An agent of the module cartpole with a hidden state of 128 units in gymnasium/CartPole-v1" in words
    assert "One agent, one simulator, one world" in words  # and nothing of a training seed
    run(panel, "PanelConfig", "build", house, "--out", tmp_path / "panel")
    chosen = choose(house, OF_AN_AGENT)
    assert (chosen.agent, chosen.simulator) == (house / "agent", house / "simulator") and agent == simulator
    assert {run.path.name for run in chosen.runs} == {"rollouts", "others", "samples", "states"}
    assert "are left out" not in words and "is left out" not in words
    capsys.readouterr()
    named = [house / name for name in ("agent", "simulator", "samples")]
    run(panel, "PanelConfig", "build", *named, "--out", tmp_path / "panel_of_three")
    assert "left out" not in "".join(capsys.readouterr())  # the simulator's copy of its agent, say


def test_other_weights_than_the_manifest_names_are_found(house: Path) -> None:
    """``verify`` reads an adopted world's fingerprint from its weights and its agent's."""
    with artefacts.new_run(house / "of another", "test", {}, {"simulator": house / "simulator"}) as wrong:
        wrong.facts = {"agent": artefacts.read_manifest(house / "agent")["facts"]["agent"], "simulator": "0" * 16}
    (said,) = artefacts.verify(wrong.path)
    assert "it says simulator 0000000000000000, its inputs hold others" in said
    shutil.rmtree(wrong.path)


def test_no_bundle_is_made_of_it(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said to hold no simulator."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    argv = ["--agent", f"{house}/agent", "--simulator", f"{house}/simulator", "--out", f"{tmp_path}/b"]
    with pytest.raises(UserError, match="is a world model of your own, of which no bundle is made: .* copied as it is"):
        bundle.main(cli.parse(bundle.BundleConfig, argv, bundle.STAGE))
    copied = shutil.copytree(house / "simulator", tmp_path / "copied")
    assert fingerprint(load_simulator(copied)) == fingerprint(load_simulator(house / "simulator"))
    assert not (tmp_path / "b").exists()


def test_its_samples_are_what_the_world_shows(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    simulator = load_simulator(house / "simulator")
    with RolloutStore(house / "samples") as store, torch.no_grad():
        out = simulator.rollout(torch.from_numpy(store.latents([3])), 8)
        np.testing.assert_allclose(store.episode(3).obs["x"], out.obs["x"][0, : store.rows[3]].numpy(), atol=1e-5)


def test_other_code_with_the_same_weights_is_another_simulator_and_another_agent(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    changes = {
        "cartpole_world": ("state + out[:, :4]", "state + 2 * out[:, :4]"),
        "cartpole": ("SIZE = 64", "SIZE = 64 "),
    }
    for name, (was, now) in changes.items():
        text = (EXAMPLES / f"{name}.py").read_text()
        assert was in text
        (tmp_path / f"{name}.py").write_text(text.replace(was, now))
    words = ["--weights", house / "cartpole_world.pt", "--agent", house / "agent", "--out", tmp_path / "simulator"]
    run(adopt, "AdoptWorldConfig", tmp_path / "cartpole_world.py", *words)
    words = ["--weights", house / "cartpole.pt", "--env", "gymnasium/CartPole-v1", "--out", tmp_path / "agent"]
    run(adopt_agent, "AdoptConfig", tmp_path / "cartpole.py", *words)
    names = [
        artefacts.read_manifest(root / of)["facts"][of] for of in ("agent", "simulator") for root in (house, tmp_path)
    ]
    assert len(set(names)) == 4
    both = ["--simulator", house / "simulator", tmp_path / "simulator", "--rollouts", house / "rollouts"]
    run(record_samples, "RecordSamplesConfig", *both, "--samples", 4, "--steps", 3, "--out", tmp_path / "ensemble")
    assert artefacts.verify(tmp_path / "ensemble") == artefacts.verify(tmp_path / "agent") == []
    with pytest.raises(UserError, match="was not generated by the simulator in"):
        words = ["--simulator", tmp_path / "simulator", "--samples", house / "samples", "--out", tmp_path / "saliency"]
        run(saliency, "SaliencyConfig", *words, "--steps", 4, "--sample_ids", 0, "--no-video")


def test_nothing_runs_where_nobody_agreed(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nobody"))
    with pytest.raises(UserError, match="code that nobody agreed to run on this machine"):
        load_simulator(house / "simulator")


def test_a_changed_module_is_not_run(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    shutil.copytree(house / "simulator", tmp_path / "changed")
    with open(tmp_path / "changed" / "world_model_module.py", "a") as file:
        file.write("\n")
    with pytest.raises(UserError):
        load_simulator(tmp_path / "changed")


class Broken:
    """CartPole's world model with one fault."""

    @staticmethod
    def wide(x: Tensor) -> Tensor:
        return torch.cat([x, x], 1)


def broken(fault: str) -> Any:
    example = module("cartpole_world")
    example_world, Shown = example.World, example.Shown

    class World(example_world):  # type: ignore[misc, valid-type]
        calls = 0

        def infer(self, obs: Any) -> Any:
            mean, log_std = super().infer(obs)
            return (Broken.wide(mean), log_std) if fault == "latent" else (mean, log_std)

        def normalise(self, z: Tensor) -> Tensor:
            return z / 2 if fault == "normalise" else z

        def step(self, state: Tensor, action: Tensor, noise: Any = None) -> Any:
            x, shown = super().step(state, action.detach() if fault == "rounded" else action, noise)
            self.calls += 1
            if fault == "memory between calls":
                x = x + self.calls
            if fault == "nan":
                shown = shown._replace(reward_B=shown.reward_B / 0)
            if fault == "field":
                shown = shown._replace(obs={"y": x})
            if fault == "ending":
                shown = shown._replace(ending_B=shown.ending_B + 1)
            if fault == "rows":
                x = x + x.mean()
            if fault == "cut":
                x = x.detach()
            if fault == "rounded":
                x = x + action[:, :1].round()
            if fault == "no action":
                x = state + 0 * action[:, :1]
            if fault == "unused action":
                x = state
            if fault in ("rows", "memory between calls", "cut", "rounded", "no action", "unused action"):
                shown = shown._replace(obs={"x": x})
            return ((x, x) if fault == "form" else x), shown

        def start(self, z: Tensor, noise: Any = None) -> Any:
            state, shown = super().start(z, noise)
            if "constant start" in fault:
                state = torch.zeros_like(z) if "cut" in fault else 0 * z
                shown = shown._replace(obs={"x": state})
            return state, shown

        def memory(self, z: Tensor) -> Tensor:
            return z if fault == "state" else z.new_zeros(len(z), 128)

    del Shown
    world = World(2).eval().requires_grad_(False)
    world.spec = spec_of("gymnasium/CartPole-v1", {})
    return world


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("latent", r"shapes: infer's mean is float32 \[4, 8\]; it must be float32 \[4, 4\]"),
        ("normalise", "latents: normalise is not idempotent"),
        ("memory between calls", "purity: the same step without noise gives another result the second time"),
        ("nan", "finite numbers: step's reward"),
        ("field", r"shapes: step shows \['y'\]; the world has \['x'\]"),
        ("ending", "shapes: step's ending must be a probability"),
        ("rows", "rows: a row alone gives other numbers than in a batch"),
        ("cut", "gradients: none from observations to the action"),
        ("unused action", "gradients: none from observations to the action .*, or never used"),
        ("rounded", "gradients: those from observations to the action are 0, though another one changes what is shown"),
        ("constant start, cut", "gradients: none from observations to the latent"),
        ("form", "trees: step gives a state of another form than start"),
        ("state", r"memory: memory\(z\) does not give a state of this agent"),
    ],
)
def test_a_broken_world_is_named(house: Path, fault: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    agent = load_agent(house / "agent")
    window = windows(agent.spec, 1, 0)
    assert check(simulator_in(broken("none"), agent), window) == []
    with pytest.raises(UserError, match=rule):
        check(simulator_in(broken(fault), agent), window)


def world_that(**changes: Any) -> Any:
    """CartPole's world model with functions of its own."""
    own = type("World", (module("cartpole_world").World,), changes)(2).eval().requires_grad_(False)
    own.spec = spec_of("gymnasium/CartPole-v1", {})
    return own


def stepping(change: Any) -> dict[str, Any]:
    """A step whose result is changed: change(shown, next latents, noise)."""

    def step(self: Any, state: Tensor, action: Tensor, noise: Any = None) -> Any:
        x, shown = super(type(self), self).step(state, action, noise)
        return x, change(shown, x, noise)

    return {"step": step, "draw_noise": lambda self, batch, generator: torch.randn(batch, 1, generator=generator)}


def beginning_anew(change: Any) -> dict[str, Any]:
    """A world that counts its steps: change(shown, steps before)."""

    def start(self: Any, z: Tensor, noise: Any = None) -> Any:
        x, shown = super(type(self), self).start(z, noise)
        return (x, torch.zeros(len(z), 1)), shown

    def step(self: Any, state: Any, action: Tensor, noise: Any = None) -> Any:
        x, shown = super(type(self), self).step(state[0], action, noise)
        return (x, state[1] + 1), change(shown, state[1][:, 0])

    return {"start": start, "step": step}


def fails(*_: Any) -> Any:
    raise ZeroDivisionError("division by zero")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "infer": ({"infer": lambda self, obs: obs["x"][:, 0]}, r"shapes: infer must give \(mean, log_std\)"),
    "normalise": ({"normalise": lambda self, z: None}, "shapes: normalise is NoneType"),
    "fields": (
        stepping(lambda s, x, n: s._replace(obs=None)),
        "shapes: what step shows is NoneType; it must be a dict",
    ),
    "features": (stepping(lambda s, x, n: s._replace(features_BD=x.sum())), r"shapes: step's features is float32 \[\]"),
    "reward of rows": (
        stepping(lambda s, x, n: s._replace(reward_B=s.reward_B + x.mean())),
        "rows: a row alone gives other .*the reward",
    ),
    "ending of rows": (
        stepping(lambda s, x, n: s._replace(ending_B=torch.sigmoid(x.mean()).expand(len(x)))),
        "rows: a row alone gives other .*the ending",
    ),
    "features of rows": (
        stepping(lambda s, x, n: s._replace(features_BD=x - x.mean())),
        "rows: a row alone gives other .*the features",
    ),
    "one row": (
        stepping(lambda s, x, n: s if len(x) > 1 else fails()),
        "calls: step of one row fails: ZeroDivisionError",
    ),
    "list of noise": (
        {"draw_noise": lambda self, batch, generator: [torch.zeros(batch)]},
        "trees: draw_noise must give nested tuples",
    ),
    "noise": (
        stepping(lambda s, x, n: s if n is None else fails()),
        "calls: step 1 with noise fails: ZeroDivisionError",
    ),
    "ending with noise": (
        stepping(lambda s, x, n: s if n is None else s._replace(ending_B=s.ending_B + 2)),
        "shapes: step 1 with noise's ending must be a probability",
    ),
    "ending later": (
        beginning_anew(lambda s, t: s._replace(ending_B=s.ending_B - 2 * (t > 0).float())),
        "shapes: step 2's ending must be a probability",
    ),
    "reward later": (
        beginning_anew(lambda s, t: s._replace(reward_B=s.reward_B / (1 - (t > 0).float()))),
        "finite numbers: step 2's reward has NaN",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_beyond_the_first_observation_is_named(
    house: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rewards, endings and features, of later steps, with noise and of one row; all of them one line."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    agent = load_agent(house / "agent")
    changes, rule = FAULTS[fault]
    with pytest.raises(UserError, match=rule):
        check(simulator_in(world_that(**changes), agent), windows(agent.spec, 1, 0))


RULES = """
import torch
from torch import nn

from core.contracts import Shown


class Rules(nn.Module):
    latent_size, initial_frames = 4, 1

    def infer(self, obs):
        return obs["x"][:, 0], torch.full_like(obs["x"][:, 0], -10.0)

    def normalise(self, z):
        return z

    def observe(self, obs, action, seen):
        return obs["x"]

    def start(self, z, noise=None):
        return z, Shown({"x": z}, torch.ones_like(z[:, 0]), torch.zeros_like(z[:, 0]), z)

    def step(self, state, action, noise=None):
        x = state + 0.02 * state.roll(-1, 1) + 0.2 * (action[:, 1:] - action[:, :1])
        return x, Shown({"x": x}, torch.ones_like(x[:, 0]), torch.sigmoid(x[:, 0].abs() - 2.4), x)

    def draw_noise(self, batch, generator):
        return ()


def make_world(spec):
    return Rules()
"""


def test_a_world_of_rules_has_no_weights(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    (tmp_path / "rules.py").write_text(RULES)
    run(adopt, "AdoptWorldConfig", tmp_path / "rules.py", "--agent", house / "agent", "--out", tmp_path / "simulator")
    assert artefacts.verify(tmp_path / "simulator") == []
    words = ["--simulator", tmp_path / "simulator", "--rollouts", house / "rollouts", "--samples", 4, "--steps", 4]
    run(record_samples, "RecordSamplesConfig", *words, "--out", tmp_path / "samples")
    with RolloutStore(tmp_path / "samples") as store:
        assert len(store) == 4
    (tmp_path / "others.py").write_text(RULES.replace("0.02 *", "0.03 *"))
    run(adopt, "AdoptWorldConfig", tmp_path / "others.py", "--agent", house / "agent", "--out", tmp_path / "other")
    names = {artefacts.read_manifest(tmp_path / n)["facts"]["simulator"] for n in ("simulator", "other")}
    assert len(names) == 2  # known by their code
    with pytest.raises(UserError, match="cartpole_world.py: the world has tensors .*, so it needs --weights"):
        run(adopt, "AdoptWorldConfig", EXAMPLES / "cartpole_world.py", "--agent", house / "agent", "--out",
            tmp_path / "none")  # fmt: skip


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no action", "actions change nothing that is shown or paid within 3 steps in the states that were tried: "
         "gradients to the action are 0 there"),
        ("constant start", "latents change nothing of the first observations: gradients to the latent are 0 there"),
    ],
)  # fmt: skip
def test_a_world_in_which_something_does_nothing_is_adopted_with_a_note(
    house: Path, what: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is there and exactly 0 is no mistake where nothing else is so."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    agent = load_agent(house / "agent")
    assert check(simulator_in(broken(what), agent), windows(agent.spec, 1, 0)) == [said]


PLANTED = """
from envs.planted import {kind}, PlantedOptions


def {make}(spec):
    return {kind}(PlantedOptions(**spec.options))
"""


def test_a_planted_world_whose_actions_do_nothing_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    options = PlantedOptions(kind="gated")
    for kind, make, of in ((PlantedAgent, "make_agent", "agent"), (PlantedModel, "make_world", "world")):
        (tmp_path / f"{of}.py").write_text(PLANTED.format(kind=kind.__name__, make=make))
        finite = {k: x.clamp(-1e9, 1e9) if x.is_floating_point() else x for k, x in kind(options).state_dict().items()}
        torch.save(finite, tmp_path / f"{of}.pt")
    words = [tmp_path / "agent.py", "--weights", tmp_path / "agent.pt", "--env", "planted/gated"]
    run(adopt_agent, "AdoptConfig", *words, "--out", tmp_path / "agent")
    words = [tmp_path / "world.py", "--weights", tmp_path / "world.pt", "--agent", tmp_path / "agent"]
    run(adopt, "AdoptWorldConfig", *words, "--out", tmp_path / "simulator")
    assert capsys.readouterr().err.count("note: actions change nothing that is shown or paid within 3 steps") == 1
    assert load_simulator(tmp_path / "simulator").world.latent_size == PlantedModel(options).latent_size


def test_weights_that_do_not_fit(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    with pytest.raises(UserError, match="no tensor"):
        adopt.main(
            AdoptWorldConfig(
                module=EXAMPLES / "cartpole_world.py", weights=house / "cartpole.pt", agent=house / "agent",
                out=tmp_path / "out",
            )
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_what_is_measured_on_held_out_starts_that_the_training_has_too_says_so(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A world that ignores its seed: in every manifest and, of claims, among the warnings that the report shows."""
    from agents import evaluate

    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    world = tmp_path / "still.py"
    world.write_text(
        "import gymnasium\n\n\nclass Still(gymnasium.Wrapper):\n    def reset(self, *, seed=None, options=None):\n"
        "        return self.env.reset(seed=7, options=options)\n\n\n"
        "def make_env(**kwargs):\n    return Still(gymnasium.make('CartPole-v1'))\n"
    )
    agent = tmp_path / "agent"
    words = [EXAMPLES / "cartpole.py", "--weights", house / "cartpole.pt", "--env", world, "--out", agent]
    run(adopt_agent, "AdoptConfig", *words)
    few = ["--agent", agent, "--episodes", 4, "--slots", 2]
    run(record, "RecordConfig", *few, "--out", tmp_path / "trained")
    assert "held_out_warning" not in artefacts.read_manifest(tmp_path / "trained")["facts"]
    assert "warning" not in capsys.readouterr().err
    run(record, "RecordConfig", *few, "--split", "held_out", "--out", tmp_path / "recorded")
    run(evaluate, "EvaluateConfig", *few, "--out", tmp_path / "evaluated")
    from analysis import hidden_states

    words = ["precompute", "--rollouts", tmp_path / "trained", "--preset", "debug", "--out", tmp_path / "states"]
    run(hidden_states, "HiddenStatesConfig", *words)
    words = ["--policy", agent, "--hidden_states", tmp_path / "states", "--preset", "debug", "--no-video"]
    run(interventions, "InterventionsConfig", *words, "--out", tmp_path / "claims")
    said = {
        artefacts.read_manifest(tmp_path / n)["facts"]["held_out_warning"] for n in ("recorded", "evaluated", "claims")
    }
    assert len(said) == 1 and "16 of 16 held-out starts of module/still" in min(said)
    assert capsys.readouterr().err.count(f"warning: {min(said)}") == 3
    assert min(said) in artefacts.Result.load(tmp_path / "claims").notes["warnings"]
    run(adopt, "AdoptWorldConfig", EXAMPLES / "cartpole_world.py", "--weights", house / "cartpole_world.pt",
        "--agent", agent, "--out", tmp_path / "simulator")  # fmt: skip
    report.main(cli.parse(report.ReportConfig, ["--runs", str(tmp_path), "--out", str(tmp_path / "page")], "report"))
    assert (tmp_path / "page" / "report.html").read_text().count("16 of 16 held-out starts") == 1


def test_a_change_that_leads_far_from_what_was_recorded_is_told(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In altered recordings, samples and claims of both kinds; a usual change is not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    few = ["--agent", house / "agent", "--episodes", 2, "--slots", 2, "--basis", house / "states"]
    run(record, "RecordConfig", *few, "--shift", "ica:0=-100", "--out", tmp_path / "near")
    assert "far_outside" not in artefacts.read_manifest(tmp_path / "near")["facts"]
    assert "warning" not in capsys.readouterr().err
    run(record, "RecordConfig", *few, "--shift", "ica:0=-1e6", "ica:1=2", "--out", tmp_path / "recorded")
    words = ["--simulator", house / "simulator", "--rollouts", house / "rollouts", "--samples", 4, "--steps", 2]
    words += ["--basis", house / "states", "--shift", "ica:0=-1e6", "--out", tmp_path / "samples"]
    run(record_samples, "RecordSamplesConfig", *words)
    said = "'--shift ica:0=-1e6' moves the hidden state by 1e+06 recorded standard deviations of a direction"
    facts = [artefacts.read_manifest(tmp_path / n)["facts"]["far_outside"] for n in ("recorded", "samples")]
    assert facts[0] == facts[1] and facts[0].startswith(said)
    assert capsys.readouterr().err.count(f"warning: {facts[0]}\n") == 2
    changes = ["shift ica:0 by 1", "shift ica:0 by 1e5", "shift ica:1 by -1e6"]
    words = ["--hidden_states", house / "states", "--preset", "debug", "--no-video", "--hypotheses", *changes]
    for flag, what in (("--policy", "agent"), ("--simulator", "simulator")):
        run(interventions, "InterventionsConfig", *words, flag, house / what, "--out", tmp_path / what)
        fact = artefacts.read_manifest(tmp_path / what)["facts"]["far_outside"]
        assert fact.startswith("'shift ica:1 by -1e+06' (the furthest of 2 such changes) moves")
        assert fact in artefacts.Result.load(tmp_path / what).notes["warnings"]
        assert capsys.readouterr().out.count(fact) == 1
