"""One self-contained page about a chain of runs: ``python -m validation.report --runs runs/demo``.

Every sentence and number on it is read from a result on disk; a stage that was not run is named as
missing.  How the page looks is validation/page.py's.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from analysis.behaviours import load_behaviours
from analysis.coupling_edges import COMPARED, WORDS, label as behaviour_label
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from validation.fidelity import to_show
from validation.page import (
    details,
    document,
    estimate,
    figure_png,
    interval,
    number,
    paragraph,
    picture,
    strip_png,
    table,
    with_interval,
)

STAGE = "report"
PAGE = "report.html"
LEVEL = 0.05  # of false discoveries, where the page says that something is significant

MODULES = {
    "train": "train.py",
    "evaluate": "-m agents.evaluate",
    "record": "record.py",
    "train_gen_model": "train_gen_model.py",
    "record_samples": "-m generative.record_samples",
    "fidelity": "-m validation.fidelity",
    "hidden_states": "-m analysis.hidden_states",
    "env_states": "-m analysis.env_states",
    "latents": "-m analysis.latents",
    "behaviours": "-m analysis.behaviours",
    "saliency": "-m analysis.saliency",
    "coupling": "-m analysis.coupling",
    "dynamics": "-m analysis.dynamics",
    "similarity": "-m analysis.similarity",
    "target_functions": "-m analysis.target_functions",
    "interventions": "-m validation.interventions",
    "planted": "-m validation.planted",
}


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Write one self-contained HTML page about the runs below a directory."""

    runs: Path = Path("runs/demo")
    """directory that holds the stages' run directories (rollouts, samples, fidelity, hidden_states, ...)"""
    bundle: Path = Path("bundles/coinrun-demo")
    """directory that holds the agent/ and simulator/ they were made with"""
    out: Path = Path("runs/report")
    """run directory to write; the page is report.html in it"""
    seed: int = 0
    """unused: the page is the same for the same runs"""
    threads: int = 2
    """unused: nothing here is heavy"""
    overwrite: bool = False
    """replace an earlier report in --out"""


