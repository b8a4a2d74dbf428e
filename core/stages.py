"""The stages: what is typed, what each reads, where it writes by default, and what it is for.

The one table behind docs/stages.md, ``python -m analysis``, the demo and the report.  It names doors and imports none.
What a stage reads by default is what the stages before it write by default.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Stage:
    """One stage; the flags in ``needs`` and ``takes`` name directories."""

    command: str  # what is typed after ``python``
    config: str  # the class of its configuration, in its door
    does: str
    out: str  # the directory that it writes by default; "": none
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()  # can do without
    door_at: str = ""  # the module with its door, where the command does not name it

    @property
    def module(self) -> str:
        return self.door_at or self.command.removeprefix("-m ")

    @property
    def door(self) -> ModuleType:
        """The module with the configuration and main: what ``python -m`` runs."""
        found = importlib.import_module(self.module)
        return importlib.import_module(f"{self.module}.__main__") if hasattr(found, "__path__") else found

    @property
    def cls(self) -> type:
        found: type = getattr(self.door, self.config)
        return found


# About an agent, its world and its simulator: what a report shows.
OF_AN_AGENT = {
    "train": Stage(
        "train.py", "TrainConfig", "train an agent", "runs/agent", door_at="agents.train"),
    "evaluate": Stage(
        "-m agents.evaluate", "EvaluateConfig", "evaluate it on held-out levels", "runs/evaluation", ("agent",)),
    "record": Stage(
        "record.py", "RecordConfig", "record the agent in the real world", "runs/rollouts", ("agent",),
        door_at="agents.record"),
    "train_gen_model": Stage(
        "train_gen_model.py", "GenTrainConfig", "train the simulator around the agent", "runs/simulator",
        ("agent", "rollouts"), door_at="generative.train"),
    "record_samples": Stage(
        "-m generative.record_samples", "RecordSamplesConfig", "let the agent act in the simulator", "runs/samples",
        ("simulator",), ("rollouts",)),
    "fidelity": Stage(
        "-m validation.fidelity", "FidelityConfig", "measure how true the simulator is", "runs/fidelity",
        ("simulator", "rollouts")),
    "hidden_states": Stage(
        "-m analysis.hidden_states", "HiddenStatesConfig", "fit directions of the agent's hidden state",
        "runs/hidden_states", ("rollouts",), ("agent", "samples")),
    "env_states": Stage(
        "-m analysis.env_states", "EnvStatesConfig", "fit directions of the simulator's world state",
        "runs/env_states", ("simulator", "rollouts"), ("samples",)),
    "latents": Stage(
        "-m analysis.latents", "LatentsConfig", "fit directions of the latents that simulations start from",
        "runs/latents", ("simulator", "rollouts"), ("samples",)),
    "behaviours": Stage(
        "-m analysis.behaviours", "BehavioursConfig", "cluster what the agent does", "runs/behaviours", ("rollouts",),
        ("simulator", "samples")),
    "saliency": Stage(
        "-m analysis.saliency", "SaliencyConfig", "find what in the frames and in the past drives the agent",
        "runs/saliency", ("simulator", "samples")),
    "coupling": Stage(
        "-m analysis.coupling", "CouplingConfig", "find which direction drives which", "runs/coupling",
        ("simulator", "samples", "hidden_states"), ("behaviours",)),
    "dynamics": Stage(
        "-m analysis.dynamics", "DynamicsConfig", "measure what the memory keeps, and how long", "runs/dynamics",
        ("agent", "rollouts"), ("hidden_states", "behaviours")),
    "similarity": Stage(
        "-m analysis.similarity", "SimilarityConfig", "compare agents or checkpoints on the same frames",
        "runs/similarity", ("agents", "rollouts")),
    "target_functions": Stage(
        "-m analysis.target_functions", "TargetFunctionsConfig", "find starts from which a target is reached",
        "runs/target_functions", ("simulator",), ("rollouts", "hidden_states")),
    "interventions": Stage(
        "-m validation.interventions", "InterventionsConfig", "change directions, in simulator and real world",
        "runs/interventions", ("simulator", "hidden_states"), ("behaviours",)),
    "saliency_trial": Stage(
        "-m validation.saliency_trial", "SaliencyTrialConfig",
        "remove objects from the real game, and try saliency on it", "runs/saliency_trial", ("agent",), ("simulator",)),
}  # fmt: skip

OF_POLICIES = {  # of Neural MMO
    "train_nmmo": Stage(
        "train.py nmmo", "NmmoTrainConfig", "train a policy", "runs/policies", door_at="agents.nmmo_train"),
    "evaluate_nmmo": Stage(
        "-m agents.evaluate", "NmmoEvaluateConfig", "evaluate policies", "", ("policies",),
        door_at="agents.nmmo_evaluate"),
    "proc_eval_result": Stage(
        "-m analysis.proc_eval_result", "ProcEvalResultConfig", "make tables of evaluations", "", ("policies",)),
    "extract_activations": Stage(
        "-m analysis.extract_activations", "ExtractConfig", "record the activations of a policy", "runs/activations",
        ("policies",)),
    "activation_json": Stage(
        "-m analysis.activation_json", "ActivationJsonConfig", "convert from and to an activations.json", "",
        ("directory",)),
    "activations": Stage(
        "-m analysis.activations", "ActivationsConfig", "cluster activations and say what the clusters are",
        "runs/clusters", ("directory",)),
    "life": Stage(
        "-m analysis.life", "LifeConfig", "draw the life of an agent", "runs/life", ("extraction",), ("cluster_dir",)),
    "life_phase": Stage(
        "-m analysis.life_phase", "LifePhaseConfig", "compare clusters with phases of life", "runs/life_phase",
        ("extraction", "cluster_dir")),
    "replay": Stage(
        "-m analysis.replay", "ReplayConfig", "make a page on which a world is played", "runs/replay",
        ("extraction",), ("cluster_dir",)),
    "probes": Stage(
        "-m analysis.probes", "ProbesConfig", "read quantities of the world from states", "runs/probes",
        ("extraction",)),
    "patching": Stage(
        "-m analysis.patching", "PatchingConfig", "patch one direction, measure the change of every action head",
        "runs/patching", ("extraction", "policy"), ("probes",)),
}  # fmt: skip

OF_ALL = {
    "train_craftax": Stage(
        "train.py craftax", "CraftaxTrainConfig", "train an agent in Craftax", "runs/craftax",
        door_at="agents.craftax_train"),
    "train_gymnasium": Stage(
        "train.py gymnasium", "GymnasiumTrainConfig", "train an agent in a world of Gymnasium, or in your own",
        "runs/agent", door_at="agents.gymnasium_train"),
    "adopt": Stage("-m agents.adopt", "AdoptConfig", "bring an agent of your own", "runs/agent"),
    "adopt_world": Stage(
        "-m generative.adopt", "AdoptWorldConfig", "bring a world model of your own", "runs/simulator", ("agent",)),
    "import_rollouts": Stage(
        "-m agents.import_rollouts", "ImportConfig", "bring rollouts of your own", "runs/rollouts", ("agent",)),
    "export": Stage(
        "-m core.export", "ExportConfig", "write a result as CSV or Parquet, rollouts as a Minari dataset",
        "runs/export"),
    "film": Stage(
        "-m agents.film", "FilmConfig", "film recorded episodes", "runs/film", ("rollouts",), ("basis",)),
    "curves": Stage(
        "-m agents.curves", "CurvesConfig", "draw learning curves", "runs/curves", ("trainings",)),
    "events": Stage(
        "-m analysis.events", "EventsConfig", "count what happens in a recording, or in two and compare", "runs/events",
        ("rollouts",), ("altered",)),
    "semantics": Stage(
        "-m analysis.semantics", "SemanticsConfig", "see what the clusters inside a policy are, and how good",
        "runs/semantics", ("agent", "rollouts"), ("behaviours",)),
    "probes_over_agents": Stage(
        "-m analysis.probes.over_agents", "OverAgentsConfig", "say what probes find of agents, not of one agent",
        "runs/probes_over_agents"),
    "edits": Stage(
        "-m validation.edits", "EditsConfig", "remove, move or add objects in the real game", "runs/edits",
        ("agent",), ("simulator", "basis", "behaviours", "coupling")),
    "causal_directions": Stage(
        "-m analysis.causal_directions", "CausalDirectionsConfig", "find directions that carry what an edit changes",
        "runs/causal_directions", ("agent",), ("basis",)),
    "scenes": Stage(
        "-m validation.scenes", "ScenesConfig", "measure a choice against one variable of the world", "runs/scenes",
        ("agent",), ("simulator", "basis")),
    "bundle": Stage(
        "-m generative.bundle", "BundleConfig", "copy an agent, with its simulator or alone, for shipping", "",
        ("agent",), ("simulator",)),
    "planted": Stage(
        "-m validation.planted", "PlantedConfig", "try every method on worlds whose causes are known", "runs/planted"),
    "demo": Stage(
        "-m validation.demo", "DemoConfig", "go the whole way with the bundled models (make demo)", "runs/demo"),
    "panel": Stage(
        "-m validation.panel", "PanelConfig", "look at the runs of one agent, filter and ask", "runs/panel", ("runs",)),
    "report": Stage(
        "-m validation.report", "ReportConfig", "put the runs of one agent on one page", "runs/report", ("runs",)),
    "doctor": Stage(
        "-m validation.doctor", "DoctorConfig", "say whether this machine is ready, with advice", ""),
}  # fmt: skip

STAGES = {**OF_AN_AGENT, **OF_POLICIES, **OF_ALL}

# The stage that writes what a flag names; where there is none, it is called as the flag is.
MADE_BY = {
    "agent": "train", "agents": "train", "trainings": "train", "simulator": "train_gen_model", "rollouts": "record",
    "samples": "record_samples", "basis": "hidden_states", "policies": "train_nmmo", "policy": "train_nmmo",
    "directory": "extract_activations", "extraction": "extract_activations", "cluster_dir": "activations",
    "runs": "demo",
}  # fmt: skip
# What stands for it where only the demo was made, by the stage that would write it.
OF_THE_DEMO = {
    "train": "bundles/coinrun-robust/agent", "train_gen_model": "bundles/coinrun-robust/simulator",
    "record": "runs/demo/rollouts", "record_samples": "runs/demo/samples", "hidden_states": "runs/demo/hidden_states",
    "behaviours": "runs/demo/behaviours",
}  # fmt: skip

INSTEAD = {"simulator": "policy", "agent": "simulator"}  # {flag: the one that is given in its place}


def written(flag: str) -> str | None:
    """What a flag names by default: the directory that the stage before writes by default."""
    stage = STAGES.get(MADE_BY.get(flag, flag))
    return None if stage is None else stage.out


def of_the_demo(defaults: Mapping[str, Any], given: Collection[str]) -> dict[str, str]:
    """{flag: what the demo has} for the inputs among a stage's defaults that were not given and are not there."""
    found = {}
    for flag, default in defaults.items():
        there = OF_THE_DEMO.get(MADE_BY.get(flag, flag))
        if (
            flag in given
            or INSTEAD.get(flag) in given
            or there is None
            or default not in (written(flag), [written(flag)])
        ):
            continue
        if not Path(str(written(flag))).exists() and Path(there).exists():
            found[flag] = there
    return found


