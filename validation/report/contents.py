"""What the page holds, section by section.

Every sentence and number on it is read from a result on disk.  Which runs may stand together is lineage's to say, how
claims are told claims', what to type commands', and how the page looks page's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.recurrent import AgentConfig
from analysis.coupling.edges import COMPARED, WORDS, label as behaviour_label
from analysis.dynamics.tables import left_in_words
from analysis.shared.behaviours import load_behaviours
from analysis.shared.surrogates import in_words
from core import artefacts
from core.artefacts import Result
from core.episodes import RolloutStore, without_cut
from core.figures import REAL, figure_of
from core.files import csv_of
from core.stages import OF_AN_AGENT
from core.stats import FEW_UNITS
from core.words import counted
from validation.fidelity.summary import to_show
from validation.report import claims
from validation.report.commands import Command, make, repeat, verify
from validation.report.lineage import Chosen, Traced, agent_described, agents_in, shown, simulators_in, trace
from validation.report.page import (
    around,
    box,
    command,
    details,
    document,
    estimate,
    figure_png,
    interval,
    listed,
    number,
    paragraph,
    picture,
    strip_png,
    table,
    tag,
    text_of,
)

PAGE = "report.html"
AGAIN = "again"  # directory beside the page's, into which printed commands repeat its stages


@dataclass(frozen=True)
class Page:
    """The page, and what was found as plain sentences."""

    html: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A part of the page.  findings: plain sentences for the summary; run: the directory that it tells of."""

    heading: str
    html: str
    findings: tuple[str, ...] = ()
    run: Path | None = None


# ---------------------------------------------------------------------------- agent and world


def agent_and_world(chosen: Chosen) -> Section:
    """Who acts where: the network, its training, its return, what the world looks like."""
    manifest = chosen.every[chosen.agent]
    about = agent_described(chosen.agent)
    spec = about["spec"]
    metrics = {**manifest["facts"].get("training", {}).get("metrics", {}), **manifest["metrics"]}
    words = f"{described(about)} in {spec['env_id']}"
    if "parameters" in metrics:
        words += f"; {number(int(metrics['parameters']['value']))} parameters"
    if "steps" in metrics:
        words += f"; trained for {number(int(metrics['steps']['value']))} environment steps"
    if "training_wall" in metrics:
        words += f" in {number(metrics['training_wall']['value'] / 60)} minutes"
    if (first := (artefacts.training_of(manifest).get("config") or {}).get("begin_with")) is not None:
        words += f", beginning with the weights of {shown(Path(first))}"
    given = {k: v for k, v in sorted(spec["options"].items()) if v not in ([], {}, "")}
    options = ", ".join(f"{k.replace('_', ' ')} {number(v)}" for k, v in given.items())
    when = "" if manifest["stage"] == "adopt" else " in training"
    html = [paragraph(f"{words}."), paragraph(f"The world's options{when}: {options or 'none'}.")]
    evaluations = [_evaluated(run, spec) for run in chosen.of("evaluate")]
    if evaluations:
        html += map(paragraph, evaluations)
    else:
        evaluations = ["How well it does in episodes kept apart was not evaluated."]
        html.append(to_make("evaluate", chosen, evaluations[0]))
    recordings = {p: m for p, m in chosen.every.items() if m["stage"] == "record"}
    html += [paragraph(said) for path, recorded in recordings.items() if (said := _recorded(path, recorded))]
    html += [_real_strip(path) for path in sorted(recordings, key=lambda p: bool(_acted(recordings[p])))[:1]]
    if "curve.csv" in manifest["files"]:
        html.append(_learning_curve(artefacts.load_bytes(chosen.agent, "curve.csv").decode()))
    return Section(
        "The agent and its world",
        "".join(html),
        (f"The agent: {words[0].lower()}{' '.join([f'{words[1:]}.', *evaluations])}",),
    )


def _recorded(path: Path, manifest: Mapping[str, Any]) -> str:
    """What the whole episodes of a recording returned; "": it has none."""
    metrics = manifest["metrics"]
    if (metric := metrics.get("return_mean")) is None:
        return ""
    cut = without_cut(int(metrics["cut"]["value"]) if "cut" in metrics else 0, metric["n"])
    where = f"{number(metric['n'])} episodes recorded in {shown(path)}{_acted(manifest)}"
    return f"In the {where} its mean return is {plain(metric)}{cut}."


