"""What a policy's own clusters are, and how good: ``python -m analysis.semantics --agent DIR --rollouts DIR``.

The agent is one of ``train.py --policy semantic``; the rollouts are record.py's of it, with ``--truth all`` where the
clusters are to be compared with the world.  Words before the flags say what to make (docs/semantics.md)::

    embeddings   t-SNE of the features and the plane by code, the plane by value
    quality      the clusters in numbers, and what each of them does
    videos       an MP4 a code
    hover        an offline page, the frame of every state under the pointer
    matches      which codes are what a file of descriptions (--descriptions) says of the game's situations
    names        names.json, in which the user names codes; --names FILE puts them into every picture
    curves       learning curves of several trainings (--curves), with or without an agent
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.semantics", file=sys.stderr)
    sys.exit(2)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from threadpoolctl import threadpool_limits

from agents.learning_curves import Mode, bands_of, draw_curves, ranges_of, read_all, read_curves
from agents.load import load_agent
from agents.semantic import SemanticAgent
from analysis.events.counts import chosen_events, happening
from analysis.semantics import causes, quality
from analysis.semantics.figures import draw_effects, draw_embeddings
from analysis.semantics.films import FilmOptions, write_films
from analysis.semantics.hover import chosen_rows, frames_of, page
from analysis.semantics.matches import Descriptions, matches, read_descriptions, told
from analysis.semantics.states import NAMES, States, open_policy, placed, read_names, read_states
from analysis.shared.agents import short_names
from analysis.shared.behaviours import STAGE as BEHAVIOURS, load_behaviours
from analysis.shared.clusters import STEPS_PER_CLUSTER, k_means, nearest_centre
from analysis.shared.maps import LEAST_MAPPED, check_mappable, embed
from analysis.shared.sources import check_made_from
from analysis.shared.truths import levels_of, names_of, numbers_of
from analysis.similarity.comparison import states as states_of_another
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Agent, UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.video import check_video
from envs.registry import renewed

STAGE = "semantics"
Part = Literal["embeddings", "quality", "videos", "hover", "matches", "names", "curves"]
OF_STATES: tuple[Part, ...] = ("embeddings", "quality", "videos", "hover", "matches", "names")


@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    """Learning curves."""

    curves: tuple[str, ...] = ()
    """runs to draw: directories of trainings and of their evaluations, or METHOD/GAME/SEED=progress.csv (with /test
    after the seed: held-out levels)"""
    normalise: bool = False
    """returns as shares of the game's range, and the mean of all games (also --normalize_and_reduce)"""
    distribution_mode: Mode | None = None
    """easy or hard: the levels that a progress.csv's returns are of, which --normalise needs; trainings say theirs"""
    smoothing: float = 0.9
    """weight of the past in the moving average"""
    drop: int = 10
    """first updates that are left out"""


