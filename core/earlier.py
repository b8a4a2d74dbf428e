"""What users of the earlier systems type, and what it is here: the one table of old names (docs/coming-from.md).

Flags: a stage's table says which flag an old one is here (``core.config.parse`` reads it), or why it means nothing any
more.  Scripts: files by their old names print the command of today (``say``).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from core.contracts import UserError

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Gone:
    """A flag that means nothing any more."""

    says: str  # what replaced it
    words: int = 1  # values that it has
    stops: bool = False  # what it asked for is not what would happen: an error, no note
    of: str = ""  # left out where the run directory, that this setting names, says the same; else an error


# An old flag's name without its dashes -> today's flag; ``out=runs/{}``: and what becomes of its value.
Flags = Mapping[str, "str | Gone"]

_LOG_LEVEL = Gone("progress shows on a terminal, and is quiet elsewhere")
_GPU = Gone("the variable CUDA_VISIBLE_DEVICES chooses the GPU, --device cuda takes it")
_BY_THE_AGENT = Gone("the run directory in --agent says it")
_WORLD_OF_AGENT = Gone("the run directory in --agent says it, and another world is refused", of="agent")
_BY_THE_SIMULATOR = Gone("the run directory in --simulator says it")
_WORLD_OF_SIMULATOR = Gone("the run directory in --simulator says it, and another world is refused", of="simulator")
_TASKS = Gone("tasks are made from nmmo's own predicates: docs/nmmo.md", stops=True)
_COIN = Gone("edits of the real game do this: python -m validation.edits, docs/misgeneralisation.md", stops=True)
_WHERE = Gone("--out names the run directory")
_SAVES = Gone("--save_minutes says how often the state is saved")
_LOGS = Gone("every update is logged: curve.csv, TensorBoard")

# Generative experiments of the CoinRun system share one parser, whose agent and world a simulator's directory names.
_IN_A_SIMULATOR: Flags = {
    "model_file": "simulator", "num_sim_steps": "steps", "num_threads": "threads",
    "exp_name": _WHERE, "gen_mod_exp_name": _WHERE, "tgm_exp_name": _WHERE, "gen_mod_exp_type": _WHERE,
    "log_dir_base": _WHERE, "logdir": "out",
    "agent_file": _BY_THE_SIMULATOR, "env_name": _WORLD_OF_SIMULATOR, "param_name": _BY_THE_SIMULATOR,
    "distribution_mode": _WORLD_OF_SIMULATOR, "num_levels": _BY_THE_SIMULATOR, "start_level": _BY_THE_SIMULATOR,
    "num_init_steps": _BY_THE_SIMULATOR, "num_initializing_steps": _BY_THE_SIMULATOR,
    "num_checkpoints": _BY_THE_SIMULATOR, "num_timesteps": _BY_THE_SIMULATOR, "lr": _BY_THE_SIMULATOR,
    "save_interval": _SAVES, "log_interval": _LOGS, "log_level": _LOG_LEVEL, "gpu_device": _GPU,
}  # fmt: skip

_LOSSES = {
    "loss_scale_ims": "--image_std", "loss_scale_obs": "--image_std", "loss_scale_hx": "--hidden_weight",
    "loss_scale_reward": "--reward_weight", "loss_scale_terminal": "--terminal_weight",
    "loss_scale_done": "--terminal_weight", "loss_scale_kl": "--kl_weight",
}  # fmt: skip

FLAGS: Mapping[str, Flags] = {
    "train": {
        "env_name": "game", "num_timesteps": "total_steps", "timesteps_per_proc": "total_steps",
        "total_timesteps": "total_steps", "rand_seed": "seed", "num_envs": "envs", "num_embeddings": "codes",
        "num_checkpoints": "checkpoints", "num_threads": "threads", "param_name": "preset", "use_wandb": "track",
        "exp_name": "out=runs/{}", "logdir": "out", "out_dir": "out",
        "model_file": Gone("a training goes on with --resume in its --out; an agent from elsewhere comes in by "
                           "python -m agents.adopt", stops=True),
        "val_env_name": Gone("--evaluate_every measures the return on held-out levels of the same game", stops=True),
        "random_percent": _COIN, "key_penalty": _COIN, "step_penalty": _COIN, "rand_region": _COIN,
        "log_level": _LOG_LEVEL, "gpu_device": _GPU,
    },
    "train_craftax": {
        "total_timesteps": "total_steps", "num_envs": "envs", "num_steps": "rollout_steps",
        "num_checkpoints": "checkpoints", "cell": "recurrence", "out_dir": "out",
    },
    "train_gymnasium": {
        "total_timesteps": "total_steps", "num_envs": "envs", "num_steps": "rollout_steps", "env_id": "env",
        "env_name": "env", "game": "env", "out_dir": "out",
    },
    "train_nmmo": {
        "a": "architecture", "agent": "architecture", "m": "mode", "p": "policies", "eval_model_path": "policies",
        "n": "out=runs/policies/{}", "exp_name": "out=runs/policies/{}",
        "c": _TASKS, "curriculum": _TASKS, "test_curriculum": _TASKS, "t": _TASKS, "task_to_assign": _TASKS,
        "vectorization": Gone("--envs worlds are played side by side in this process"),
        "no_recurrence": Gone("-a takeru is the policy without a memory", words=0, stops=True),
    },
    "evaluate_nmmo": {
        "r": "repeats", "repeat": "repeats", "s": "seed", "n": "episodes", "num_episode": "episodes",
        "t": _TASKS, "task_file": _TASKS, "save_file_prefix": Gone("--out names the directory of the result files"),
    },
    "extract_activations": {
        "p": "policy", "o": "out", "output_dir": "out", "policies_dir": "policies", "s": "seed", "layer": "points",
        "n": Gone("worlds are --parts times --worlds", stops=True),
        "num_episode": Gone("worlds are --parts times --worlds", stops=True), "t": _TASKS, "task_file": _TASKS,
        "streaming": Gone("memory never grows with the recording", words=0),
        "flush_interval": Gone("memory never grows with the recording"),
    },
    "activations": {
        "output_dir": "out",
    },
    "life": {"output": "out"},
    "life_phase": {"output": "out"},
    "record": {
        "run_dir": "agent", "model_file": "agent", "agent_file": "agent", "num_envs": "slots", "logdir": "out",
        "data_save_dir": "out", "out_dir": "out", "num_threads": "threads", "exp_name": _WHERE,
        "env_name": _WORLD_OF_AGENT, "param_name": _BY_THE_AGENT, "distribution_mode": _WORLD_OF_AGENT,
        "num_timesteps": Gone("--episodes counts whole episodes, --num_steps the steps of every slot", stops=True),
        "num_checkpoints": Gone("episodes are written as they end"), "log_level": _LOG_LEVEL, "gpu_device": _GPU,
    },
    "train_gen_model": {
        "agent_file": "agent", "data_dir": "rollouts", "gen_mod_exp_name": "out=runs/{}",
        "tgm_exp_name": "out=runs/{}", "lr": "learning_rate", "batch_size": "batch", "num_sim_steps": "steps",
        "num_init_steps": "initial_frames", "num_initializing_steps": "initial_frames", "num_threads": "threads",
        "model_file": Gone("a training goes on with --resume in its --out", stops=True),
        "epochs": Gone("--updates counts the gradient steps", stops=True),
        **{old: Gone(f"losses are weighted anew: {new} (--help)", stops=True) for old, new in _LOSSES.items()},
        "loss_scale_act_log_probs": Gone("this loss is not there", stops=True),
        "loss_scale_gen_adv": Gone("this loss is not there", stops=True),
        "exp_name": _WHERE, "log_dir_base": _WHERE, "env_name": _WORLD_OF_AGENT, "param_name": _BY_THE_AGENT,
        "distribution_mode": _WORLD_OF_AGENT, "num_levels": _BY_THE_AGENT, "start_level": _BY_THE_AGENT,
        "num_checkpoints": _SAVES, "save_interval": _SAVES, "log_interval": _LOGS, "log_level": _LOG_LEVEL,
        "gpu_device": _GPU,
    },
    "record_samples": {
        **_IN_A_SIMULATOR, "agent_file": "agent", "data_dir": "rollouts", "data_save_dir": "out",
        "generated_data_dir": "out", "batch_size": "batch",
        "recording_rand_init": Gone("without --rollouts the latents are random", words=0, stops=True),
    },
    "saliency": {
        **_IN_A_SIMULATOR, "generated_data_dir": "samples", "data_dir": _BY_THE_SIMULATOR,
        "saliency_func_type": "quantities", "saliency_sample_ids": "sample_ids",
        "saliency_batch_size": Gone("samples are taken one by one; --copies and --noise smooth a gradient"),
        "saliency_direction_ids": Gone("directions are quantities: --quantities ica:3", stops=True),
    },
    "hidden_states": {"agent_env_data_dir": "rollouts", "generated_data_dir": "samples"},
    "env_states": {"agent_env_data_dir": "rollouts", "generated_data_dir": "samples"},
    "latents": {
        "agent_env_data_dir": "rollouts", "generated_data_dir": "samples", "generated_data_dir_inf": "samples",
        "generated_data_dir_rand": Gone("random latents are the prior, which is drawn here"),
    },
    "behaviours": {"agent_env_data_dir": "rollouts", "generated_data_dir": "samples"},
    "semantics": {"total_states": "hover_states", "normalize_and_reduce": "normalise"},
}  # fmt: skip

# {today's flag: {an old value: today's}}
VALUES: Mapping[str, Mapping[str, str]] = {
    "device": {"gpu": "cuda"},
    "architecture": {"neurips23_start_kit": "start_kit"},
    "preset": {"hard-rec": "paper"},
    "points": {"lstm_cell": "cell", "encoder_output": "embedding"},
}
WEIGHTS = (".pth", ".pt", ".ckpt", ".safetensors")  # files that the earlier systems name where a run directory is due

_SAMPLES = "-m generative.record_samples --simulator runs/simulator"
_PRECOMPUTE = {
    "hidden_analysis": "-m analysis.hidden_states --rollouts runs/rollouts",
    "env_h_analysis": "-m analysis.env_states --simulator runs/simulator --rollouts runs/rollouts",
    "latent_vec_analysis": "-m analysis.latents --simulator runs/simulator --rollouts runs/rollouts",
    "bottleneck_vec_analysis": "-m analysis.latents --simulator runs/simulator --rollouts runs/rollouts",
    "sml_analysis": "-m analysis.behaviours --simulator runs/simulator --rollouts runs/rollouts",
}  # each computed in one script and drawn by another

# A script by its path there -> what is typed after ``python`` here.
SCRIPTS: Mapping[str, str] = {
    "plot_training_csv.py": "-m agents.curves runs/agent",
    "render.py": "-m agents.film runs/rollouts",
    "record_gen_samples.py": f"{_SAMPLES} --rollouts runs/rollouts",
    "record_informinit_gen_samples.py": f"{_SAMPLES} --rollouts runs/rollouts",
    "record_random_gen_samples.py": _SAMPLES,
    "saliency_exps.py": "-m analysis.saliency --simulator runs/simulator --samples runs/samples",
    "loss_over_time_exp.py": "-m validation.fidelity --simulator runs/simulator --rollouts runs/rollouts",
    **{f"{name}_{part}.py": to for name, to in _PRECOMPUTE.items() for part in ("precompute", "plotting")},
    "interpolation_exp.py": f"{_SAMPLES} --between runs/samples --interpolate 33 39",
    "random_agent_exp.py": f"{_SAMPLES} --agent runs/other",
    "evaluate.py": "-m agents.evaluate runs/policies pve",
    "scripts/extract_activations.py": "-m analysis.extract_activations pve -p NAME",
    "scripts/analyze_activations.py": "-m analysis.activations runs/activations",
    "scripts/extract_activations_parallel.py": "-m analysis.extract_activations pve -p NAME",
    "scripts/sweep_cluster_params.py": "-m analysis.activations runs/activations --surrogates 39",
    "scripts/sweep_tsne_3d.py": "-m analysis.activations runs/activations --surrogates 39",
    "scripts/train_probes.py": "-m analysis.probes runs/activations",
    "scripts/train_nonlinear_probes.py": "-m analysis.probes runs/activations",
    "scripts/mediation_analysis.py": "-m analysis.probes runs/activations --given tick in_combat row col",
    "scripts/activation_patching.py": "-m analysis.patching runs/activations --policy runs/policies/NAME",
    "scripts/agent_life_visualization.py": "-m analysis.life runs/activations",
    "scripts/cluster_life_phase.py": "-m analysis.life_phase runs/activations --cluster_dir runs/clusters",
    "train_procgen/train_sppo.py": "train.py --policy semantic --preset semantic-paper --game NAME",
    "train_procgen/train_ppo.py": "train.py --preset semantic-paper --policy plain --game NAME",
    "train_procgen/enjoy_sppo.py": "-m analysis.semantics embeddings videos --agent runs/agent",
    "train_procgen/hover_clusters.py": "-m analysis.semantics hover --agent runs/agent",
    "train_procgen/single_graph.py": "-m agents.curves runs/agent --normalise",
}
# Commands of an installed package -> the same; there is nothing to install here.
COMMANDS: Mapping[str, str] = {
    "cs-train": "train.py craftax", "cs-collect": "record.py --agent runs/craftax", "cs-probe": "-m analysis.probes",
}  # fmt: skip


def say(script: str) -> None:
    """Of a file by an earlier script's name: print the command of today, one line on standard error, and end with 2."""
    path = Path(script).resolve().relative_to(ROOT).as_posix()
    print(f"{path} is a script of an earlier system; type: python {SCRIPTS[path]}", file=sys.stderr)
    sys.exit(2)