def described(about: Mapping[str, Any]) -> str:
    """What an agent is: "An agent with a memory of 64 units (GRU) and the encoder 'strided'"."""
    if "net" not in about:
        width = about.get("points", {}).get("h")
        state = f" with a hidden state of {number(width)} units" if width else ""
        return f"An agent of the module {about['module']}{state}"
    net = about["net"]
    units, kind = net["hidden_size"], str(net.get("recurrence", AgentConfig().recurrence))
    memory = f"a memory of {number(units)} units ({kind.upper()})"
    if kind == "none":
        memory = f"no memory (feed-forward; its hidden state is a layer of {number(units)} units)"
    if kind == "features":
        memory = f"no memory (feed-forward; its hidden state is the encoder's {number(units)} features)"
    return f"An agent with {memory} and the encoder {net['encoder']!r}"


def _evaluated(run: Traced, spec: Mapping[str, Any]) -> str:
    score, asked = Result.load(run.path).scalars["return_mean"], run.manifest["config"]
    where = "on levels kept apart from its training" if spec["options"].get("num_levels") else "in an evaluation"
    how = ", always taking its most likely action" if asked.get("greedy") else ""
    return f"Evaluated {where}{how}, its mean return per episode is {estimate(score)} ({shown(run.path)})."


def _acted(recorded: Mapping[str, Any]) -> str:
    """' while ...' for a recording in which the agent did not simply act; else ''."""
    if recorded["facts"].get("interventions"):
        return ", its hidden state altered,"
    share_ = recorded["config"].get("exploration", {}).get("explore_share", 0)
    return f", {share_:.0%} of the slots exploring," if share_ else ""


def _real_strip(path: Path, frames: int = 10) -> str:
    with RolloutStore(path) as store:
        if (field := store.spec.picture) is None:
            return paragraph("The world's observations are no pictures.")
        episode = int(np.argmin(np.abs(store.steps - np.median(store.steps))))  # of typical length
        rows = np.linspace(0, store.rows[episode] - 1, min(frames, int(store.rows[episode]))).astype(int)
        there = store.episode(episode)
    actions = [store.spec.in_words(there.action[t]) if t < there.steps else "end" for t in rows]
    label = ", ".join(f"{t} {a}" for t, a in zip(rows, actions, strict=True))
    return picture(
        strip_png([there.obs[field][t] for t in rows]),
        f"{len(rows)} frames of one real episode, from its first step to step {rows[-1]}",
        f"A real episode of typical length (number {episode}), from left to right. The steps shown and the actions "
        f"taken: {label}.",
        wide=True,
        pixels=True,
    )


# What a training measures as it goes: column, label, and what the words say of it, the first that there is.
MEASURED = (
    ("return_mean", "mean return per episode", "mean return of the last 100 training episodes that ended"),
    ("length_mean", "mean length of a life (ticks)", "mean length of the training's lives"),  # Neural MMO
)