@dataclass(frozen=True)
class Page:
    """The page, and what was found as plain sentences."""

    html: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A part of the page.  findings: plain sentences for the summary."""

    heading: str
    html: str
    findings: tuple[str, ...] = ()


# ---------------------------------------------------------------------------- agent and world


def agent_and_world(dirs: Mapping[str, Path]) -> Section:
    """Who acts where: sizes, training, held-out return, what the world looks like."""
    manifest = artefacts.read_manifest(dirs["agent"])
    about = artefacts.load_json(dirs["agent"], "agent.json")
    spec, net, metrics = about["spec"], about["net"], manifest["metrics"]
    html, found = [], []
    words = f"A recurrent agent ({net['encoder']} encoder, GRU with {net['hidden_size']} units"
    if "parameters" in metrics:
        words += f", {number(int(metrics['parameters']['value']))} parameters"
    words += f") on {spec['env_id']}"
    if "steps" in metrics:
        words += f", trained with PPO for {number(int(metrics['steps']['value']))} environment steps"
    if "training_wall" in metrics:
        words += f" in {number(metrics['training_wall']['value'] / 60)} minutes"
    html.append(paragraph(words + "."))
    if "evaluation" in dirs:
        score = Result.load(dirs["evaluation"]).scalars["return_mean"]
        held_out = f"On held-out levels its mean return per episode is {estimate(score)}."
        html.append(paragraph(held_out))
        words += ". " + held_out.removesuffix(".")
    found.append(f"The agent: {words[0].lower()}{words[1:]}.")
    options = ", ".join(f"{k} {v}" for k, v in sorted(spec["options"].items()))
    html.append(paragraph(f"The world's options: {options}."))
    if "rollouts" in dirs:
        metric = artefacts.read_manifest(dirs["rollouts"])["metrics"].get("return_mean")
        if metric is not None:
            words = f"In the {metric['n']} episodes recorded here its mean return is {number(metric['value'])}."
            html.append(paragraph(words))
        html.append(_real_strip(dirs["rollouts"]))
    if "curve.csv" in manifest["files"]:
        html.append(_learning_curve(artefacts.load_bytes(dirs["agent"], "curve.csv").decode()))
    return Section("The agent and its world", "".join(html), tuple(found))


def _real_strip(path: Path, frames: int = 10) -> str:
    with RolloutStore(path) as store:
        if "frames" not in store.spec.obs:
            return paragraph("The world shows no frames.")
        episode = int(np.argmin(np.abs(store.steps - np.median(store.steps))))  # of typical length
        rows = np.linspace(0, store.rows[episode] - 1, min(frames, int(store.rows[episode]))).astype(int)
        shown = store.episode(episode)
    actions = [store.spec.action_names[shown.action[t]] if t < shown.steps else "end" for t in rows]
    label = ", ".join(f"t={t} {a}" for t, a in zip(rows, actions, strict=True))
    return picture(
        strip_png([shown.obs["frames"][t] for t in rows]),
        f"{len(rows)} frames of one real episode, from its first step to step {rows[-1]}",
        f"A real episode of typical length (number {episode}), left to right. Step and action taken: {label}.",
        wide=True,
        pixels=True,
    )


def _learning_curve(curve: str) -> str:
    from matplotlib.figure import Figure

    rows = [(float(r["step"]), float(r["return_mean"])) for r in csv.DictReader(io.StringIO(curve))]
    steps, returns = np.array(rows).T
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps / 1e6, returns, color="#1f5f8b", lw=1.4)
    axes.set(xlabel="environment steps (millions)", ylabel="mean return per episode")
    axes.spines[["top", "right"]].set_visible(False)
    last = returns[np.isfinite(returns)][-1:] if np.isfinite(returns).any() else np.array([np.nan])
    return picture(
        figure_png(figure),
        f"Learning curve: mean return over {number(float(steps[-1]))} steps, ending at {number(float(last[0]))}",
        "Learning curve: mean return of the last 100 training episodes (training levels, exploring policy).",
    )


# ---------------------------------------------------------------------------- fidelity


def fidelity(dirs: Mapping[str, Path]) -> Section:
    """Real against simulated, between the real-vs-real floor and trivial baselines."""
    path = dirs["fidelity"]
    result = Result.load(path)
    rows, scalars, notes = result.tables["fidelity"], result.scalars, result.notes
    free = [r for r in rows if r["measure"] == "frame_mse"]
    middle = next((r for r in free if r["horizon"] >= 16), free[-1])
    found = (
        f"The simulator: running on its own for {number(middle['horizon'])} steps, its frames have a mean squared "
        f"error of "
        f"{number(middle['simulated'])}{interval(middle['low'], middle['high'])} {middle['unit']} "
        f"(n = {number(middle['n'])} episodes), against {number(middle['baseline_copy'])} for holding the last frame "
        f"and "
        f"{number(middle['baseline_mean'])} for the mean frame"
    )
    below = []
    for name, words in (("copy", "the held frame"), ("mean", "the mean frame")):
        share = scalars.get(f"horizons_below_{name}")
        if share is not None:
            count = round(share["value"] * share["n"])
            below.append(f"{words} at {count} of {share['n']}")
    if below:
        found += f"; it is below {' and below '.join(below)} horizons from 2 steps on"
    found += "." if notes["held_out"] else "; the simulator was trained on these very episodes, so this flatters it."
    shown = [with_interval({**r, "measure": str(r["measure"]).replace("_", " ")}) for r in to_show(rows)]
    order = list(dict.fromkeys(r["measure"] for r in shown))
    shown.sort(key=lambda r: order.index(r["measure"]))
    titles = {
        "measure": "measure", "horizon": "steps ahead", "simulated": "simulated",
        "interval": "95 % interval", "floor": "real-vs-real floor", "baseline_copy": "last frame held",
        "baseline_mean": "mean",
        "unit": "unit", "n": "episodes",
    }  # fmt: skip
    told = ("horizon", "floor", "baseline_copy", "baseline_mean", "teacher_forced", "dreams", "gradients")
    read = "".join(paragraph(f"{k.replace('_', ' ')}: {notes[k]}.") for k in told if k in notes)
    tried = _tried_again(rows)
    html = [
        paragraph(
            f"From the first frames of {number(notes['windows'])} places in {number(notes['episodes'])} real episodes "
            f"the "
            "simulator runs on its own, given only the recorded actions. The floor is what the real world scores "
            "against "
            "itself; the baselines are what one gets without any model."
        ),
        _pictures(
            path,
            "strip.png",
            "Real frames, and below them the simulated ones from the same start, by steps ahead",
            wide=True,
        ),
        _pictures(
            path, "horizons.png", "Simulated against real by steps simulated, with floor and baselines", wide=True
        ),
        _pictures(
            path,
            "counterfactual.png",
            "The moment whose real futures differ most, every action held: real above simulated",
            wide=True,
        ),
        *map(paragraph, tried),
        *(paragraph(f"Left out: {words}.") for words in notes["left_out"]),
        table(shown, f"Fidelity at some horizons; all {len(rows)} rows are in fidelity.csv", titles, most=100),
        details("How to read the columns", read),
    ]
    return Section("How true the simulator is", "".join(html), (found, *tried))


def _tried_again(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What snapshots of the real world told, in a sentence; nothing where that was left out."""
    last = {
        r["measure"]: r for r in rows if r["measure"] in ("counterfactual_top1", "gradient_sign_action_through_world")
    }
    said = []
    if (r := last.get("counterfactual_top1")) is not None:
        said.append(
            f"Counterfactual actions: from {number(r['n'])} real moments, an action held {r['horizon']} steps, the "
            f"simulated frame is nearest to the real one of the same action in {share(r)} of cases (chance "
            f"{number(r['baseline_mean'])}; real frames themselves, some of which are alike, {number(r['floor'])})"
        )
    if (r := last.get("gradient_sign_action_through_world")) is not None:
        said.append(
            "straight-through gradients through the world have the sign of the real effect on later actions in "
            f"{share(r)} of cases, {r['horizon']} steps on (chance 0.5)"
        )
    return ("; ".join(said) + ".",) if said else ()


