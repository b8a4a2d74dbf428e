"""What the panel holds: facts as JSON values, and arrays and pictures as blocks that are made one by one.

N samples, T steps, K directions, S samples with saliency, Q quantities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.shared.behaviours import Behaviours, load_behaviours
from core import artefacts, pages
from core.artefacts import Result
from core.contracts import UserError
from core.directions import Basis, bases_of, load_basis
from core.episodes import RolloutStore
from core.figures import NEGATIVE, POSITIVE, REAL, SIMULATED
from core.replay import quantised
from generative.load import load_simulator
from validation.panel import samples as read
from validation.panel.saliency import Saliency, open_saliency
from validation.report.commands import repeat
from validation.report.contents import AGAIN, made_by
from validation.report.lineage import Chosen, Traced, shown

COLUMNS = 16  # frames beside each other in a sheet
SHADES = 10  # of either sign that maps are shown in: a number is right to within a twentieth of the largest of its map
BASE = 3000  # points of the scatter
OTHERS = 16  # directions of every basis but the first
NEEDED = {
    "samples": "record_samples", "real": "record", "saliency": "saliency", "directions": "hidden_states",
    "behaviours": "behaviours",
}  # fmt: skip


class Block(NamedTuple):
    """Data of the page under a name."""

    name: str
    data: bytes
    packed: bool = True  # whether it is compressed on its way into the page (pictures are already)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What of the runs is shown."""

    samples: int = 200
    most: int = 4000
    steps: int = 32
    only: tuple[int, ...] = ()
    view: str = ""
    basis_kind: str = "ica"

    def wants(self, *views: str) -> bool:
        """Whether the page shows one of these: the whole page all of them, a figure those of its view."""
        return not self.only or self.view in ("", "all", *views)


@dataclass
class Contents:
    """What a page is told first, and what it unpacks when it is asked for."""

    facts: dict[str, Any]
    blocks: Iterator[Block]


def contents(chosen: Chosen, options: Options, out: Path) -> Contents:
    """What the runs hold.  Raises UserError before anything is written."""
    runs, of_others = together(chosen)
    facts: dict[str, Any] = {
        "missing": {
            name: {"stage": stage, "line": how.line, "note": " ".join(filter(None, [of_others.get(name), how.note]))}
            for name, stage in NEEDED.items()
            if runs[name] is None
            for how in [made_by(stage, chosen)]
        },
        "commands": {name: repeat(run, out.parent / AGAIN / name).line for name, run in runs.items() if run},
        "colours": {"real": REAL, "simulated": SIMULATED, "raises": POSITIVE, "lowers": NEGATIVE},
        "only": list(options.only), "view": options.view,
    }  # fmt: skip
    there = {name: run for name, run in runs.items() if run is not None}
    if "samples" not in there:
        if options.only:
            raise UserError("--only names samples, and there are none; python -m generative.record_samples makes them")
        return Contents(facts, iter(()))
    known = _known(there, options)
    blocks = _of_samples(chosen, there, known, facts, options)
    return Contents(facts, blocks)


ROWS = ("saliency", "behaviours")  # have a row a sample and step


def not_drawn(chosen: Chosen) -> list[str]:
    """A sentence on each run of saliency or behaviours that the views of samples are not drawn from: they are from one
    of each."""
    runs, _ = together(chosen)
    every = [(run.path, runs[name]) for name in ROWS for run in chosen.of(NEEDED[name])]
    return [f"{shown(path)} is not drawn beside the samples: {shown(drawn)} is. Name one of them alone to choose."
            for path, drawn in every if drawn not in (None, path)]  # fmt: skip


