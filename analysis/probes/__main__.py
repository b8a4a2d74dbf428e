"""What can be read from states, and what of it stays without the obvious: ``python -m analysis.probes DIR``.

DIR holds episodes with states and ground truth (analysis.extract_activations, or any recording with ``truth``, such as
record.py --truth all makes).  Every quantity is read by a linear probe and by a small network, on units (worlds, levels
or lives) that took no part in fitting, and is compared with exchanged targets, with time alone, with the agent's own
observation, and with what the confounders named by --given say: those are partialled out of states and quantities
alike.  Where the agent of a recording is at hand, also with what the frame alone, the previous actions, all of these
together and the agent with its weights shuffled say, and with further agents (--agents).  A quantity that can be read
is there; whether the agent uses it, analysis.patching and validation.interventions tell.

Quantities that have no value at some steps (the nearest saw, where there is none) are read at the others.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.probes", file=sys.stderr)
    sys.exit(2)

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from analysis.probes.alignment import check_labels, check_states
from analysis.probes.baselines import agent_run_of, baselines_of, names_in, recorded_agent, states_of
from analysis.probes.config import ProbesConfig
from analysis.probes.directions import basis_of
from analysis.probes.inputs import (
    OF_THE_ROWS,
    Input,
    block_words,
    check_words,
    column_for,
    elsewhere,
    inputs_of,
    is_elsewhere,
)
from analysis.probes.labels import kind_of_values
from analysis.probes.matrix import (
    CONTROL,
    Rows as InputRows,
    advantage_rows,
    apart,
    emergence_rows,
    input_rows,
    latex,
    markdown,
    paper,
    score_inputs,
    signed,
    subjects,
)
from analysis.probes.rows import STEP, Rows, bent, choose, groups_along, read, value_of
from analysis.probes.scores import LEAST_VARYING, probe
from analysis.shared.agents import load, short_names
from analysis.shared.events import parse_condition
from analysis.shared.probe_fits import ENOUGH_TO_TELL, LEAST_FOLDS
from analysis.shared.randomised import has_weights
from analysis.shared.truths import every_of, names_of
from analysis.shared.units import choose_unit, say_shared
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Agent, EnvSpec, UserError
from core.directions import Basis
from core.episodes import RolloutStore
from core.stats import ALPHA, few, least_permutations, least_units

STAGE = "probes"
NOT_TARGETS = ("agent", "map", "world", "seed", "level")  # names, not quantities
CONFOUNDERS = ("tick", "row", "col", "in_combat")  # what --given auto takes of a recording; the first is time
AUTO = ("auto",)


def check(config: ProbesConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(LEAST_FOLDS, folds=config.folds)
    cli.require(least_permutations(ALPHA), shuffles=config.shuffles)
    cli.require(99, resamples=config.resamples)
    cli.require(0, first_step=config.first_step, max_rows=config.max_rows, seed=config.seed)
    cli.require(1, previous=config.previous)
    cli.require(0, exchanges=config.exchanges, input_rows=config.input_rows)
    if config.last_step is not None:
        cli.require(config.first_step, last_step=config.last_step)
    if config.checkpoints and not config.agents:
        raise UserError("--checkpoints belongs to --agents")
    if not 0 < config.smallest < 1:
        raise UserError(f"--smallest must lie between 0 and 1, not {config.smallest:g}")
    net = config.net
    cli.require(1, hidden=net.hidden, shared=net.shared, epochs=net.epochs, batch=net.batch, patience=net.patience)
    if net.rate <= 0 or net.decay < 0:
        raise UserError("--rate must be above 0 and --decay not below")
    for name in ("targets", "given", "inputs", "directions"):
        values = getattr(config, name)
        if len(set(values)) < len(values):
            raise UserError(f"--{name} names {next(v for v in values if values.count(v) > 1)!r} twice")


def require_given(given: Sequence[str], every: Collection[str], path: Path) -> None:
    """UserError where --given names what the recording does not have."""
    for name in given:
        if name != STEP and name not in every:
            raise UserError(
                f"{path} has no quantity {name!r}{cli.nearest(name, every)}; leave it out of --given "
                f"(now {' '.join(given)})"
            )


def main(config: ProbesConfig) -> None:
    from analysis.probes.figures import draw

    check(config)
    torch.set_num_threads(config.threads)
    device = cli.device_of(config.device)
    paths = recordings_of(config)
    inputs = artefacts.Inputs({
        "extraction": paths[-1], **{f"recording_{i}": path for i, path in enumerate(paths[:-1])},
        **{f"agent_{i}": path for i, path in enumerate(config.agents)},
        **{f"input_{n}": path for n, path in (elsewhere(w) for w in config.inputs if is_elsewhere(w))},
        "agent": config.agent,
    })  # fmt: skip
    with threadpool_limits(config.threads), RolloutStore(paths[-1]) as store:
        every = names_of(store)
        given = given_of(config, every)
        require_given(given, every, store.path)
        targets = bent(list(config.targets) or [name for name in every if name not in NOT_TARGETS])
        if not targets:
            raise UserError(f"{store.path} has no ground truth to read; {how_told(store)}")
        if config.where:
            parse_condition("--where", config.where, list(every))
        for option, named in (("directions", config.directions), ("classes", config.classes)):
            for name in named:
                if name not in targets:
                    raise UserError(f"--{option} {name}: no target{cli.nearest(name, targets)}")
        recorded = recorded_agent(store, config.agent, device)
        agent = None if recorded is None else recorded[0]
        inputs |= {} if recorded is None or config.agent is not None else {"agent": recorded[1]}
        words = words_of(config, store, agent)
        others = load(config.agents, config.checkpoints, device) if config.agents else {}
        rows = read(store, config.states, list(dict.fromkeys([*targets, *given])), where=config.where,
                    observation=config.observation or "", first_step=config.first_step, last_step=config.last_step,
                    max_rows=config.max_rows, needed=[name for name in given if name != STEP],
                    any_of=targets)  # fmt: skip
        require_change(rows.quantities, config.targets, store)
        codes = codes_among(rows.quantities, targets, names_of_classes(config, store))
        numbers = numbers_among(targets, codes, config, bool(words))
        unit = unit_of(rows.groups, config, store.path)
        if agent is not None:
            check_states(agent, store)
            found = baselines_of(agent, store, rows.index_N2, rows.time_N, config.previous, config.seed)
            rows = rows._replace(baselines=found)
        if not words:  # else of every recording (one_table)
            checked(store)
        rows = rows._replace(agents=states_of(others, store, rows.index_N2))
        name = store.manifest["facts"].get("agent", "")
        read_every = every_of(store)
        # With --inputs their table has the networks: of h too, one for all targets.
        result = probe(rows, numbers, given, unit, replace(config, mlp=config.mlp and not words))
        tables = tables_of(paths, words, targets, config) if words else {}
    result.notes |= {"agent": name, "states": config.states, "observation": config.observation or ""}
    result.notes |= {"where": config.where, "truth_every": read_every, "inputs": words, "codes": codes}
    basis = probe_basis(rows, result, config, name)
    if basis is not None:
        result.notes["basis"] = basis.facts
    own = tables.get(paths[-1], {})
    result.tables |= own
    if len(tables) > 1:
        each = {n: tables[p]["inputs"] for n, p in zip(short_names(paths), paths, strict=True)}
        result.tables["emergence"] = emergence_rows(each)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        for row in result.tables["targets"]:
            if row.get("linear") is not None:
                ends = [np.nan if row[f"linear_{end}"] is None else row[f"linear_{end}"] for end in ("low", "high")]
                result.scalar(f"r2_{row['target']}", row["linear"], "R^2", row["n"], ends)
        if own:
            result.tables["paper"] = [dict(row) for row in paper(own["inputs"], own["advantages"])]
            artefacts.write_atomically(run.path / "paper.md", markdown(result.tables["paper"]).encode())
            artefacts.write_atomically(run.path / "paper.tex", latex(result.tables["paper"]).encode())
        result.save(run.path)
        if basis is not None:
            basis.save(run.path)
        with run.figures():
            for file, figure in draw(result).items():
                figure.savefig(run.path / file, dpi=100, metadata={"Software": None})
        run.facts, run.metrics = {"agent": name}, result.scalars
    for said in result.notes["resolution"]:
        print(f"note: {said}", file=sys.stderr)
    print(summary(result, config.out))


def how_told(store: RolloutStore) -> str:
    """What to do for a recording with ground truth, in words."""
    if store.manifest["facts"].get("source") == "simulated":
        return "these are samples of a simulator: give what record.py recorded in the real world"
    if store.spec.env_id.startswith("procgen/"):
        return "record it again with python record.py --truth all (docs/truth.md)"
    if store.spec.env_id.startswith(("gymnasium/", "module/")):
        return "its world tells none: give numbers in the info of reset and step (docs/bring-your-own.md: Labels)"
    return "record a world that tells it (docs/bring-your-own.md: truth/NAME)"


def recordings_of(config: ProbesConfig) -> list[Path]:
    """The recordings, that of the last checkpoint last."""
    if config.run_dir is None:
        if config.all_ckpts or config.ckpt != "last":
            raise UserError("--ckpt and --all_ckpts belong to --run_dir")
        return [*config.recordings, config.extraction]
    if config.recordings or config.extraction != ProbesConfig.extraction:
        raise UserError("--run_dir finds the recordings itself: leave out the first argument and --recordings")
    root = config.run_dir
    found = sorted({path.parent for path in root.glob("**/spec.json") if (path.parent / artefacts.MANIFEST).exists()},
                   key=lambda path: [int(n) for n in re.findall("[0-9]+", str(path.relative_to(root)))])  # fmt: skip
    if not found:
        raise UserError(f"{root} holds no recording; make some: record.py --run_dir {root} --all_ckpts --points all "
                        f"--out RECORDINGS, then --run_dir RECORDINGS")  # fmt: skip
    if config.all_ckpts:
        return found
    if config.ckpt == "last":
        return found[-1:]
    named = [p for p in found if config.ckpt.isdigit() and int(config.ckpt) in map(int, re.findall("[0-9]+", p.name))]
    if len(named) != 1:
        raise UserError(f"--ckpt {config.ckpt}: {root} holds {', '.join(p.name for p in found)}")
    return named


def words_of(config: ProbesConfig, store: RolloutStore, agent: Agent | None) -> list[str]:
    """The words of --inputs, or those that --block stands for; UserError for what is not there."""
    words = list(config.inputs)
    if config.block is not None:
        first = block_words(config.block, store, agent)
        if not words:
            has = ["obs"] if any(c.startswith("obs/") for c in store.column_names) else []
            has += ["embedding"] if column_for("embedding", store.column_names) or (
                agent is not None and "embedding" in agent.points
            ) else []  # fmt: skip
            words = [*has, "time", "actions", *(["random"] if has_weights(agent) else [])]
        words = [*first, *(w for w in words if w not in first)]
    elif (config.recordings or config.all_ckpts) and not words:
        raise UserError("several recordings are compared by what is read from --inputs (or --block): name some")
    if words:
        check_words(words, store, agent)
        if not any(is_elsewhere(w) or not Input(w, 0, _nothing).is_baseline for w in words):
            raise UserError("--inputs names baselines only; begin with a state, such as h")
    return words


def _nothing(episode: int, rows: slice) -> np.ndarray:
    raise ValueError("an input of which only the name is known")


def names_of_classes(config: ProbesConfig, store: RolloutStore) -> tuple[str, ...]:
    """The quantities that are names and not numbers, by --classes and by the recording."""
    return (*config.classes, *store.manifest["facts"].get("classes", ()))


def codes_among(quantities: Mapping[str, np.ndarray], targets: Sequence[str], classes: Sequence[str]) -> list[str]:
    """The targets that are names of several values.  Their numbers are codes without an order, so no line reads them
    and no direction holds them; the table of --inputs tells them apart (of two values a name is a number)."""
    some = [t for t in targets if t in classes]
    return [t for t in some if kind_of_values(quantities[t][np.isfinite(quantities[t])], True) == "classes"]


def numbers_among(targets: Sequence[str], codes: Sequence[str], config: ProbesConfig, told: bool) -> list[str]:
    """The other targets; UserError where a name is asked for that nothing here can read.  told: there are --inputs."""
    for name in config.directions:
        if name in codes:
            raise UserError(f"--directions {name}: a name of several values is no direction; leave it out")
    lost = [t for t in codes if t in config.targets and not told]
    if lost or len(codes) == len(targets):
        raise UserError(f"{(lost or codes)[0]} is a name of several values, which the table of --inputs tells apart: "
                        "give --inputs h, and a number among --targets")  # fmt: skip
    return [t for t in targets if t not in codes]


def require_change(quantities: Mapping[str, np.ndarray], named: Sequence[str], store: RolloutStore) -> None:
    """UserError where a target that was asked for by name never changes."""
    for name in bent(list(named)):
        known_N = quantities[name][~np.isnan(quantities[name])]
        if len(known_N) and np.ptp(known_N) == 0:
            raise UserError(f"{store.path}: {name} is {known_N[0]:g} at every step, so there is nothing to read; "
                            "leave it out of --targets")  # fmt: skip


def tables_of(
    paths: Sequence[Path], words: Sequence[str], targets: Sequence[str], config: ProbesConfig
) -> dict[Path, dict[str, list[dict[str, Any]]]]:
    """Tables ``inputs`` and ``advantages`` of every recording."""
    here = [w for w in words if not is_elsewhere(w)]
    out: dict[Path, dict[str, list[dict[str, Any]]]] = {}
    width: dict[str, int] = {}
    require_one_agent(paths, config.agent)
    for path in paths:
        inputs, table, advantages = one_table(path, here, targets, config, config.agent if path == paths[-1] else None)
        for given in inputs:
            of_the_rows = not OF_THE_ROWS.isdisjoint(given.name.split("+"))
            if not of_the_rows and width.setdefault(given.name, given.width) != given.width:
                raise UserError(
                    f"{path}: {given.name} is {given.width} numbers wide, {width[given.name]} in {paths[0]}: only "
                    "checkpoints of one agent, of the same cell and blocks, can be compared"
                )
        out[path] = {"inputs": table, "advantages": advantages}
    for name, path in (elsewhere(w) for w in words if is_elsewhere(w)):
        _, others, _ = one_table(path, ["h"], targets, config, None)
        for row in others:
            row["input"] = name
        last = out[paths[-1]]
        states, _ = subjects([x for x in inputs])
        mine = [row for row in last["inputs"] if row["input"] in states]
        last["advantages"] += apart(mine, others, config.smallest)
        last["inputs"] += others
    return out


def require_one_agent(paths: Sequence[Path], given: Path | None) -> None:
    """UserError where recordings that are compared are of another world, or of agents whose weights have other names or
    shapes, as far as these are at hand; a note where they are of several trainings."""
    if len(paths) < 2:
        return
    worlds: dict[Path, EnvSpec] = {}
    trainings: set[Path] = set()
    for path in paths:
        with RolloutStore(path) as store:
            worlds[path] = store.spec
            if (run := agent_run_of(store)) is not None:
                trainings.add(run.resolve())
    for path in paths:
        if not worlds[path].same_world(worlds[paths[-1]]):
            raise UserError(f"{path} and {paths[-1]} are of different worlds; another world's recording is "
                            "--inputs NAME=DIR")  # fmt: skip
    shapes = {path: weights_of(path, given if path == paths[-1] else None) for path in paths}
    known = [path for path, of in shapes.items() if of]
    for path in known:
        if shapes[path] != shapes[known[0]]:
            raise UserError(
                f"{path}: its agent has other weights than the one of {known[0]}: only checkpoints of one agent, of "
                "the same cell and blocks, can be compared; another agent's recording is --inputs NAME=DIR"
            )
    if len(trainings) > 1:
        print(f"note: the recordings are of agents of {len(trainings)} trainings; the course over recordings is of one "
              "training's checkpoints only if these are its", file=sys.stderr)  # fmt: skip


def weights_of(path: Path, given: Path | None) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the weights of a recording's agent; none where it is not at hand, or of a foreign one."""
    with RolloutStore(path) as store:
        recorded = recorded_agent(store, given)
    if recorded is None or not isinstance(recorded[0], torch.nn.Module):
        return {}
    return {name: tuple(w.shape) for name, w in recorded[0].state_dict().items()}