def share(r: Mapping[str, Any]) -> str:
    """A row's value with its interval."""
    return number(r["simulated"]) + interval(r["low"], r["high"])


# ---------------------------------------------------------------------------- directions, behaviours


def directions(dirs: Mapping[str, Path]) -> Section:
    """Bases fitted to the hidden state, and the independent components over an episode."""
    path = dirs["hidden_states"]
    result = Result.load(path)
    rows = result.tables.get("ica", [])
    units = number(result.notes["hidden_size"])
    found = f"Directions: {len(rows)} independent components of the agent's {units} hidden units"
    explained = f"pca_explained_{len(rows)}"
    if explained in result.scalars:
        found += f", turned from as many principal ones that hold {percent(result.scalars[explained])} of its variance"
    if rows:
        found += (
            f"; median stability over restarts {plain(result.scalars['ica_stability_median'])} (1: always the same)"
        )
    if not result.notes.get("ica_converged", True):
        found += "; their final fit did not converge, so the least stable ones may be arbitrary"
    found += "."
    titles = {
        "direction": "direction", "stability": "stability Iq (1 stable)", "match": "match over restarts",
        "explained": "share of variance",
    }  # fmt: skip
    html = [
        paragraph(
            "Each direction is a way in which the agent's hidden state varies. Principal components (PCA) hold the "
            "most "
            "variance; independent components (ICs) are turned so that each varies on its own, and are ordered by "
            "how reproducible they are over restarts on resampled episodes: the last ones may be arbitrary."
        ),
        _pictures(path, "time_courses.png", "Independent components over real episodes", wide=True),
        _pictures(path, "heads.png", "What each direction adds to the agent's logits and value"),
        _pictures(path, "explained.png", "Variance that principal components hold, and how stable the ICs are"),
        _pictures(path, "*.png", "Hidden states", but=("time_courses", "heads", "explained")),
        table(rows, "Independent components in the order of their stability", _present(titles, rows), most=64)
        if rows
        else "",
        _scalars(result, "The fitted directions in numbers"),
    ]
    return Section("Directions in the hidden state", "".join(html), (found,))


MDP_TITLES = {
    "name": "behaviour", "n_steps": "steps", "n_episodes": "episodes", "n_exits": "exits",
    "dwell_text": "steps until the exit", "value_text": "value", "policy_text": "entropy of the policy (bits)",
    "transition_text": "entropy of the next step's behaviour (bits)",
}  # fmt: skip