@dataclass(frozen=True, kw_only=True)
class SemanticsConfig:
    """See what the clusters inside a policy are, and how good."""

    make: tyro.conf.Positional[tuple[Part, ...]] = ()
    """what to make: embeddings, quality, videos, hover, matches, names, curves; none: all that there is something
    for, matches with --descriptions and curves with --curves alone"""
    agent: Path = Path("runs/agent")
    """run directory of the policy (train.py --policy semantic)"""
    rollouts: Path = Path("runs/rollouts")
    """rollouts of it"""
    behaviours: Path | None = None
    """behaviours run directory of the same rollouts, to compare with"""
    plain: Path | None = None
    """run directory of the plain agent: k-means of its features, on the same frames, to compare with"""
    others: tuple[Path, ...] = ()
    """run directories of the same policy from other seeds, whose codes of the same frames are compared"""
    names: Path | None = None
    """JSON file with the user's names of codes: {"0": "a name", ...}; every picture uses them"""
    descriptions: Path | None = None
    """JSON file with situations of the game in words of events (docs/ninja.json), which codes are matched with"""
    least_match: float = 0.3
    """smallest correlation of a code and a description that is a match"""
    match_draws: int = 999
    """draws of what matches by chance, of each of two kinds"""
    out: Path = Path("runs/semantics")
    """run directory to write"""
    embedding_states: int = 5000
    """states of the t-SNE (as published: 25,600)"""
    hover_states: int = 5000
    """states of the page"""
    surrogates: int = 39
    """VAR(1) surrogates of the features, cut as they are, whose run lengths stand beside the codes'; at least 39
    for the word longer or not longer, 0: none"""
    film: FilmOptions = field(default_factory=FilmOptions)
    curve: CurveOptions = field(default_factory=CurveOptions)
    seed: int = 0
    """seed of the states that are drawn, of clusters and maps"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""

    @property
    def unread(self) -> tuple[str, ...]:
        """Inputs that what is made has no use for."""
        return ("agent", "rollouts") if self.make and not set(self.make) & set(OF_STATES) else ()


@dataclass(frozen=True)
class Subject:
    """The policy and its recorded states."""

    agent: SemanticAgent
    store: RolloutStore
    states: States
    names: dict[int, str]


def parts_of(config: SemanticsConfig) -> tuple[Part, ...]:
    """What to make, checked."""
    curves: tuple[Part, ...] = ("curves",) if config.curve.curves else ()
    without = () if config.descriptions else ("matches",)
    made = tuple(dict.fromkeys(config.make)) or tuple(p for p in OF_STATES if p not in without) + curves
    if "matches" in made and config.descriptions is None:
        raise UserError("matches needs --descriptions, such as docs/ninja.json")
    if not 0 < config.least_match < 1:
        raise UserError(f"--least_match {config.least_match:g} must lie between 0 and 1")
    cli.require(19, match_draws=config.match_draws)
    if "curves" in made and not config.curve.curves:
        raise UserError("curves needs --curves: directories of trainings, or METHOD/GAME/SEED=progress.csv")
    cli.require(0, surrogates=config.surrogates, drop=config.curve.drop, seed=config.seed)
    cli.require(1, embedding_states=config.embedding_states, hover_states=config.hover_states)
    if not 0 <= config.curve.smoothing < 1:
        raise UserError(f"--smoothing {config.curve.smoothing:g} must be at least 0 and below 1")
    config.film.check()
    return made


def truths_of(store: RolloutStore) -> dict[str, np.ndarray]:
    """Every number of the world's truth along the recording, float64 [N]."""
    known = {name: where for name, where in names_of(store).items() if name != "level"}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in known}
    for e in np.flatnonzero(np.minimum(store.steps, store.rows) > 0).tolist():
        for name, x_T in numbers_of(store, e, list(known), known).items():
            parts[name].append(x_T)
    return {name: np.concatenate(x) for name, x in parts.items()}