def one_table(
    path: Path, words: Sequence[str], targets: Sequence[str], config: ProbesConfig, given: Path | None
) -> tuple[list[Input], list[dict[str, Any]], list[dict[str, Any]]]:
    """(inputs, table, advantages) of one recording."""
    with RolloutStore(path) as store:
        recorded = recorded_agent(store, given, cli.device_of(config.device))
        agent = None if recorded is None else recorded[0]
        check_words(words, store, agent)
        checked(store)
        store.preload(*dict.fromkeys(column for column, _ in names_of(store).values()))
        chosen = choose(store, targets, first_step=config.first_step, last_step=config.last_step, where=config.where,
                        max_rows=config.input_rows, any_of=targets)  # fmt: skip
        index_N2 = chosen.index_N2
        first_E = {e: int(store.meta(e).get("first_tick", 0)) for e in chosen.step_E}
        time_N = np.concatenate([t + first_E[e] for e, t in chosen.step_E.items()])
        quantities = {t: value_of(chosen, t, time_N) for t in targets}
        require_change(quantities, config.targets, store)
        groups = groups_along(store, index_N2)
        unit = unit_of(groups, config, path)
        unit_N = np.unique(groups[unit], return_inverse=True)[1]
        inputs = inputs_of(words, store, agent, chosen.step_E, time_N, config.seed)
        of_classes = names_of_classes(config, store)
        scored = score_inputs(InputRows(chosen.step_E, quantities, unit_N), inputs, of_classes, config)
        if not scored:
            raise UserError(f"{path}: no quantity varies in {2 * config.folds} units ({unit}) or more; record more")
        return inputs, input_rows(scored, config), advantage_rows(scored, inputs, config)