def writer(path: Path) -> str:
    """What writes a run directory that is not there, as '; python ... writes it'; '' where nothing here is known to.

    A stage writes ``runs/NAME`` by default and every other place below runs/ that is called so with ``--out``; the demo
    writes all that lies in ``runs/demo...``.
    """
    path = Path(path)
    commands = [stage.command for stage in STAGES.values() if stage.out == str(path)]
    if commands:
        return f"; python {commands[0]} writes it"
    commands = [stage.command for stage in OF_AN_AGENT.values() if Path(stage.out).name == path.name]
    if path.parts[:1] != ("runs",) or not commands:
        return ""
    demo = STAGES["demo"]
    if str(path.parent).startswith(demo.out):
        bundle = "" if str(path.parent) == demo.out else ", given --bundle where the models are not its own"
        return f"; python {demo.command} --out {path.parent} writes it{bundle}"
    return f"; python {commands[0]} --out {path} writes it"


def listed(package: str) -> str:
    """The commands of a package, a line each."""
    rows = [(f"python {s.command}", s.does) for s in STAGES.values() if s.module.partition(".")[0] == package]
    width = max(len(command) for command, _ in rows)
    return "\n".join([*(f"{command:<{width}}  {does}" for command, does in rows), "Each documents its flags: --help."])