def name_of(word: str) -> str:
    """A flag's name: --A-flag=3, --A_flag and -a_flag are all A_flag; '' of what is no flag."""
    return word.partition("=")[0].lstrip("-").replace("-", "_") if word.startswith("-") else ""


def train_of(argv: Sequence[str]) -> str:
    """Which training ``train.py`` without a first word means: 'nmmo', 'craftax', 'gymnasium', or '' (Procgen), by flags
    that only one of them has."""
    typed = values_by_flag(argv)
    names = set(typed) - set(FLAGS["train"])
    nmmo = {*FLAGS["train_nmmo"], "architecture", "mode", "policies", "syllabus"}
    if names & nmmo:
        return "nmmo"
    craftax = {"mask_intrinsics", "no_mask_intrinsics", "reward_hp_coef", "reward_ach_coef", "cell"}
    worlds = [*typed.get("env_name", []), *typed.get("game", [])]
    if names & craftax or any(world.startswith("Craftax") for world in worlds):
        return "craftax"
    other = names & {"env", "env_id", "env_options"} or any(world.startswith("gymnasium/") for world in worlds)
    return "gymnasium" if other else ""


def values_by_flag(argv: Sequence[str]) -> dict[str, list[str]]:
    """The values of every flag that is typed, by its name."""
    return {name: values for _, name, values in _grouped(argv)}