def together(chosen: Chosen) -> tuple[dict[str, Path | None], dict[str, str]]:
    """The run of every stage in ``NEEDED`` that the views of samples are drawn from, and a sentence for each that lies
    there and is of other samples.  Saliency and behaviours have a row a sample and step, so they must be of these very
    samples: the last that saliency was computed of, else behaviours.  Directions are those that they were told in."""
    runs = {name: last(chosen, stage) for name, stage in NEEDED.items()}
    told = [of for name in ROWS for run in reversed(chosen.of(NEEDED[name])) for of in _given(run, NEEDED["samples"])]
    of_samples = {run.path.resolve(): run.path for run in chosen.of(NEEDED["samples"])}
    runs["samples"] = next((of_samples[path] for path in told if path in of_samples), runs["samples"])
    samples = runs["samples"] and runs["samples"].resolve()
    of_others = {}
    for name in ROWS:
        there = chosen.of(NEEDED[name])
        mine = [run for run in there if _given(run, NEEDED["samples"]) in ([], [samples])]
        if there and not mine:
            of_others[name] = f"{shown(there[-1].path)} is of other samples."
        runs[name] = mine[-1].path if mine else None
        if mine and (bases := _given(mine[-1], NEEDED["directions"])) and name == "saliency":
            runs["directions"] = bases[-1]
    return runs, of_others


def _given(run: Traced, stage: str) -> list[Path]:
    """The runs of a stage that one was given, and not only what these were made from."""
    given = [(run.path / known["path"]).resolve() for known in run.manifest["inputs"].values()]
    return [path for path in given if path in run.chain and run.chain[path]["stage"] == stage]


def last(chosen: Chosen, stage: str) -> Path | None:
    """The run of a stage: the last of those shown; else one that these were made from."""
    shown = [run.path for run in chosen.of(stage) if _is_plain(run)]
    behind = [path for path, manifest in chosen.every.items()
              if manifest["stage"] == stage and not manifest["facts"].get("interventions")]  # fmt: skip
    return next(reversed(shown or behind), None)


def _is_plain(run: Traced) -> bool:
    """Whether it is of the agent as it is: an altered recording is none."""
    return not run.manifest["facts"].get("interventions")


class _Known(NamedTuple):
    bases: Mapping[str, Basis]  # the one that is shown first, first
    behaviours: Behaviours | None


def _known(runs: Mapping[str, Path], options: Options) -> _Known:
    bases = bases_in(runs["directions"], options.basis_kind) if "directions" in runs else {}
    if options.only:  # a figure is told in one basis
        bases = dict(list(bases.items())[:1])
    return _Known(bases, load_behaviours(runs["behaviours"]) if "behaviours" in runs else None)


def bases_in(path: Path, first: str, agent: str | None = None) -> dict[str, Basis]:
    """The bases of a run by their kinds, the one asked for first; the neurons only where they are that.

    agent: fingerprint of the agent that they must be of (None: any).  UserError.
    """
    kinds = bases_of(path)
    first = first if first in kinds else kinds[0]
    return {kind: load_basis(path, kind, agent) for kind in (first, *kinds) if kind == first or kind != "neurons"}