def mdp_rows(result: Result, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """The table ``mdp`` with intervals beside the numbers, and the user's names."""
    shown = (("dwell", "dwell_text"), ("value", "value_text"), ("policy_entropy", "policy_text"),
             ("transition_entropy", "transition_text"))  # fmt: skip
    return [
        {
            **{k: row[k] for k in ("n_steps", "n_episodes", "n_exits")},
            "name": names.get(row["behaviour"], str(row["name"])),
            **{to: number(row[k]) + interval(row[f"{k}_low"], row[f"{k}_high"]) for k, to in shown},
            **(
                {"dwell_text": f"{number(row['dwell'])} [{number(row['dwell_low'])}, without bound]"}
                if row["dwell_high"] is None and row["dwell_low"] is not None
                else {}
            ),
        }
        for row in result.tables["mdp"]
    ]


def behaviours(dirs: Mapping[str, Path]) -> Section:
    """Clusters of what the agent does, with how stable they are and how much is only time."""
    path = dirs["behaviours"]
    result = Result.load(path)
    names, scalars = load_behaviours(path).names, result.scalars
    rows = [{**row, "name": names[row["behaviour"]]} for row in result.tables["behaviours"]]
    found = (
        f"Behaviours: {len(rows)} clusters of steps; refitted on resampled episodes they agree with an adjusted Rand "
        f"index of "
        f"{plain(scalars['stability'])} (1: the same, 0: chance), n = {scalars['stability']['n']} episodes. Time in "
        f"the "
        f"episode tells {percent(scalars['share_from_time'])} of what a label says "
        f"({percent(scalars['share_from_time_floor'], False)} by chance)."
    )
    titles = {
        "behaviour": "behaviour", "share": "share of steps", "interval": "95 % interval",
        "n_steps": "steps", "n_episodes": "episodes", "n_sim_steps": "simulated steps",
        "time_eta2": "explained by time (η²)", "value": "mean value",
        "value_interval": "95 % interval", "value_d": "value against all other steps (Cohen's d)",
        "d_interval": "95 % interval",
        "actions": "most frequent actions", "name": "name",
    }  # fmt: skip
    listed = [with_interval(r, "share_low", "share_high") for r in rows]
    listed = [with_interval(r, "value_low", "value_high", "value_interval") for r in listed]
    listed = [with_interval(r, "value_d_low", "value_d_high", "d_interval") for r in listed]
    html = [
        paragraph(
            "Steps are clustered by the hidden state, the world around it and how both change. A cluster that only "
            "says how "
            "late in the episode it is would be a clock, not a behaviour: the table says how much time explains. "
            "Names are "
            "automatic until a person edits behaviours.json."
        ),
        _pictures(path, "graph.png", "How behaviours follow each other (a semi-aggregated Markov process)"),
        table(listed, "Behaviours (clusters of steps), the largest first", titles, most=64),
        _scalars(result, "How stable the behaviours are"),
        details(
            "The behaviours as a Markov process: how long they last and what the agent expects in them",
            table(mdp_rows(result, names), "States of the process, with 95 % intervals", MDP_TITLES, most=64),
        ),
        _pictures(path, "time.png", "When in the episode each behaviour happens"),
    ]
    for b, name in names.items():
        strip, loop = path / f"strip_{b}.png", path / f"loop_{b}.gif"
        heading = name if name.startswith("behaviour") else f"behaviour {b}: {name}"
        heading = heading[0].upper() + heading[1:]
        shown = ""
        if strip.exists():
            text = f"{heading}. Frames from its most typical steps on, each row from another episode"
            shown += picture(strip, text, f"{text}.", wide=True)
        if loop.exists():
            text = f"{heading}, moving: typical moments of different episodes, all begun at the same time"
            shown += picture(loop, text, f"{text}.")
        if shown:
            html.append(shown if b < 2 else details(heading, shown))
    html.append(_pictures(path, "transitions.png", "How often one behaviour follows another"))
    html.append(_pictures(path, "map.png", "The steps of all behaviours"))
    return Section("Behaviours", "".join(html), (found,))


def dynamics(dirs: Mapping[str, Path]) -> Section:
    """What the memory does by itself: how long it keeps what, and where it would come to rest."""
    path = dirs["dynamics"]
    result = Result.load(path)
    points, scalars = result.tables["points"], result.scalars
    top = scalars["lyapunov_driven"]
    fades = top["value"] < 0 and None not in top["interval"] and top["interval"][1] < 0
    found = (
        f"Memory: shown the same frames, two memories that differ a little come to differ "
        f"{'less' if top['value'] < 0 else 'more'}, by {plain(top)} nats a step (largest Lyapunov exponent, "
        f"n = {top['n']} episodes)"
    )
    found += f": a difference takes at least {plain(scalars['memory'])} steps to fade by a factor e." if fades else "."
    stable = sum(row["stability"] == "stable" for row in points)
    slowest = [row["time_constant"] for row in points]
    frames = (
        "the central frame of each behaviour"
        if "behaviours" in artefacts.read_manifest(path)["inputs"]
        else "typical frames"
    )
    words = (
        f"With its input held still (the mean input, and {frames}), the memory has "
        f"{number(int(scalars['fixed_points']['value']))} fixed points, {stable} of them stable"
    )
    if slowest:
        words += f"; their slowest modes last {number(min(slowest))} to {number(max(slowest))} steps"
    titles = {
        "name": "input held still", "kind": "point", "stability": "stability", "slow_modes": "slow modes",
        "time_constant": "slowest mode (steps)", "settle_here": "states that get there", "interval": "95 % interval",
        "nearest_state": "nearest recorded state (rms sd)", "action": "action there", "value": "value there",
    }  # fmt: skip
    html = [
        paragraph(
            "A recurrent agent is a dynamical system. Modes that last longer than an episode are memory; a fixed point "
            "is what the memory would settle to if the world stood still, which it does not."
        ),
        paragraph(words + "."),
        _pictures(path, "points.png", "Fixed points of the memory under still inputs", wide=True),
        _pictures(path, "eigenvalues.png", "Eigenvalues at the fixed points, and the time constants they mean"),
        _pictures(path, "lyapunov.png", "Lyapunov exponents along recorded episodes and under still inputs"),
        table([with_interval(r, "settle_here_low", "settle_here_high") for r in points], "Fixed and slow points",
              titles, most=40),
    ]  # fmt: skip
    return Section("What the memory does by itself", "".join(html), (found,))


# ---------------------------------------------------------------------------- saliency, coupling


def saliency(dirs: Mapping[str, Path]) -> Section:
    """What in the frames and in the past drives a quantity of the agent."""
    path = dirs["saliency"]
    result = Result.load(path)
    by_quantity: dict[str, list[Path]] = {}
    for file in _natural(path.glob("sample_*.png")):
        match = re.fullmatch(r"sample_([^_]+)_(.+)", file.stem)
        if match:
            by_quantity.setdefault(match[2], []).append(file)
    html = [
        paragraph(
            "Gradients of a quantity at a target step (framed) with respect to every frame before: whole, through the "
            "agent only, and through the world, so through the consequences of the agent's own actions "
            "(straight-through: as if actions were continuous, which no training of the simulator checks). "
            "Blue: a brighter pixel raises the quantity; red: lowers it. Blurred for display only. Below, what other "
            "methods say of the target frame alone. These are the simulator's pictures, and only hypotheses."
        )
    ]
    for i, (quantity, files) in enumerate(by_quantity.items()):
        pictures = "".join(
            picture(
                f,
                f"Saliency of {quantity.replace('_', ' ')} over the frames of sample {f.stem.split('_')[1]}",
                f"Sample {f.stem.split('_')[1]}: {quantity.replace('_', ' ')}.",
                wide=True,
            )
            for f in files
        )
        title = f"{quantity.replace('_', ' ')}: {len(files)} sample(s)"
        html.append(f"<h3>{escape(title)}</h3>{pictures}" if i == 0 else details(title, pictures))
    titles = {
        "sample": "sample", "quantity": "quantity", "y": "value at the target", "unit": "unit", 
        "alive": "still running", "gradient_norm": "gradient norm", "gradient_norm_agent_only": "agent only",
        "gradient_norm_through_world": "through world", "randomised_correlation": "correlation with randomised agent",
        "integrated_change": "integrated: change from baseline", "integrated_delta": "integrated: completeness error",
        "deeplift_change": "DeepLift: change from baseline", "deeplift_delta": "DeepLift: completeness error",
        "latent_change": "latent: change from baseline", "latent_delta": "latent: completeness error",
    }  # fmt: skip
    html.append(_scalars(result, "Checks of the attributions (means over samples)"))
    rows = result.tables["saliency"]
    html.append(details("Every sample", table(rows, "Gradients by sample", _present(titles, rows), most=100)))
    if "checks" in result.tables:
        checks = [with_interval(r, "low", "high") for r in result.tables["checks"]]
        html.append(
            table(checks, "Checks of every method (python -m analysis.saliency --checks)", _present({}, checks))
        )
    through, chance = (_by_quantity(result, name) for name in ("through_world", "randomised_correlation"))
    found = [f"Saliency: {through} of the straight-through gradient's size runs through the world"] if through else []
    if through and chance:
        found[0] += f"; correlation of its picture with that of an agent with random weights: {chance}"
    return Section("Saliency", "".join(html), tuple(f"{f}." for f in found))


def _by_quantity(result: Result, name: str) -> str:
    """A scalar that there is one of a quantity: 'action 0.1 [0.0, 0.2], value ...'; '' where there is none."""
    have = {q: result.scalars.get(f"{name}_{q}") for q in result.notes["units"]}
    show = percent if name == "through_world" else plain
    return ", ".join(f"{q.replace('_', ' ')} {show(scalar)}" for q, scalar in have.items() if scalar is not None)


OLD_COUPLING = (
    "This run is of an earlier version: its numbers through the world are straight-through, as if actions were "
    "continuous, and show no effect by themselves; run analysis.coupling again"
)


def coupling(dirs: Mapping[str, Path]) -> Section:
    """Which direction drives which, by correlation and by gradient."""
    path = dirs["coupling"]
    result = Result.load(path)
    edges, scalars = result.tables["edges"], result.scalars
    between = [e for e in edges if e["source"] != e["target"]]
    earlier = "method" not in result.notes
    how = "actions enumerated, interval beyond 0, straight-through sign agrees"
    found = (
        f"Coupling: {len(between)} effects of one direction on another, later, are significant in the simulator "
        f"(Jacobian, q ≤ {number(result.notes['alpha'])}, over behaviours and lags; "
        f"{'straight-through, of an earlier version: run it again' if earlier else how})"
    )
    agree = scalars["sign_agreement"]
    if agree["value"] is None:
        found += "; too few of them are correlated too to say whether correlation and Jacobian agree."
    else:
        null = scalars["sign_agreement_null"]["interval"]
        found += (
            f"; where the correlation is significant too, the signs agree in {percent(agree)} of {agree['n']} entries, "
            f"against {percent({'value': sum(null) / 2, 'interval': null})} in permuted episodes."
        )
    titles = {
        "behaviour": "behaviour", "lag": "lag (steps)", "source": "source", "target": "target", "J": "Jacobian",
        "interval": "95 % interval", "J_straight_through": COMPARED, "q": "q", "J_direct": WORDS["_agent_only"],
        "q_direct": "q, direct", "J_through_world": WORDS["_through_world"],
        "J_through_world_straight_through": f"through the world, {COMPARED}", "q_through_world": "q, through the world",
        "r": "correlation",
        "q_r": "q of correlation", "agree": "signs agree", "n": "Jacobians", "episodes": "episodes",
    }  # fmt: skip
    html = [
        paragraph(
            "Two directions that go together need not drive each other. The cross-correlation says what goes "
            "together; the Jacobian says how much a small change of one now would change the other later, in the "
            "simulator. A correlation without a Jacobian is a common cause; a Jacobian is an effect in the simulator, "
            "and a hypothesis about the world."
        ),
        paragraph(f"{OLD_COUPLING if earlier else result.notes['method']}."),
        _scalars(result, "How much there is, and how far correlation and Jacobian agree"),
    ]
    if between:
        listed = "".join(f"<li>{escape(str(e['sentence']))}</li>" for e in between[:8])
        html.append(f"<h3>The strongest effects of one direction on another</h3><ul>{listed}</ul>")
    else:
        html.append(paragraph("No direction has a significant effect on another one."))
    if edges:
        rows = [with_interval(e, "J_low", "J_high") for e in edges]
        listed = table(rows, "Significant Jacobians, the strongest first", titles, most=60)
        html.append(details("Table of all significant effects, those on a direction's own later value too", listed))
    figures = _natural(path.glob("matrix_*.png"))
    words = (
        "Coupling matrices of {}: Jacobian, its direct part, its part through the world with the straight-through "
        "number beside it, and correlation, a row a lag"
    )
    drawn = "Graph of the effects in {}: whole, direct and through the world, a column a lag"
    compared = "Direct and through-world parts of the effects, and how far each agrees with the correlation"
    if (path / "paths.png").exists():
        html.append(picture(path / "paths.png", compared, f"{compared}.", wide=True))
    for i, file in enumerate(figures):
        number_of = file.stem.removeprefix("matrix_")
        behaviour = behaviour_label(result.notes["names"], int(number_of))
        text = words.format(behaviour)
        shown = picture(file, text, f"{text}.")
        if (graph := path / f"graph_{number_of}.png").exists():
            shown = picture(graph, drawn.format(behaviour), f"{drawn.format(behaviour)}.") + shown
        html.append(shown if i < 1 else details(behaviour[0].upper() + behaviour[1:], shown))
    return Section("What drives what", "".join(html), (found,))


# ---------------------------------------------------------------------------- interventions


def interventions(dirs: Mapping[str, Path]) -> Section:
    """The claim, and what happened when the direction was really changed."""
    path = dirs["interventions"]
    result = Result.load(path)
    claims = result.notes["claims"]
    late = [
        with_interval(with_interval(r), "random_low", "random_high", "random")
        for r in result.tables["effects"]
        if "@" in str(r["quantity"]) and r["world"] == "real"
    ]
    clear = sorted((r for r in late if r["q"] is not None and r["q"] <= LEVEL), key=lambda r: r["q"])
    titles = {
        "hypothesis": "change", "quantity": "quantity", "unit": "unit", "predicted_jacobian": "predicted (Jacobian)",
        "predicted_simulated": "predicted (simulator)", "observed": "observed", "interval": "95 % interval",
        "q": "q", "random": "random changes give", "n": "n", "verdict": "verdict",
    }  # fmt: skip
    html = [f'<div class="summary"><p>{_coloured(str(c["text"]))}</p></div>' for c in claims]
    html += [
        paragraph(
            "At a random step of each of many episodes the hidden state was moved once along a direction, in the "
            "simulator and in the real game put back to the same state with the same action noise, and compared with "
            "the "
            "untouched course. Random changes of the same size are the yardstick: a direction that does no more than "
            "they do "
            "is not special. A quantity with an @ is measured that many steps later."
        ),
        paragraph(f"What the words mean. {result.notes['criteria'][0].upper()}{result.notes['criteria'][1:]}"),
        _pictures(path, "effects.png", "Effect against amount, 95 % intervals; grey: random directions", wide=True),
        _pictures(path, "predicted_vs_observed.png", "Predicted against observed effects (dashed: equal)", wide=True),
        _pictures(path, "needs.png", "How often a change prevents an event or brings it about; grey: random changes"),
        _scalars(result, "Prediction against observation, over all late effects"),
    ]
    if clear:
        caption = f"Late effects in the real world with q ≤ {LEVEL:g}: {len(clear)} of {len(late)} tested"
        html.append(table(clear, caption, titles, most=30))
    else:
        html.append(paragraph(f"None of the {len(late)} late effects in the real world has q ≤ {LEVEL:g}."))
    html.append(details("All late effects in the real world", table(late, "Late effects", titles, most=200)))
    found = [f"The claim: {c['text']}" for c in claims]
    agree, rank = result.scalars.get("sign_agreement"), result.scalars.get("rank_correlation")
    if agree is not None and rank is not None:
        found.append(
            f"Prediction: over all late effects of these directions, the simulator foretold the sign that was "
            f"observed in the "
            f"real world in {percent(agree)} of cases; rank correlation {plain(rank)}; n = {agree['n']} paired starts."
        )
    return Section("The claim, tested", "".join(html), tuple(found))


# ---------------------------------------------------------------------------- limits, provenance


def verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about how the claims fared."""
    count = {word: sum(claim["verdict"] == word for claim in claims) for word in ("confirmed", "refuted")}
    rest = len(claims) - sum(count.values())
    return (
        f"In short: of {len(claims)} causal claim(s) made in the simulator, the real game confirmed "
        f"{count['confirmed']}, "
        f"refuted {count['refuted']} and left {rest} open."
    )


def limits(dirs: Mapping[str, Path]) -> Section:
    """What this page does not show."""
    items = [
        "One agent, one training seed, one game. Another seed of the same training may hold other directions.",
        "Saliency and Jacobians are first-order: they speak of small changes. Interventions are not small; where "
        "prediction and "
        "observation part, believe the observation.",
        "Gradients are the simulator's, not the game's. They are worth what the fidelity above is worth, and fidelity "
        "is "
        "measured on the agent's own courses; off them the simulator has seen less.",
        "An independent component is a statistical direction, not a concept. Its name is the reader's, and nothing "
        "here tests it.",
        "Steps of an episode depend on each other; all intervals here resample whole episodes, so few episodes make "
        "wide intervals.",
        "That an intervention has an effect says that the direction is used; it does not say that nothing else is.",
    ]
    html = "<ul>" + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>"
    return Section("What this does not show", html)


def provenance(dirs: Mapping[str, Path]) -> Section:
    """The chain of manifests, and the commands that repeat each stage."""
    rows, commands = [], []
    code = set()
    for name, path in dirs.items():
        manifest = artefacts.read_manifest(path)
        code.add(str(manifest["code"]))
        rows.append(
            {
                "name": name,
                "stage": manifest["stage"],
                "made from": ", ".join(sorted(manifest["inputs"])) or DASH_NOTHING,
                "seed": manifest["seed"],
                "files": len(manifest["files"]),
                "size (MB)": sum(f["bytes"] for f in manifest["files"].values()) / 1e6,
                "time (s)": manifest["wall_s"],
                "manifest SHA-256": artefacts.sha256(path / artefacts.MANIFEST)[:12],
            }
        )
        script = MODULES.get(manifest["stage"])
        if script is not None and (path / "config.json").exists():
            where = Path(os.path.relpath(path)).as_posix()
            commands.append(f"python {script} --config {where}/config.json --out runs/again/{name}")
    last = artefacts.read_manifest(list(dirs.values())[-1])
    versions = ", ".join(f"{k} {v}" for k, v in last["packages"].items())
    machine = last["machine"]
    html = [
        table(rows, "Every directory behind this page, and the first 12 digits of its manifest's hash", most=100),
        paragraph("To repeat one stage from its saved configuration:"),
        "<ul>" + "".join(f"<li><code>{escape(c)}</code></li>" for c in commands) + "</ul>",
        paragraph("To check every file behind this page: python -m core.artefacts verify on its directory."),
        paragraph(
            f"Code {', '.join(sorted(code))}. Packages: {versions}. Machine: {machine['cpus']} CPUs, "
            f"{machine['platform']}."
        ),
    ]
    return Section("Where it comes from", "".join(html))


DASH_NOTHING = "nothing"

SECTIONS: dict[str, tuple[str, Callable[[Mapping[str, Path]], Section]]] = {
    "agent": ("The agent and its world", agent_and_world),
    "fidelity": ("How true the simulator is", fidelity),
    "hidden_states": ("Directions in the hidden state", directions),
    "behaviours": ("Behaviours", behaviours),
    "dynamics": ("What the memory does by itself", dynamics),
    "saliency": ("Saliency", saliency),
    "coupling": ("What drives what", coupling),
    "interventions": ("The claim, tested", interventions),
}


def build(dirs: Mapping[str, Path]) -> Page:
    """The page about these run directories {name: path}; a section whose directory is not there says so."""
    sections = []
    for name, (heading, make) in SECTIONS.items():
        missing = Section(heading, paragraph(f"This stage ({name}) was not run."), (f"{heading}: not run.",))
        sections.append(make(dirs) if name in dirs else missing)
    sections += [limits(dirs), provenance(dirs)]
    findings = tuple(f for s in sections for f in s.findings)
    if "interventions" in dirs:
        findings = (verdicts(Result.load(dirs["interventions"]).notes["claims"]), *findings)
    html = document(
        "Why does the agent act?",
        "From a trained agent to a causal claim tested in the real world. Every number is read from the run "
        "directories "
        "named at the end.",
        [_mark(f) for f in findings],
        [(s.heading, s.html) for s in sections],
    )
    return Page(html, findings)


def _mark(finding: str) -> str:
    """A finding as HTML: its first words bold, verdicts coloured."""
    head, colon, rest = finding.partition(": ")
    return f"<strong>{escape(head)}{colon}</strong>{_coloured(rest)}" if colon else _coloured(finding)


def _coloured(text: str) -> str:
    """Plain text as HTML, its verdicts in colour."""
    cls = {"confirmed": "good", "refuted": "bad"}

    def paint(match: re.Match[str]) -> str:
        return f'<span class="{cls.get(match[0], "open")}">{match[0]}</span>'

    return re.sub(r"\b(neither confirmed nor refuted|inconclusive|confirmed|refuted)\b", paint, escape(text))


def _natural(paths: Any) -> list[Path]:
    """Sorted with numbers as numbers."""
    return sorted(paths, key=lambda p: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", p.stem)])


def _pictures(path: Path, pattern: str, caption: str, *, but: Sequence[str] = (), wide: bool = False) -> str:
    """All PNGs of a stage that match, but those whose names begin so; where several may, each says its name."""
    out = []
    for file in _natural(path.glob(pattern)):
        if not file.stem.startswith(tuple(but)):
            words = f"{caption}: {file.stem.replace('_', ' ')}" if "*" in pattern else caption
            out.append(picture(file, words, f"{words}.", wide=wide))
    return "".join(out)


def _present(titles: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The titled columns that the rows have, then those that nobody titled."""
    have = list(dict.fromkeys(k for row in rows for k in row))
    return {k: t for k, t in titles.items() if k in have} | {k: k.replace("_", " ") for k in have if k not in titles}


def _scalars(result: Result, caption: str) -> str:
    """A result's scalars as a table; those that are undefined here are only counted."""
    rows = []
    known = {name: s for name, s in result.scalars.items() if s["value"] is not None}
    if len(known) < len(result.scalars):
        caption += f" ({len(result.scalars) - len(known)} more are undefined here)"
    for name, s in known.items():
        low, high = s.get("interval") or (None, None)
        row = {"measure": name.replace("_", " "), "value": s["value"], "low": low, "high": high}
        rows.append(with_interval({**row, "unit": s["unit"], "n": s.get("n")}))
    titles = {"measure": "measure", "value": "value", "interval": "95 % interval", "unit": "unit", "n": "n"}
    return table(rows, caption, titles, most=40) if rows else ""


def plain(scalar: Mapping[str, Any]) -> str:
    """'0.42 [0.31, 0.55]'."""
    return number(scalar["value"]) + interval(*(scalar.get("interval") or (None, None)))


def percent(scalar: Mapping[str, Any], with_interval: bool = True) -> str:
    """A share as '42 % [31, 55]'."""
    if scalar["value"] is None:
        return number(None)
    ends = scalar.get("interval") if with_interval else None
    return f"{100 * scalar['value']:.0f} %" + (
        interval(*(round(100 * v) for v in ends)) if ends and None not in ends else ""
    )


def collect(runs: Path, bundle: Path) -> dict[str, Path]:
    """{name: run directory} of the bundle's models and of the stages below ``runs``, whole ones only."""
    found: dict[str, Path] = {}
    for parent in (bundle, runs):
        if not parent.is_dir():
            raise UserError(f"{parent}: no such directory")
        for path in sorted(parent.iterdir()):
            if (path / artefacts.MANIFEST).exists():
                found[path.name] = path
    return found


def main(config: ReportConfig) -> None:
    dirs = {k: v for k, v in collect(config.runs, config.bundle).items() if v.resolve() != config.out.resolve()}
    if not set(dirs) & set(SECTIONS):
        raise UserError(f"{config.runs} holds no stage's run directory ({', '.join(SECTIONS)})")
    page = build(dirs)
    with artefacts.new_run(config.out, STAGE, config, dirs, overwrite=config.overwrite) as run:
        artefacts.write_atomically(run.path / PAGE, page.html.encode())
    for finding in page.findings:
        print(f"  * {finding}")
    print(f"report: {config.out / PAGE}")


if __name__ == "__main__":
    cli.run(ReportConfig, main, STAGE)