def _grouped(argv: Sequence[str]) -> Iterator[tuple[list[str], str, list[str]]]:
    """Words of the command line by flag: (the words, the flag's name or '', its values)."""
    group: list[str] = []
    for word in [*argv, None]:
        begins = word is None or (word.startswith("-") and not _is_number(word))
        if begins and group:
            name, equals, value = group[0].partition("=")
            known = name_of(name)
            yield group, known, ([value] if equals else []) + group[1:] if known else []
            group = []
        if word is not None:
            group.append(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class Dropped(NamedTuple):
    """A flag that was left out because a run directory says it."""

    flag: str
    name: str
    value: str
    of: str  # the setting that names the directory


def translated(argv: Sequence[str], stage: str) -> tuple[list[str], list[str], list[Dropped]]:
    """(the command line in today's names, notes, what a run directory is to say: ``check_dropped``).  UserError for a
    flag that cannot be left out, for a file of an earlier system, and where two names of one setting differ."""
    table = FLAGS.get(stage, {})
    out: list[str] = []
    notes: dict[str, list[str]] = {}
    given: dict[str, tuple[str, list[str]]] = {}
    dropped: list[Dropped] = []
    for group, name, values in _grouped(argv):
        to = table.get(name)
        flag = group[0].partition("=")[0]
        if isinstance(to, Gone):
            if to.stops:
                raise _refused(f"{flag} means nothing here any more: {to.says}")
            notes.setdefault(to.says, []).append(flag)
            dropped += [Dropped(flag, name, values[0], to.of)] if to.of and values else []
            out += values[to.words :]
            continue
        if not name:
            out += group
            continue
        today, _, form = (to or name).partition("=")
        of_today = [VALUES.get(today, {}).get(v, v) for v in values]
        if form:
            of_today = [form.format(v) for v in of_today]
        if to in ("agent", "simulator"):
            of_today = [_directory_of(flag, v) for v in of_today]
        other, before = given.setdefault(today, (flag, of_today))
        if name_of(other) != name and before != of_today:
            raise _refused(
                f"{other} {' '.join(before)} and {flag} {' '.join(of_today)} are two names of one setting: give one"
            )
        called = flag if to is None else f"--{today}"
        out += [f"{called}={of_today[0]}", *of_today[1:]] if "=" in group[0] else [called, *of_today]
    said = [f"note: {', '.join(flags)} means nothing here: {says}" for says, flags in notes.items()]
    return out, said, dropped


def as_typed(said: str, argv: Sequence[str], stage: str) -> str:
    """What is wrong with a command line in today's names, with the names in brackets that were typed in their place."""
    table = FLAGS.get(stage, {})
    for group, name, _ in _grouped(argv):
        if isinstance(to := table.get(name), str):
            today = re.escape(f"--{to.partition('=')[0]}")
            said = re.sub(rf"('?){today}\b\1", rf"\g<0> (typed as {group[0].partition('=')[0]})", said)
    return said


def check_dropped(dropped: Sequence[Dropped], config: Any) -> None:
    """UserError where the world that a flag asked for is not that of the run directory which says it now."""
    if not dropped:
        return
    from core.artefacts import AGENTS, SIMULATORS  # scripts by old names, which say one line, do without

    descriptions = {"agent": AGENTS, "simulator": SIMULATORS}
    for one in dropped:
        named = getattr(config, one.of)
        for path in named if isinstance(named, tuple) else (named,):
            file = next((path / name for name in descriptions[one.of] if (path / name).is_file()), path)
            try:
                spec = json.loads(file.read_bytes())["spec"]
                is_one = spec["env_id"] if one.name == "env_name" else spec["options"].get(one.name)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # the stage says what is wrong with it
            if is_one is not None and str(is_one).rpartition("/")[2] != one.value.rpartition("/")[2]:
                raise _refused(
                    f"{one.flag} {one.value}: {path} is of {is_one}, and the run directory in --{one.of} says it; "
                    "leave the flag out, or name another run directory"
                )


def _refused(why: str) -> UserError:
    from core.contracts import UserError  # which imports torch, and scripts by old names say one line

    return UserError(why)


def _directory_of(flag: str, value: str) -> str:
    """The run directory that a file of weights is in; UserError for a file of an earlier system."""
    if PurePosixPath(value).suffix not in WEIGHTS:
        return value
    if value.endswith(".safetensors"):
        return str(Path(value).parent)
    raise _refused(
        f"{flag} {value} is a file of an earlier system; what is named here is a run directory, which "
        f"python -m agents.adopt MODULE.py --weights {value} makes of it (docs/bring-your-own.md)"
    )


def keys_of_today(saved: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """A configuration as an earlier version saved it, whose keys may be old names of flags; where such a key has no
    value, what the key of today says stands."""
    table, out = FLAGS.get(stage, {}), dict(saved)
    for key, value in saved.items():
        to = table.get(key)
        if isinstance(to, str) and "=" not in to:
            del out[key]
            out |= {} if value is None else {to: value}
    if stage == "record" and out.get("truth") == []:  # was "none" until --truth without a word was refused
        out["truth"] = None
    return out