def _of_samples(
    chosen: Chosen, runs: Mapping[str, Path], known: _Known, facts: dict[str, Any], options: Options
) -> Iterator[Block]:
    """The facts of the samples, put into ``facts``; and all blocks."""
    store = RolloutStore(runs["samples"])
    steps = min(options.steps + 1, int(store.rows.max()))
    ids = list(options.only) or list(range(min(len(store), options.most)))
    for i in ids:
        if not 0 <= i < len(store):
            raise UserError(f"--only: no sample {i}; there are {len(store)} (0 to {len(store) - 1})")
    starts = np.stack([ids, np.zeros(len(ids), np.int64)], 1)
    course = read.read(store, starts, steps, known.bases, known.behaviours, "sim")
    facts["samples"] = {"ids": ids, **_facts_of(course)}
    facts["world"] = store.spec.env_id
    facts["behaviours"] = _behaviours(course, known.behaviours)
    blocks = _arrays("samples", course)
    real = None if options.only else _real(chosen, runs, store, ids)
    if real is not None:
        along = read.read(real[0], real[1].clip(0), steps, known.bases, known.behaviours, "real")
        along.steps_N[real[1][:, 0] < 0] = 0
        facts["real"] = {"start": real[1].tolist(), **_facts_of(along)}
        blocks += _arrays("real", along)
    told = open_saliency(runs["saliency"]) if "saliency" in runs else None
    picture = read.frames_of(store, starts[:1], 1)
    if options.only:
        _check_figure(options, known, told, picture is not None)
        if told is not None and not (told := told.some(ids)).ids:
            told.close()
            told = None
    if told is not None:
        with artefacts.as_written(runs["saliency"]):
            facts["saliency"] = told.facts(SHADES)
    facts["bases"] = {kind: {"names": basis.names[: most(i)]} for i, (kind, basis) in enumerate(known.bases.items())}
    if known.bases and options.wants("path"):
        blocks += _base(runs["directions"], known, facts)
    for kind, about in facts["bases"].items():
        every = {"samples": course} | ({"real": along} if real is not None else {})
        for name, one in every.items():
            stored, about[name] = levels(one.c[kind][..., : len(about["names"])])
            blocks.append(Block(f"{name}:c:{kind}", pages.bytes_of(stored)))
        if told is not None and options.wants("bars") and (slopes := told.gradients(kind)) is not None:
            about["gradients"] = slopes[1]
            blocks.append(Block(f"gradients:{kind}", pages.bytes_of(slopes[0][..., : len(about["names"])])))
    height, width = (0, 0) if picture is None else picture.shape[2:4]
    framed = [] if picture is None or not options.wants("film", "saliency") else _framed(ids, told, options)
    facts["frames"] = {"ids": framed, "columns": COLUMNS, "height": height, "width": width}
    return _stream(blocks, store, real, framed, ids, steps, told, options.wants("saliency"))


def _check_figure(options: Options, known: _Known, told: Saliency | None, pictures: bool) -> None:
    """UserError where the one view that a figure asks for cannot be drawn of all its samples."""
    view, named = options.view, " ".join(map(str, options.only))
    if view in ("film", "saliency") and not pictures:
        raise UserError(
            f"--view {view} shows pictures, and these samples hold none; --view courses, path and bars do not"
        )
    if view in ("path", "bars") and not known.bases:
        raise UserError(f"--view {view} shows directions, and none were fitted; python -m analysis.hidden_states does")
    if view == "saliency":
        lack = [i for i in options.only if told is None or i not in told.ids or not told.maps]
        if lack:
            raise UserError(f"--view saliency: sample {lack[0]} has no saliency map; python -m analysis.saliency "
                            f"--sample_ids {named} makes it (without --combine_samples_not_iterate)")  # fmt: skip


def _behaviours(course: read.Courses, known: Behaviours | None) -> list[dict[str, Any]]:
    """Every behaviour that has a name or a step: its number, name and colour."""
    names = {} if known is None else known.names
    labels = sorted({int(b) for b in np.unique(course.label_NT) if b >= 0} | set(names))
    colours = pages.label_colours(labels)
    return [{"id": b, "name": names.get(b, f"behaviour {b}"), "colour": colours[b]} for b in labels]


def _facts_of(course: read.Courses) -> dict[str, Any]:
    return {
        "steps": course.steps_N.tolist(), "T": course.value_NT.shape[1], "actions": list(course.actions),
        "choices": list(course.choices), "taken": list(course.taken), "events": list(course.events),
        "return": [round(float(x), 4) for x in np.nansum(course.reward_NT, 1)],
    }  # fmt: skip


def _framed(ids: Sequence[int], told: Saliency | None, options: Options) -> list[int]:
    """The samples that are shown with frames: those that have saliency first."""
    first = [i for i in (told.ids if told is not None else ()) if i in set(ids)]
    rest = [i for i in ids if i not in set(first)]
    return sorted((first + rest)[: max(options.samples, len(options.only))])


def _real(
    chosen: Chosen, runs: Mapping[str, Path], store: RolloutStore, ids: Sequence[int]
) -> tuple[RolloutStore, np.ndarray] | None:
    """The recording that samples start in, and where; None where they do not, or it is gone."""
    known = store.manifest["inputs"].get("rollouts")
    if known is None or chosen.simulator is None:
        return None
    frames = load_simulator(chosen.simulator).world.initial_frames
    rows = read.real_starts(store, ids, frames)
    return RolloutStore((runs["samples"] / known["path"]).resolve()), rows