def features_of(store: RolloutStore, states: States, truths: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """{name: (kind, float [N])}: actions, the world's words for some, events, the agent's value, the world's truth."""
    spec = renewed(store.spec)
    names = list(spec.action_names)
    out: dict[str, tuple[str, np.ndarray]] = {}
    if not spec.action_parts:
        groups = {**spec.distinct_actions(), **{w: [names.index(a) for a in of] for w, of in spec.action_words.items()}}
        out |= {name: ("action", np.isin(states.action_N, ids).astype(float)) for name, ids in groups.items()}
    events = chosen_events((), store)
    on_NX = np.concatenate([on_TX for _, on_TX in happening(events, store)])
    out |= {event.name: ("event", on_NX[:, i].astype(float)) for i, event in enumerate(events)}
    out["value"] = ("agent", states.value_N.astype(float))
    return out | {name: ("truth", x_N) for name, x_N in truths.items()}


def _check_world(agent: Agent, store: RolloutStore, what: str) -> None:
    """UserError for an agent of another world than the recorded one."""
    if differs := store.spec.differences(agent.spec):
        raise UserError(
            f"{what} plays {agent.spec.env_id}, these are rollouts of {store.spec.env_id} (other: {', '.join(differs)})"
        )


def compared(config: SemanticsConfig, subject: Subject, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """(other labels of the same steps; labels with the features that they were made of)."""
    store, states = subject.store, subject.states
    labels: dict[str, np.ndarray] = {}
    own: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if config.behaviours is not None:
        found = load_behaviours(config.behaviours)
        row_of = {(int(e), int(t)): i for i, (e, t) in enumerate(states.index_N2)}
        label_N = np.full(len(states), -1)
        for label, (e, t) in zip(found.labels["real"], found.index["real"], strict=True):
            label_N[row_of[int(e), int(t)]] = label
        labels["behaviours"] = label_N
    episodes = np.unique(states.index_N2[:, 0]).tolist()
    if config.plain is not None:
        plain = load_agent(config.plain, device)
        _check_world(plain, store, f"--plain {config.plain}")
        h_NH = states_of_another(plain, store, episodes, 0)["h"]
        label_N = nearest_centre(h_NH, k_means(h_NH, states.codes - len(states.dead), config.seed))[0]
        labels["k-means of the plain agent"], own["k-means of the plain agent"] = label_N, (h_NH, label_N)
    for path, name in zip(config.others, short_names(config.others), strict=True):
        other = open_policy(path, device)
        _check_world(other, store, f"--others {path}")
        if fingerprint(other) == fingerprint(subject.agent):
            raise UserError(f"--others {path} is the agent itself, which agrees with itself")
        h_NH = states_of_another(other, store, episodes, 0)["h"]
        labels[f"codes of {name}"] = placed(other, h_NH.astype(np.float32))[1]
    return labels, own


def main(config: SemanticsConfig) -> None:
    made = parts_of(config)
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    if "videos" in made:
        check_video()
    drawn = None
    if "curves" in made:
        of = config.curve
        curves = read_all(of.curves, of.normalise, of.distribution_mode)
        drawn = bands_of(curves, smoothing=of.smoothing, drop=of.drop, normalise=of.normalise)
    subject, inputs = None, artefacts.Inputs()
    if set(made) & set(OF_STATES):
        inputs = artefacts.Inputs({
            "agent": config.agent, "rollouts": config.rollouts, "behaviours": config.behaviours,
            "other_plain": config.plain, **{f"other_{i}": path for i, path in enumerate(config.others)},
        })  # fmt: skip
        agent = open_policy(config.agent, device)
        names = read_names(config.names, agent.semantic.codes)
        if config.behaviours is not None:
            artefacts.read_manifest(config.behaviours, BEHAVIOURS)
            check_made_from(config.behaviours, "rollouts", config.rollouts)
        subject = Subject(agent, *read_states(agent, config.rollouts), names)
        field_name = check_states(config, made, subject)
        said = read_descriptions(config.descriptions) if "matches" in made and config.descriptions else None
        holds_ND = None if said is None else told(subject.store, said)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = Result()
        if subject is not None:
            with threadpool_limits(config.threads):
                make(config, made, subject, result, run, device, field_name)
                if said is not None and holds_ND is not None:
                    match(config, subject, said, holds_ND, result)
            run.facts = {"agent": fingerprint(subject.agent)}
        if drawn is not None:
            bands, rows = drawn
            result.tables["curves"] = rows
            result.tables["curve_ends"] = [
                {"method": b.method, "game": b.game, "split": b.split, "seeds": b.seeds, "return": float(b.mean_T[-1]),
                 "low": float(b.low_T[-1]), "high": float(b.high_T[-1]), "steps": float(b.step_T[-1])} for b in bands
            ]  # fmt: skip
        result.save(run.path)
        if drawn is not None:
            with run.figures():
                draw_curves(bands, config.curve.normalise).savefig(run.path / "curves.png", dpi=140)
        run.metrics = dict(result.scalars)
    for line in [] if subject is None else summary(result, subject, made):
        print(line)
    if drawn is not None and (ranges := ranges_of(drawn[1])):
        print(ranges)
    print(f"{', '.join(made)}: {config.out}")


def check_states(config: SemanticsConfig, made: Sequence[str], subject: Subject) -> str:
    """The observation that is a picture ('' where none is needed); UserError where there are too few states, or no
    pictures."""
    rng = np.random.default_rng(config.seed)
    for part, count, flag in (
        ("embeddings", config.embedding_states, "embedding_states"), ("hover", config.hover_states, "hover_states"),
    ):  # fmt: skip
        if part in made:
            subject.states.drawn(count, flag, rng)
            more = f"give --{flag} {LEAST_MAPPED} or more"
            none = "record more, or name the parts without embeddings"
            check_mappable(
                count, "tsne" if part == "embeddings" else "pca", more if len(subject.states) >= LEAST_MAPPED else none
            )
    live = subject.states.codes - len(subject.states.dead)
    if "quality" in made and len(subject.states) < (need := STEPS_PER_CLUSTER * live):
        raise UserError(
            f"{config.rollouts}: {len(subject.states)} states are too few for k-means of as many clusters as there are "
            f"codes with states ({live}), which quality compares with; at least {need} are needed: record more, or "
            "name the parts without quality"
        )
    if not {"videos", "hover"} & set(made):
        return ""
    if (found := subject.store.spec.picture) is None:
        raise UserError(f"{config.rollouts}: videos and hover need an observation that is a picture")
    return found


def make(
    config: SemanticsConfig, made: Sequence[str], subject: Subject, result: Result, run: artefacts.Run,
    device: torch.device, field_name: str,
) -> None:  # fmt: skip
    """Everything that is about the states, into the result and the run directory."""
    path = run.path
    store, states, names = subject.store, subject.states, subject.names
    rng = np.random.default_rng(config.seed)
    codebook_C2 = subject.agent.codebook_C2.detach().cpu().numpy()
    result.notes |= {"names": {str(c): name for c, name in names.items()}, "dead": states.dead, "states": len(states)}
    if "quality" in made:
        truths = truths_of(store)
        labels, own = compared(config, subject, device)
        found = quality.measure(
            states, lambda h_MF: placed(subject.agent, h_MF)[1], labels, own, truths, surrogates=config.surrogates,
            seed=config.seed,
        )  # fmt: skip
        quality.neighbours(states, subject.agent.semantic, config.seed, found)
        result.tables |= found.tables
        result.scalars |= found.scalars
        result.notes |= found.notes
        said = quality.effects(states, features_of(store, states, truths), seed=config.seed)
        result.tables["effects"] = [{"name": names[row["code"]]} | row for row in said]
        if said:
            result.save(path)
            with run.figures():
                draw_effects(said, names).savefig(path / "effects.png", dpi=140)
        causes.plane_basis(subject.agent, states).save(path)
        words = causes.hypotheses(states, renewed(store.spec))
        result.notes["foretold_are"] = causes.FORETOLD[states.logits_NA is not None]
        artefacts.write_json(path / causes.CONFIG, causes.configuration(config.agent, config.out, words))
    if "embeddings" in made:
        rows = states.drawn(config.embedding_states, "embedding_states", rng)
        tsne_N2 = embed(states.h_NH[rows], "tsne", 2, config.seed)
        result.arrays |= {
            "tsne": tsne_N2.astype(np.float32), "tsne_index": states.index_N2[rows], "plane": states.plane_N2[rows],
            "code": states.code_N[rows], "codebook": codebook_C2,
        }  # fmt: skip
        result.save(path)
        with run.figures():
            figure = draw_embeddings(
                tsne_N2, states.plane_N2[rows], states.code_N[rows], states.value_N[rows], codebook_C2, names
            )
            figure.savefig(path / "embeddings.png", dpi=140)
    if "videos" in made:
        result.save(path)
        with run.figures():
            result.tables["videos"] = write_films(store, states, names, path, config.film, rng)
    if "hover" in made:
        rows = chosen_rows(states, config.hover_states, rng)
        maps = {"plane (FDR)": states.plane_N2[rows]}
        scores = np.linalg.svd(states.h_NH[rows] - states.h_NH[rows].mean(0), full_matrices=False)
        maps["features, principal components"] = (scores[0] * scores[1])[:, :2]
        title = f"States of {config.agent.name}"
        frames = frames_of(store, states.index_N2[rows], field_name)
        text = page(frames, states, rows, maps, levels_of(store), names, title)
        artefacts.write_atomically(path / "hover.html", text.encode())
    artefacts.write_json(path / NAMES, {str(c): name for c, name in names.items()})


def trained_steps(path: Path) -> int | None:
    """How many steps an agent was trained for, where its directory (or that of a copy for shipping) says so."""
    if (steps := artefacts.training_of(artefacts.read_manifest(path))["metrics"].get("steps")) is not None:
        return int(steps["value"])
    return int(max(c.step_U[-1] for c in read_curves(str(path)))) if (path / "curve.csv").exists() else None


def match(config: SemanticsConfig, subject: Subject, said: Descriptions, holds_ND: np.ndarray, result: Result) -> None:
    """Codes beside descriptions."""
    rows, pairs = matches(subject.states, list(said.words), holds_ND, least=config.least_match,
                          draws=config.match_draws, seed=config.seed)  # fmt: skip
    result.tables["matches"], result.tables["match_pairs"] = rows, pairs
    trained = trained_steps(config.agent)
    enough = (trained or 0) >= said.steps
    was = "not known to be trained enough (unknown" if trained is None else f"not trained enough ({trained:,}"
    result.notes["matches_are"] = (
        "of a policy that was trained enough to be described so" if enough else
        f"a trial of the method: {was} of {said.steps:,} steps)"
    )  # fmt: skip


def summary(result: Result, subject: Subject, made: Sequence[str]) -> list[str]:
    """The headline in a few lines."""
    states, names = subject.states, subject.names
    dead = f"; dead: {', '.join(names[c] for c in states.dead)}" if states.dead else ""
    lines = [f"{states.codes - len(states.dead)} of {states.codes} codes have states{dead}"]
    if "quality" in made:
        one = {name: value["value"] for name, value in result.scalars.items()}
        lines.append(
            f"perplexity {one['perplexity']:.2f}, silhouette {one['silhouette']:.2f}, trustworthiness "
            f"{one['trustworthiness']:.2f}, continuity {one['continuity']:.2f}; runs of {one['run_length']:.1f} steps, "
            f"{result.notes['runs_are']}"
        )
        lines.append(
            f"of {result.notes['neighbours_of']:,} other states one has {one['neighbours_features']:.1f} as neighbours "
            f"among the features and {one['neighbours_plane']:.1f} in the plane"
        )
        if states.logits_NA is None:
            lines.append(f"{causes.CONFIG} foretells {causes.FORETOLD[False]}")
        for c, name in names.items():
            if sure := quality.surest(result.tables["effects"], c):
                lines.append(f"{name}: " + ", ".join(f"{row['what']} {row['d']:+.2f} d" for row in sure))
    if "matches" in made:
        rows = result.tables["matches"]
        found = sum(row["verdict"] == "match" for row in rows)
        lines.append(f"{found} of {len(rows)} descriptions match a code: {result.notes['matches_are']}")
        for row in rows:
            beside = "" if "code" not in row else (
                f" ({names[row['code']]}: phi {row['phi']:.2f} [{row['low']:.2f}, {row['high']:.2f}], "
                f"q {max(row['q_rotated'], row['q_exchanged']):.2g})"
            )  # fmt: skip
            lines.append(f"  {row['description']}: {row['verdict']}{beside}")
    return lines


if __name__ == "__main__":
    cli.run(SemanticsConfig, main, STAGE)