def unit_of(groups: Mapping[str, np.ndarray], config: ProbesConfig, path: Path) -> str:
    """What is held out and resampled whole of a recording."""
    least = max(2 * config.folds, least_units(ALPHA, "permutation"))
    fewer = f"use fewer --folds ({LEAST_FOLDS} need {2 * LEAST_FOLDS})" if config.folds > LEAST_FOLDS else ""
    return choose_unit(groups, config.unit, least, path, fewer)


def checked(store: RolloutStore) -> None:
    """UserError where labels are out of line with observations; a note where that cannot be seen."""
    if reason := check_labels(store):
        print(f"note: {store.path}: labels are not compared with observations: {reason}", file=sys.stderr)


def probe_basis(rows: Rows, result: Result, config: ProbesConfig, agent: str) -> Basis | None:
    """The linear probes of h as directions; None of other states."""
    names = list(result.notes["directions"])
    if config.states != "h" or not names:
        return None
    order = [n for n in config.directions if n in names] or names
    read_KF = np.stack([result.arrays["direction_read"][names.index(n)] for n in order])
    return basis_of(rows.x_NF, read_KF, order, agent)


def given_of(config: ProbesConfig, every: Collection[str]) -> tuple[str, ...]:
    """The confounders: of --given auto, those that are recorded, and time as the step where no tick is."""
    if config.given != AUTO:
        return config.given
    recorded = tuple(name for name in CONFOUNDERS if name in every)
    return recorded if CONFOUNDERS[0] in recorded else (STEP, *recorded)