def levels(x: np.ndarray) -> tuple[np.ndarray, list[list[float]]]:
    """int16 of the last axis' columns, each by itself, and [lowest, step] of each (see core.replay.quantised)."""
    parts = [quantised(x[..., k]) for k in range(x.shape[-1])]
    stored = np.stack([p[0] for p in parts], -1) if parts else np.zeros(x.shape, np.int16)
    return stored, [[p[1], p[2]] for p in parts]


def _arrays(name: str, course: read.Courses) -> list[Block]:
    """A recording's arrays, but for coordinates."""
    prob = np.where(np.isnan(course.prob_NTA), 255, np.rint(course.prob_NTA * 250)).astype(np.uint8)
    arrays = {
        "value": course.value_NT, "reward": course.reward_NT, "action": course.action_NT, "label": course.label_NT,
        "event": course.event_NTE, "prob": prob,
    }  # fmt: skip
    return [Block(f"{name}:{key}", pages.bytes_of(x)) for key, x in arrays.items()]


def most(i: int) -> int | None:
    """How many directions are shown of the i-th basis; None: all."""
    return OTHERS if i else None


def _base(path: Path, known: _Known, facts: dict[str, Any]) -> list[Block]:
    """Points of the scatters: some of the steps that the directions were fitted on."""
    arrays = Result.load(path).arrays
    kinds = [kind for kind in known.bases if f"c_{kind}" in arrays]
    if not kinds:
        return []
    count = len(arrays[f"c_{kinds[0]}"])
    at = np.flatnonzero(arrays["source"] == 0) if "source" in arrays else np.arange(count)
    at = at[np.linspace(0, len(at) - 1, min(BASE, len(at))).astype(int)]
    label = np.full(len(at), read.NOWHERE, np.int16)
    if known.behaviours is not None and "real" in known.behaviours.labels:
        of = {tuple(i): b for i, b in zip(known.behaviours.index["real"].tolist(),
                                          known.behaviours.labels["real"].tolist(), strict=True)}  # fmt: skip
        label = np.array([of.get(tuple(i), read.NOWHERE) for i in arrays["index"][at].tolist()], np.int16)
    facts["base"] = {"n": len(at)}
    blocks = [Block("base:label", pages.bytes_of(label))]
    for kind in kinds:
        about = facts["bases"][kind]
        stored, about["base"] = levels(arrays[f"c_{kind}"][at][:, : len(about["names"])])
        blocks.append(Block(f"base:c:{kind}", pages.bytes_of(stored)))
    return blocks


def _stream(
    blocks: Sequence[Block], store: RolloutStore, real: tuple[RolloutStore, np.ndarray] | None, framed: Sequence[int],
    ids: Sequence[int], steps: int, told: Saliency | None, maps: bool,
) -> Iterator[Block]:  # fmt: skip
    """All blocks: arrays, then sample by sample its frames, its real ones and its maps (if ``maps``).  Closes what it
    reads."""

    def shown(i: int) -> Block:
        frames = read.frames_of(store, np.array([[i, 0]]), steps)
        assert frames is not None
        return Block(f"frames:{i}", pages.sheet(frames[0], COLUMNS), False)

    try:
        if framed:  # the first picture stands first, so that it is drawn while the rest is being read
            yield shown(framed[0])
        yield from blocks
        row_of = {i: n for n, i in enumerate(ids)}
        for i in framed:
            if i != framed[0]:
                yield shown(i)
            if real is not None and real[1][row_of[i], 0] >= 0:
                beside = read.frames_of(real[0], real[1][[row_of[i]]], steps)
                if beside is not None:
                    yield Block(f"real:{i}", pages.sheet(beside[0], COLUMNS), False)
            if maps and told is not None and i in told.ids:
                yield Block(f"maps:{i}", told.maps_of(i, SHADES))
    finally:
        store.close()
        if real is not None:
            real[0].close()
        if told is not None:
            told.close()
