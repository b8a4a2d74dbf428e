"""The run directories of hidden_states, env_states and latents: made, drawn again, summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from analysis.shared.surrogates import in_words
from analysis.states.fit import fit
from analysis.states.pooled import States, join
from core import artefacts
from core.artefacts import Result
from core.contracts import EnvSpec, UserError
from core.directions import Basis
from core.episodes import RolloutStore
from core.stats import between, few


class StateConfig(Protocol):
    """What the three stages' configs share."""

    @property
    def out(self) -> Path: ...
    @property
    def overwrite(self) -> bool: ...


def fit_and_save(
    config: Any, stage: str, inputs: artefacts.Inputs, space: str, parts: Callable[[], Sequence[States]],
    store: RolloutStore | None, facts: dict[str, Any],
) -> None:  # fmt: skip
    """How env_states and latents go on: fit the states of a simulator's space, write the run, say what was found.

    parts: makes the states; store: one of those they are of, for the names of its actions."""
    assert store is not None
    with artefacts.new_run(config.out, stage, config, inputs, overwrite=config.overwrite) as run:
        with threadpool_limits(config.threads):  # scikit-learn's own OpenMP does not hear torch.set_num_threads
            result, bases = fit(join(parts()), space, facts["simulator"], config.fit, config.seed)
        result.notes |= {**facts, **said_of_actions(store.spec)}
        save(run, result, bases, facts, config.action == "both")
    print(summary(result, bases, config.out))


def said_of_actions(spec: EnvSpec) -> dict[str, Any]:
    """The notes by which figures name actions: of every id, and the ids of those that do the same."""
    return {"action_names": list(spec.action_names), "distinct_actions": spec.distinct_actions()}


def save(run: artefacts.Run, result: Result, bases: Mapping[str, Basis], facts: Mapping[str, Any], drawn: bool) -> None:
    """Write what a fit found into its run directory, and its figures."""
    for basis in bases.values():
        basis.save(run.path)
    result.save(run.path)
    if drawn:
        with run.figures():
            _draw(result, run.path)
    sources = [name for i, name in enumerate(("real", "simulated")) if (result.arrays["source"] == i).any()]
    left_out = {"left_out": result.notes["left_out"]} if result.notes["left_out"] else {}
    run.facts = {**facts, "fitted_on": result.notes["fitted_on"], "sources": sources, **left_out}
    run.metrics = dict(result.scalars)


def load_drawn(source: Path | None, stage: str) -> Result:
    """The Result that ``plot`` draws; UserError."""
    if source is None:
        raise UserError(f"plot needs --{stage} DIR, the run directory to draw")
    artefacts.read_manifest(source, stage)
    return Result.load(source)


def plot(config: StateConfig, stage: str, inputs: artefacts.Inputs, result: Result) -> None:
    """Draw a saved Result into a run directory of its own."""
    with artefacts.new_run(config.out, f"{stage}_plot", config, inputs, overwrite=config.overwrite) as run:
        names = _draw(result, run.path)
        run.facts = {k: result.notes[k] for k in ("agent", "simulator") if k in result.notes}
    print(f"drew {', '.join(names)}: {config.out}")


def _draw(result: Result, path: Path) -> list[str]:
    """The figures and the page that turns; the names of the files written."""
    from analysis.states import figures, turning

    artefacts.write_atomically(path / turning.FILE, turning.page(result).encode())
    return [*figures.draw(result, path), turning.FILE]


def refuse(stage: str, given: Path | None) -> None:
    """UserError where ``--STAGE DIR``, which belongs to plot, is given to another action."""
    if given is not None:
        raise UserError(f"--{stage} belongs to plot; precompute and both read --rollouts")


def summary(result: Result, bases: Mapping[str, Basis], out: Path) -> str:
    """What a person wants to know, in a few lines."""
    scalars = result.scalars
    lines = [
        f"fitted {', '.join(f'{k} ({b.size})' for k, b in bases.items())} on "
        f"{int(result.arrays['kept'].sum()):,} {result.notes['fitted_on']} states of "
        f"{result.notes['fitted_of']}"
    ]
    for key, s in scalars.items():
        if key.startswith("pca_explained"):
            count = key.rpartition("_")[2]
            lines.append(f"  first {count} components hold {s['value']:.0%}{_interval(s, '.0%')} of the variance")
    if "ica" in bases:
        lines.append(
            f"  ICA stability Iq: median {scalars['ica_stability_median']['value']:.2f}, "
            f"least {scalars['ica_stability_least']['value']:.2f}"
        )
    lines.append(
        f"  clusters: stability {scalars['cluster_stability']['value']:.2f} (ARI); normalised mutual information of "
        f"label and step {scalars['cluster_share_from_time']['value']:.2f} "
        f"(of rotated labels {scalars['cluster_share_from_time_floor']['value']:.2f})"
    )
    if "cluster_surrogates" in result.tables:
        lines.append(f"  {in_words(result, 'cluster_')}")
    said = {
        "inside": "simulated states among real ones", "covered": "real states among simulated ones",
        "told_apart": "classifier two-sample test, accuracy (0.5 is chance)",
    }  # fmt: skip
    for row in result.tables.get("overlap", []):
        name = row["measure"]
        if name in said and row["reason"]:
            lines.append(f"  {said[name]}: not known: {row['reason']}")
        elif name in said:
            share, floor = scalars[f"overlap_{name}"], scalars[f"overlap_{name}_floor"]["value"]
            unsure = f", {row['interval_reason']}" if row["interval_reason"] else ""
            found = f"{share['value']:.2f}{_interval(share, '.2f')}{unsure}"
            few = f", {row['floor_reason']}" if row["floor_reason"] else ""
            lines.append(f"  {said[name]}: {found} (real against real: {floor:.2f}{few})")
    for name in ("explored", "overlap"):
        if name in result.notes:
            lines.append(f"  real against simulated: {result.notes[name]}")
    return "\n".join([*lines, f"  {out}"])


def _interval(scalar: Mapping[str, Any], spec: str) -> str:
    low, high = scalar["interval"]
    said = between(low, high, spec)
    return f"{said}{few(scalar['n'])}" if said else ""