def summary(result: Result, out: Path) -> str:
    """What a person wants to know: a few lines, and one for each quantity."""
    notes = result.notes
    lines = [f"{notes['rows']:,} states; held out and resampled whole: {notes['units']} units ({notes['unit']}): {out}"]
    if warning := say_shared(notes["shared"], notes["unit"]):
        lines.append(f"  warning: {warning}")
    if any(notes["left_out"].values()):
        left, where = notes["left_out"], notes.get("where") or ""
        said = [f"{left['nothing to read']:,} at which no quantity has a value"] if left["nothing to read"] else []
        said += [f"{left['not where']:,} at which not: {where}"] if left["not where"] else []
        lines.append(f"  steps left out: {'; '.join(said)}")
    lines.append(f"  given: {' '.join(notes['given']) or 'nothing'}")
    if notes["baselines"]:
        lines.append(
            "  the frame alone: what the agent makes of it with an empty memory; of the previous actions there are "
            f"{notes['previous']}"
        )
    else:
        lines.append("  no agent at hand: --agent compares with the frame alone, previous actions and a random agent")
    for row in result.tables["targets"]:
        lines.append(f"  {row['target']:<20} {_sentence(row, notes)}")
    if notes["given"]:
        lines.append(f"  beyond what is given: more than R2 {notes['smallest']:g}, the smallest size of interest")
    if few_of := {g for row in result.tables["targets"] for g in str(row.get("given_by_few") or "").split()}:
        lines.append(
            f"  {', '.join(sorted(few_of))}: nearly the same all through a unit, and units are too few to tell what is "
            f"read beyond it: record at least {ENOUGH_TO_TELL} (of k such confounders k^2 times as many), or give what "
            "varies within them"
        )
    if (last := notes["last_reached"]) is not None:
        lines.append(
            f"  fewer than {LEAST_VARYING} units have steps after {last}, so that time is not known there, and a few "
            f"long ones may sway what is said: --last_step {last} leaves these out"
        )
    for row in result.tables["controls"]:
        lines.append(f"  control: a random constant per {row['constant_per']}: R2 {row['r2']:.2f}")
    for row in result.tables.get("advantages", ()):
        if row["probe"] == "linear" and row["over"] in ("obs", "embedding"):
            lines.append(
                f"  {row['input']} - {row['over']}: {row['target']} {signed(row, 'advantage')}: {row['verdict']}"
            )
    for row in result.tables.get("inputs", ()):
        if row["target"] == CONTROL:
            lines.append(f"  control: {CONTROL} from {row['input']}: R2 {_two(row['score'])}, split by step "
                         f"{_two(row['by_step'])}")  # fmt: skip
    if "basis" in notes:
        named = ", ".join(f"{d} {t}" for d, t in notes["basis"]["targets"].items())
        lines.append(f"  basis_probe (--basis {out} --basis_kind probe): {named}")
    for row in result.tables.get("agents", ()):
        lines.append(f"  {row['agent']}: {row['target']} R2 {_in_words(row, 'r2')}")
    return "\n".join(lines)