def _learning_curve(curve: str) -> str:
    """The curve as a picture with its words; '' where it has none of what is known."""
    rows = csv_of(curve.encode(), Path("curve.csv"))
    found = [one for one in MEASURED if rows and one[0] in rows[0]]
    if not found:
        return ""
    column, label, says = found[0]
    steps, measured = np.array([(float(r["step"]), float(r[column] or "nan")) for r in rows]).T
    few = [float(r["step"]) for r in rows if float(r.get("return_episodes") or 100) < 100]  # older curves do not say
    figure = figure_of(7.5, 2.6)
    axes = figure.subplots()
    axes.plot(steps / 1e6, measured, color=REAL, lw=1.4)
    axes.set(xlabel="environment steps (millions)", ylabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    last = measured[np.isfinite(measured)][-1:] if np.isfinite(measured).any() else np.array([np.nan])
    return picture(
        figure_png(figure),
        f"Learning curve: {label} over {number(float(steps[-1]))} steps, ending at {number(float(last[0]))}",
        f"The learning curve shows the {says}, exploration included; early on these are the short ones"
        f"{f' (until step {number(few[-1])} fewer than 100 had ended)' if few else ''}.",
    )


# ---------------------------------------------------------------------------- fidelity


def fidelity(run: Traced) -> Section:
    """Real against simulated, between the real-vs-real floor and trivial baselines."""
    path, result = run.path, Result.load(run.path)
    rows, scalars, notes = result.tables["fidelity"], result.scalars, result.notes
    free = [r for r in rows if r["measure"] == "frame_mse"]
    found: tuple[str, ...] = ()
    if free:
        middle = next((r for r in free if r["horizon"] >= 16), free[-1])
        words = (
            f"The simulator: running on its own for {number(middle['horizon'])} steps, its frames have a mean squared "
            f"error of {around(middle, 'simulated')} {middle['unit']} (n = {number(middle['n'])} episodes), against "
            f"{number(middle['baseline_copy'])} for holding the last frame and {number(middle['baseline_mean'])} for "
            f"the mean frame"
        )
        below = []
        for name, of in (("copy", "the held frame"), ("mean", "the mean frame")):
            known = scalars.get(f"horizons_below_{name}")
            if known is not None:
                below.append(f"{of} at {round(known['value'] * known['n'])} of {known['n']}")
        words += f"; it is below {' and below '.join(below)} horizons from 2 steps on" if below else ""
        words += (
            "." if notes["held_out"] else "; the simulator was trained on these very episodes, so this flatters it."
        )
        found = (words,)
    some = [{**r, "measure": _measure(r["measure"]), "simulated": around(r, "simulated")} for r in to_show(rows)]
    order = list(dict.fromkeys(r["measure"] for r in some))
    some.sort(key=lambda r: order.index(r["measure"]))
    titles = {
        "measure": "measure", "horizon": "steps ahead", "simulated": "simulated [95 %]", "floor": "real-vs-real floor",
        "baseline_copy": "last frame held", "baseline_mean": "mean", "unit": "unit", "n": "episodes",
    }  # fmt: skip
    told = ("horizon", "floor", "baseline_copy", "baseline_mean", "teacher_forced", "dreams", "gradients")
    read = listed([f"{k.replace('_', ' ')}: {notes[k]}." for k in told if k in notes])
    tried = _tried_again(rows)
    html = [
        paragraph(
            f"From the first frames of {number(notes['windows'])} places in {number(notes['episodes'])} real episodes "
            f"the simulator runs on its own, given only the recorded actions. The floor is what the real world scores "
            f"against itself; the baselines are what one gets without any model."
        ),
        _pictures(path, "strip.png", "Real frames, and below them the simulated ones from the same start, by steps "
                  "ahead", wide=True),
        _pictures(path, "horizons.png", "Simulated against real by steps simulated, with floor and baselines",
                  wide=True),
        _pictures(path, "counterfactual.png", "The moment whose real futures differ most, with every action held: real "
                  "frames above simulated ones", wide=True),
        *map(paragraph, tried),
        *(paragraph(f"Left out: {words}.") for words in notes["left_out"]),
        details(
            "Every measure at some horizons",
            table(some, f"Fidelity; all {len(rows)} rows are in fidelity.csv", titles, most=100) + read,
        ),
    ]  # fmt: skip
    return Section("How true the simulator is", "".join(html), (*found, *tried))


def _measure(name: str) -> str:
    """A measure's name in words."""
    words = {"mse": "mean squared error", "psnr": "PSNR", "ssim": "SSIM", "h": "hidden state", "top1": "first guess"}
    return " ".join(words.get(word, word) for word in name.split("_"))


def _tried_again(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What snapshots of the real world told, in a sentence; nothing where that was left out."""
    last = {
        r["measure"]: r for r in rows if r["measure"] in ("counterfactual_top1", "gradient_sign_action_through_world")
    }
    said = []
    r = last.get("counterfactual_top1")
    if r is not None and r["simulated"] is None:
        said += [f"Counterfactual actions: {why}"] if (why := r.get("reason")) else []
    elif r is not None:
        said.append(
            f"Counterfactual actions: from {counted(r['n'], 'real moment')}, an action held {r['horizon']} steps, the "
            f"simulated frame is nearest to the real one of the same action in {around(r, 'simulated')} of cases "
            f"(chance {number(r['baseline_mean'])}; real frames themselves, some of which are alike, "
            f"{number(r['floor'])})"
        )
    r = last.get("gradient_sign_action_through_world")
    if r is not None and r["simulated"] is not None:
        said.append(
            f"straight-through gradients through the world have the sign of the real effect on later actions in "
            f"{around(r, 'simulated')} of cases, {r['horizon']} steps on (chance 0.5)"
        )
    return ("; ".join(said) + ".",) if said else ()


# ---------------------------------------------------------------------------- directions, behaviours


def directions(run: Traced) -> Section:
    """Bases fitted to the hidden state, and the independent components over an episode."""
    path, result = run.path, Result.load(run.path)
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
            "most variance; independent components (ICs) are turned so that each varies on its own, and are ordered "
            "by how reproducible they are over restarts on resampled episodes: the last ones may be arbitrary."
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
    "dwell": "steps until the exit", "value": "value", "policy_entropy": "entropy of the policy (bits)",
    "transition_entropy": "entropy of the next step's behaviour (bits)",
}  # fmt: skip


def mdp_rows(result: Result, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """The table ``mdp`` with intervals beside the numbers, and the user's names."""
    measured = ("dwell", "value", "policy_entropy", "transition_entropy")
    return [
        {
            **{k: row[k] for k in ("n_steps", "n_episodes", "n_exits")},
            "name": names.get(row["behaviour"], str(row["name"])),
            **{k: around(row, k, f"{k}_low", f"{k}_high", "n_episodes") for k in measured},
            **(
                {"dwell": f"{number(row['dwell'])} [{number(row['dwell_low'])}, without bound]"}
                if row["dwell_high"] is None and row["dwell_low"] is not None
                else {}
            ),
        }
        for row in result.tables["mdp"]
    ]


def behaviours(run: Traced) -> Section:
    """Clusters of what the agent does, with how stable they are and how much is only time."""
    path, result = run.path, Result.load(run.path)
    names, scalars = load_behaviours(path).names, result.scalars
    rows = [{**row, "name": names[row["behaviour"]]} for row in result.tables["behaviours"]]
    found = (
        f"Behaviours: {len(rows)} clusters of steps; refitted on resampled episodes they agree with an adjusted Rand "
        f"index of {plain(scalars['stability'])} (1: the same, 0: chance), n = {scalars['stability']['n']} episodes. "
        f"Time in the episode tells {percent(scalars['share_from_time'])} of what a label says "
        f"({percent(scalars['share_from_time_floor'], False)} by chance)."
    )
    if "surrogates" in result.tables:
        said = in_words(result)
        found += f" {said[0].upper()}{said[1:]}."
    titles = {
        "behaviour": "behaviour", "name": "name", "share": "share of steps [95 %]", "n_steps": "steps",
        "n_episodes": "episodes", "n_sim_steps": "simulated steps", "time_eta2": "explained by time (η²)",
        "value": "mean value [95 %]", "value_d": "value against all other steps (Cohen's d) [95 %]",
        "actions": "most frequent actions",
    }  # fmt: skip
    told = [{**r, **{k: around(r, k, f"{k}_low", f"{k}_high", "n_episodes") for k in ("share", "value", "value_d")}}
            for r in rows]  # fmt: skip
    html = [
        paragraph(
            "Steps are clustered by the hidden state, the world around it and how both change. A cluster that only "
            "says how late in the episode it is would be a clock, not a behaviour: the table says how much time "
            "explains. Names are automatic until a person edits behaviours.json."
        ),
        _pictures(path, "graph.png", "How behaviours follow each other (a semi-aggregated Markov process)"),
        table(told, "Behaviours (clusters of steps), the largest first", titles, most=64),
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
        pictures = ""
        if strip.exists():
            words = f"{heading}. Frames from its most typical steps on, each row from another episode"
            pictures += picture(strip, words, f"{words}.", wide=True)
        if loop.exists():
            words = f"{heading}, moving: typical moments of different episodes, all begun at the same time"
            pictures += picture(loop, words, f"{words}.")
        if pictures:
            html.append(pictures if b < 2 else details(heading, pictures))
    html.append(_pictures(path, "transitions.png", "How often one behaviour follows another"))
    html.append(_pictures(path, "map.png", "The steps of all behaviours"))
    return Section("Behaviours", "".join(html), (found,))


def points_in_words(points: Sequence[Mapping[str, Any]]) -> str:
    """How many points there are of each kind, how many of the fixed ones are stable, and how slow these are."""
    fixed = [row for row in points if row["kind"] == "fixed"]
    stable = sum(row["stability"] == "stable" for row in fixed)
    words = f"{counted(len(fixed), 'fixed point')}, {stable} of them stable"
    if slowest := [row["time_constant"] for row in fixed]:
        words += f"; their slowest modes last {number(min(slowest))} to {number(max(slowest))} steps"
    if slow := len(points) - len(fixed):
        words += f"; and {counted(slow, 'slow point')}, where it nearly stands still"
    return words


def dynamics(run: Traced) -> Section:
    """What the memory does by itself: how long it keeps what, and where it would come to rest."""
    path, result = run.path, Result.load(run.path)
    points, top = result.tables["points"], result.scalars["lyapunov_driven"]
    left = f"shown the same frames, {left_in_words(result)}; " if "left" in result.tables else ""  # of an older run
    found = (
        f"Memory: {left}largest Lyapunov exponent (the slowest direction, in the long run) {plain(top)} nats a step, "
        f"n = {top['n']} episodes."
    )
    frames = "the central frame of each behaviour" if "behaviours" in run.manifest["inputs"] else "typical frames"
    words = f"Under constant input (the mean input, and {frames}), the memory has {points_in_words(points)}"
    titles = {
        "name": "constant input", "kind": "point", "stability": "stability", "slow_modes": "slow modes",
        "time_constant": "slowest mode (steps)", "settle_here": "states that get there [95 %]",
        "nearest_state": "nearest recorded state (rms sd)", "action": "action there", "value": "value there",
    }  # fmt: skip
    told = [{**r, "settle_here": around(r, "settle_here", "settle_here_low", "settle_here_high")} for r in points]
    html = [
        paragraph(
            "A recurrent agent is a dynamical system. Modes that last longer than an episode are memory; a fixed point "
            "is what the memory would settle to if the world stood still, which it does not."
        ),
        paragraph(words + "."),
        _pictures(path, "points.png", "Fixed points of the memory under constant inputs", wide=True),
        _pictures(path, "eigenvalues.png", "Eigenvalues at the fixed points, and the time constants they mean"),
        _pictures(
            path,
            "lyapunov.png",
            "What is left of a difference of memory; Lyapunov exponents of recorded episodes and of constant inputs",
        ),
        table(told, "Fixed and slow points", titles, most=40),
    ]
    return Section("What the memory does by itself", "".join(html), (found,))


# ---------------------------------------------------------------------------- saliency, coupling


def saliency(run: Traced) -> Section:
    """What in the frames and in the past drives a quantity of the agent."""
    path, result = run.path, Result.load(run.path)
    by_quantity: dict[str, list[Path]] = {}
    for file in _natural(path.glob("sample_*.png")):
        for quantity in result.notes["units"]:
            if re.fullmatch(rf"sample_[^_]+_{re.escape(quantity.replace(':', '_'))}", file.stem):
                by_quantity.setdefault(quantity, []).append(file)
    html = [
        paragraph(
            "Gradients of a quantity at a target step (framed) with respect to every frame before: whole, through the "
            "agent only, and through the world, so through the consequences of the agent's own actions "
            "(straight-through: as if actions were continuous, which no training of the simulator checks). Blue: a "
            "brighter pixel raises the quantity; red: lowers it. Blurred for display only. Below, what other methods "
            "say of the target frame alone. These are the simulator's pictures, and only hypotheses."
        )
    ]
    for i, (quantity, files) in enumerate(by_quantity.items()):
        of = quantity.replace("_", " ")
        pictures = "".join(
            picture(f, f"Saliency of {of} over the frames of sample {f.stem.split('_')[1]}",
                    f"What drives {of} in sample {f.stem.split('_')[1]}, frame by frame.", wide=True)
            for f in files
        )  # fmt: skip
        title = f"{of}: {counted(len(files), 'sample')}"
        html.append(f"<h3>{text_of(title)}</h3>{pictures}" if i == 0 else details(title, pictures))
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
        checks = _joined(result.tables["checks"])
        html.append(table(checks, "Checks of every method (python -m analysis.saliency --checks)",
                          _present({}, checks)))  # fmt: skip
    through, chance = (_by_quantity(result, name) for name in ("through_world", "randomised_correlation"))
    found = [f"Saliency: {through} of the straight-through gradient's size runs through the world"] if through else []
    if through and chance:
        found[0] += f"; rank correlation of |gradient| with that of an agent with random weights: {chance}"
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


def coupling(run: Traced) -> Section:
    """Which direction drives which, by correlation and by gradient."""
    path, result = run.path, Result.load(run.path)
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
    correlated = f" (of {result.notes['correlated']})" if "correlated" in result.notes else ""
    titles = {
        "behaviour": "behaviour", "lag": "lag (steps)", "source": "source", "target": "target",
        "J": "Jacobian [95\xa0%]", "J_straight_through": COMPARED, "q": "q",
        "J_direct": WORDS["_agent_only"],
        "J_through_world": WORDS["_through_world"],
        "J_through_world_straight_through": f"through the world, {COMPARED}",
        "r": "correlation", "agree": "signs agree", "n": "Jacobians", "episodes": "episodes",
    }  # fmt: skip
    html = [
        paragraph(
            "Two directions that go together need not drive each other. The cross-correlation says what goes "
            f"together{correlated}; the Jacobian says how much a small change of one now would change the other "
            "later, in the simulator. A correlation without a Jacobian may be a common cause; a Jacobian is an effect "
            "in the simulator, and a hypothesis about the world."
        ),
        paragraph(f"{OLD_COUPLING if earlier else result.notes['method']}."),
        _scalars(result, "How much there is, and how far correlation and Jacobian agree"),
    ]
    if between:
        html.append("<h3>The strongest effects of one direction on another</h3>")
        html.append(listed([str(e["sentence"]) for e in between[:8]]))
    else:
        html.append(paragraph("No direction has a significant effect on another one."))
    if edges:
        rows = [{**e, "J": around(e, "J", "J_low", "J_high", "episodes")} for e in edges]
        shown_rows = table(
            rows,
            "Significant Jacobians, the strongest first",
            {k: title for k, title in titles.items() if k in edges[0]},
            most=60,
        )
        html.append(details("All significant effects, those on a direction's own later value too", shown_rows))
    words = (
        "Coupling matrices of {}: Jacobian, its direct part, its part through the world with the straight-through "
        "number beside it, and correlation, a row a lag"
    )
    drawn = "Graph of the effects in {}: whole, direct and through the world, a column a lag"
    html.append(_pictures(path, "paths.png", "Direct and through-world parts of the effects, and how far each agrees "
                          "with the correlation", wide=True))  # fmt: skip
    html.append(_pictures(path, "kinds.png", "How far the Jacobians of behaviours differ; dots where they are told "
                          "apart, frames around groups of which no two are"))  # fmt: skip
    html.append(_pictures(path, "extremes.png", "Later means of the others, and Jacobians, where a direction is at its "
                          "upper or lower end", wide=True))  # fmt: skip
    for i, file in enumerate(_natural(path.glob("matrix_*.png"))):
        number_of = file.stem.removeprefix("matrix_")
        behaviour = behaviour_label(result.notes["names"], int(number_of))
        graph, matrix = (_pictures(path, f"{name}_{number_of}.png", text.format(behaviour))
                         for name, text in (("graph", drawn), ("matrix", words)))  # fmt: skip
        html.append(graph + matrix if i < 1 else details(behaviour[0].upper() + behaviour[1:], graph + matrix))
    return Section("What drives what", "".join(html), (found,))


def to_make(name: str, chosen: Chosen, words: str) -> str:
    """That a stage is missing, and what to type."""
    how = made_by(name, chosen)
    note = f" {how.note}" if how.note else " To make it:"
    return f"<p>{text_of(words + note)} {command(how.line)}</p>"


def made_by(name: str, chosen: Chosen) -> Command:
    """What makes a stage that is missing."""
    known = {"agent": chosen.agent} | ({"simulator": chosen.simulator} if chosen.simulator else {})
    flags = {"record": "rollouts", "record_samples": "samples"}
    learnt = trace(chosen.simulator).chain if chosen.simulator else {}
    for path, manifest in sorted(chosen.every.items(), key=lambda of: of[0] not in learnt):
        if not manifest["facts"].get("interventions"):  # altered recordings are no data of the agent's own
            known[flags.get(str(manifest["stage"]), str(manifest["stage"]))] = path
    return make(name, known, chosen.root)


# ---------------------------------------------------------------------------- interventions


def interventions(run: Traced, again: Path) -> Section:
    """The claims, and what happened when the hidden state was really changed."""
    path, result = run.path, Result.load(run.path)
    html = claims.body(run, again) + paragraph(
        "At a random step of each of many episodes the hidden state was changed, in the simulator and in the real "
        "world put back to the same state with the same action noise, and compared with the unaltered course. Random "
        "changes of the same size are the yardstick. A late effect is measured after the first step of the change, "
        "where a world has a say in it (what is changed at every step also acts on the agent where it is measured)."
    )
    for name, words in STUDY_FIGURES.items():
        html += _pictures(path, f"{name}.png", words, wide=True)
    html += _pictures(path, "*.png", "The study", but=tuple(STUDY_FIGURES), wide=True)
    html += _scalars(result, "What was foretold against what was observed, over all late effects")
    return Section("The tested claims", html + claims.late_effects(result))


STUDY_FIGURES = {
    "effects": "Effect against amount, with 95 % intervals; grey: random changes",
    "predicted_vs_observed": "Foretold against observed effects (dashed: equal)",
    "needs": "How often a change prevents an event or brings it about; grey: random changes",
}


# ---------------------------------------------------------------------------- what is said everywhere


def _top(chosen: Chosen, again: Path) -> tuple[str, str, str, list[str]]:
    """(gate, warnings, what was asked and what came out), as HTML, and all as plain sentences."""
    runs = chosen.of("interventions")
    doubted = (run.manifest["facts"].get(artefacts.HELD_OUT_WARNING) for run in chosen.runs)
    warnings = [*_warnings(chosen), *dict.fromkeys(str(said) for said in doubted if said)]
    if not runs:
        words = "What was asked: nothing yet. No claim about this agent was tested in the real world."
        return box(to_make("interventions", chosen, words)), _warned(warnings), "", [words]
    where = [f" ({shown(run.path)})" * (len(runs) > 1) for run in runs]
    gates, said = [], []
    for run, at in zip(runs, where, strict=True):
        with artefacts.as_written(run.path):
            result = Result.load(run.path)
            warnings += [str(w) for w in result.notes.get("warnings", ()) if w not in warnings]
            said.append(claims.answers(run, at, again))
            gates.append(claims.gate(result, at))
    return "".join(gates), _warned(warnings), "".join(html for html, _ in said), [t for _, told in said for t in told]


def _warnings(chosen: Chosen) -> list[str]:
    """What is to be said of the simulator that runs were made with, each sentence once."""
    said = [artefacts.simulator_warning(run.path) or "" for run in chosen.runs]
    return list(dict.fromkeys(f"{words[0].upper()}{words[1:]}." for words in said if words))


def _warned(warnings: Sequence[str], word: str = "Warning") -> str:
    """Sentences that a reader should not miss."""
    told = "".join(f"<p>{tag(f'{word}:', 'open')} {text_of(words)}</p>" for words in warnings)
    return box(told, "open") if warnings else ""


def limits(chosen: Chosen) -> Section:
    """What this page does not show."""
    agents, simulators = agents_in(chosen.every), simulators_in(chosen.every)
    trainings = [artefacts.training_of(chosen.every[path]) for path in agents.values()]
    seeds = {training["seed"] for training in trainings if training["stage"] != "adopt"}  # of those nothing is known
    count = ", ".join(
        f"{_in_words(n)} {word}{'s' * (n != 1)}"
        for n, word in ((len(agents), "agent"), (len(seeds), "training seed"), (len(simulators), "simulator"))
        if n or word != "training seed"
    )
    items = [f"{count[0].upper()}{count[1:]}, one world. Another seed of the same training may hold other directions."]
    for name, path in list(agents.items()) * (len(agents) > 1):
        if path != chosen.agent:
            items.append(f"The agent {name} in {shown(path)} is only compared with; the page is not about it.")
    if chosen.of("saliency") or chosen.of("coupling"):
        items += [
            "Saliency and Jacobians are first-order: they speak of small changes. Interventions are not small; where "
            "what was foretold and what was observed part, believe the observation.",
            "Gradients are the simulator's, not the world's. They are worth what its fidelity is worth, and that is "
            "measured on the agent's own courses; off them the simulator has seen less.",
        ]
    if chosen.of("hidden_states"):
        items.append("An independent component is a statistical direction, not a concept. Its name is the reader's, "
                     "and nothing here tests it.")  # fmt: skip
    items.append(
        f"Steps of an episode depend on each other, so all intervals resample whole episodes. 'Few' stands at those "
        f"from fewer than {FEW_UNITS} of them: such an interval may miss the truth more often than it says."
    )
    if chosen.of("interventions"):
        items.append("That a change has an effect says that the direction is used; it does not say that nothing else "
                     "is.")  # fmt: skip
    return Section("What this does not show", listed(items))


def _in_words(n: int) -> str:
    words = ("no", "one", "two", "three", "four")
    return words[n] if n < len(words) else number(n)


def provenance(chosen: Chosen, out: Path, beside: Sequence[Traced] = ()) -> Section:
    """The chain of manifests, and the commands that repeat each stage.  beside: other runs that the page shows."""
    rows, commands, taken = [], [], set()
    every = dict(chosen.every)
    for run in beside:
        every |= {**run.compared, **run.chain}
    for path, manifest in every.items():
        rows.append(
            {
                "directory": shown(path),
                "stage": manifest["stage"].replace("_", " "),
                "made from": ", ".join(sorted(manifest["inputs"])).replace("_", " ") or "nothing",
                "seed": manifest["seed"],
                "files": len(manifest["files"]),
                "size (MB)": sum(f["bytes"] for f in manifest["files"].values()) / 1e6,
                "time (s)": manifest["wall_s"],
                "manifest SHA-256": artefacts.sha256(path / artefacts.MANIFEST)[:12],
            }
        )
        if manifest["stage"] in OF_AN_AGENT:
            name = next(n for n in (path.name, *(f"{path.name}_{i}" for i in range(2, 999))) if n not in taken)
            taken.add(name)
            how = repeat(path, out.parent / AGAIN / name)
            commands.append(text_of(how.note) + (f" {command(how.line)}" if how.line else ""))
    last = next(reversed(every.values()))
    versions = ", ".join(f"{k} {v}" for k, v in last["packages"].items())
    code = ", ".join(sorted({str(m["code"]) for m in every.values()}))
    machine = last["machine"]
    html = [
        table(rows, "Every directory behind this page, and the first 12 digits of its manifest's hash", most=100),
        paragraph("To repeat one stage, in a shell in the repository's root:"),
        "<ul>" + "".join(f"<li>{c}</li>" for c in commands) + "</ul>",
        f"<p>To check every file behind this page: {command(verify(out).line)}</p>",
        paragraph(f"Code {code}. Packages: {versions}. Machine: {machine['cpus']} CPUs, {machine['platform']}."),
    ]
    return Section("Where it comes from", "".join(html))


# ---------------------------------------------------------------------------- the page


SECTIONS: dict[str, tuple[str, Callable[[Traced], Section]]] = {
    "fidelity": ("How true the simulator is", fidelity),
    "hidden_states": ("Directions in the hidden state", directions),
    "behaviours": ("Behaviours", behaviours),
    "dynamics": ("What the memory does by itself", dynamics),
    "saliency": ("Saliency", saliency),
    "coupling": ("What drives what", coupling),
}  # the agent stands before them, the claims after


@dataclass(frozen=True)
class Parts:
    """What is said about some runs, before it is put on a page.  gate, warnings, answers: HTML."""

    title: str
    gate: str
    warnings: str
    answers: str  # what was asked and what came out
    left_out: str
    told: tuple[str, ...]  # the same in plain sentences
    findings: tuple[str, ...]
    sections: tuple[Section, ...]


def build(chosen: Chosen, out: Path) -> Page:
    """The page about these runs; a stage that was not run is named with what to type.  ``out``: where it will lie."""
    parts = parts_of(chosen, out)
    top = parts.gate + parts.warnings + parts.answers + parts.left_out
    sections = [(s.heading, s.html) for s in parts.sections]
    html = document(parts.title, top, [_mark(f) for f in parts.findings], sections)
    return Page(html, (*parts.told, *parts.findings, *chosen.left_out))


def parts_of(chosen: Chosen, out: Path, beside: Sequence[Traced] = ()) -> Parts:
    """What is said about these runs.  beside: others on the same page, which tells of them elsewhere."""
    again = out.parent / AGAIN
    shows = {**SECTIONS, "interventions": ("The tested claims", lambda run: interventions(run, again))}
    sections, not_run = [agent_and_world(chosen)], []
    for stage, (heading, show) in shows.items():
        runs = chosen.of(stage)
        for run in runs:
            with artefacts.as_written(run.path):
                made = show(run)
            at = f": {shown(run.path)}" * (len(runs) > 1)
            warned = _warned(_warnings(chosen)) if run.simulators else ""
            sections.append(Section(made.heading + at, warned + made.html, made.findings, run.path))
        if not runs:
            missing = to_make(stage, chosen, "This stage was not run.")
            sections.append(Section(heading, missing))
            not_run.append(heading)
    sections += [limits(chosen), provenance(chosen, out, beside)]
    gate, warnings, answers, told = _top(chosen, again)
    findings = [f for s in sections for f in s.findings]
    findings += [f"Not run: {', '.join(not_run)}."] * bool(not_run)
    world = agent_described(chosen.agent)["spec"]["env_id"]
    return Parts(
        f"Why does the agent act as it does in {world}?", gate, warnings, answers,
        _warned(chosen.left_out, "Not on this page"), tuple(told), tuple(findings), tuple(sections),
    )  # fmt: skip


def _mark(finding: str) -> str:
    """A finding as HTML: its first words bold."""
    head, colon, rest = finding.partition(": ")
    return f"<strong>{text_of(head)}{colon}</strong>{text_of(rest)}" if colon else text_of(finding)


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


def _joined(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows in which every number that has an interval (NAME_low, NAME_high) stands in one cell with it."""
    return [
        {
            k: around(r, k, f"{k}_low", f"{k}_high") if f"{k}_low" in r else v
            for k, v in r.items()
            if not k.endswith(("_low", "_high"))
        }
        for r in rows
    ]


def _scalars(result: Result, caption: str) -> str:
    """A result's scalars as a table; those that are undefined here are only counted."""
    known = {name: s for name, s in result.scalars.items() if s["value"] is not None}
    if len(known) < len(result.scalars):
        caption += f" ({len(result.scalars) - len(known)} more are undefined here)"
    rows = [
        {"measure": name.replace("_", " "), "value": plain(s), "unit": s["unit"], "n": s.get("n")}
        for name, s in known.items()
    ]
    titles = {"measure": "measure", "value": "value [95 %]", "unit": "unit", "n": "n"}
    return table(rows, caption, titles, most=40) if rows else ""


def plain(scalar: Mapping[str, Any]) -> str:
    """'0.42 [0.31, 0.55]'."""
    low, high = scalar.get("interval") or (None, None)
    return number(scalar["value"]) + interval(low, high, scalar.get("n"))


def percent(scalar: Mapping[str, Any], with_interval: bool = True) -> str:
    """A share as '42 % [31, 55]'; ends that would be rounded to one number are rounded away from each other."""
    if scalar["value"] is None:
        return number(None)
    low, high = (scalar.get("interval") if with_interval else None) or (None, None)
    whole = [None if end is None else round(100 * end) for end in (low, high)]
    if low is not None and high is not None and low < high and whole[0] == whole[1]:
        rounded = 1e-12  # of 100 * .29 being 28.999999999999996
        whole = [math.floor(100 * low * (1 + rounded)), math.ceil(100 * high * (1 - rounded))]
    return f"{100 * scalar['value']:.0f} %{interval(whole[0], whole[1], scalar.get('n'))}"