def _sentence(row: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """What is said of one quantity."""
    some = f", at {row['rows']:,} steps" if row.get("rows", notes["rows"]) < notes["rows"] else ""
    if row.get("linear") is None:
        return f"always {row['mean']:g}{some}" if row["verdict"] == "constant" else f"{row['verdict']}{some}"
    said = f"R2 {_in_words(row, 'linear')}{some}"
    if row.get("mlp") is not None:
        said += f", network {row['mlp']:.2f}"
    said += f", time alone {_two(row['time'])}"
    words = names_in(notes["baselines"], notes["previous"])
    said += "".join(f", {words[n]} {_two(row[n])}" for n in words if n != "time")
    if row.get("partial") is not None:
        said += f"; given {' '.join(notes['given'])}: {_in_words(row, 'partial')}"
    if row.get("auroc_linear") is not None:
        said += f"; AUROC {row['auroc_linear']:.2f}"
        if row.get("auroc_frame") is not None:
            said += f" (the frame alone {row['auroc_frame']:.2f})"
    said += f"; {row['verdict']}"
    if row.get("everything_minus_all") is not None:
        said += f"; adds {_in_words(row, 'everything_minus_all')} to {words['all']}: {row['memory']}"
    if row.get("linear_minus_random") is not None:
        said += f"; {_in_words(row, 'linear_minus_random')} over {words['random']}: {row['learnt']}"
    return said


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _in_words(row: Mapping[str, Any], name: str) -> str:
    return f"{_two(row[name])} [{_two(row[f'{name}_low'])}, {_two(row[f'{name}_high'])}]{few(row['n'])}"


if __name__ == "__main__":
    cli.run(ProbesConfig, main, STAGE)
