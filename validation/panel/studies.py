"""The studies that are not of one agent in its simulator, as views of the panel: clusters and lives of Neural MMO's
policies, what probes read, the clusters inside a policy; and the simulator's own states.

Each view is of one run and shows what its result holds: points to colour and to point at, bars with intervals, courses
over time, tables and figures.  N points, T ticks.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from core import artefacts, pages
from core.artefacts import Result
from core.figures import are_pictures
from core.stages import OF_POLICIES, STAGES, written
from core.stats import between
from validation.panel.contents import COLUMNS, Block
from validation.panel.page import View
from validation.report.contents import AGAIN, made_by
from validation.report.lineage import Chosen, Traced, shown, traced
from validation.report.page import command, estimate, number, paragraph, picture, table, text_of

POINTS = 4000  # of a run that has more, so many at even distances are shown
LIVES = 12  # courses that are shown
SUREST = 6  # of what a code is about, of every code
SOURCES = {0: "real", 1: "simulated"}
POSITIONAL = ("extraction", "directory")  # inputs that are typed without their flag
TITLES = {
    "activations": "Clusters", "life": "Lives", "life_phase": "Phases of life", "probes": "Probes",
    "semantics": "Semantic clusters", "env_states": "World states", "latents": "Latents",
    "target_functions": "Target functions",
}  # fmt: skip
DOES = {stage: STAGES[stage].does for stage in TITLES}
OF_A_SIMULATOR = ("env_states", "latents", "target_functions")
NO_STUDIES = frozenset({"panel", "report", "bundle", "export", "doctor", "demo"})
MEANS = ("before", "after", "over_control", "noisy_gain")  # of a target
OPTIMISED = 6  # starts that are shown of a target


@dataclass
class Study:
    """What a view shows.  charts: for studies.js; html: tables and figures below them."""

    html: list[str] = field(default_factory=list)
    charts: dict[str, Any] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def points(
        self, name: str, index_N2: np.ndarray, maps: Mapping[str, np.ndarray], colours: Sequence[Mapping[str, Any]]
    ) -> None:
        """A cloud.  maps: {what it is: [N, 2]}; colours: see ``labels`` and ``numbers``; the same are told of a point
        that is pointed at."""
        rows = np.linspace(0, len(index_N2) - 1, min(POINTS, len(index_N2))).astype(int)

        def put(key: str, x: np.ndarray, dtype: Any) -> str:
            self.blocks.append(Block(f"study:{name}:{key}", pages.bytes_of(np.asarray(x)[rows].astype(dtype))))
            return self.blocks[-1].name

        self.charts["points"] = {
            "n": len(rows), "of": len(index_N2), "index": put("index", index_N2, np.int32),
            "maps": [{"name": what, "block": put(f"map{i}", xy[:, :2], np.float32)}
                     for i, (what, xy) in enumerate(maps.items())],
            "colours": [{**{k: v for k, v in c.items() if k != "x"}, "block": put(f"colour{i}", c["x"], np.float32)}
                        for i, c in enumerate(colours)],
        }  # fmt: skip

    def bars(self, title: str, unit: str, rows: Sequence[Mapping[str, Any]], least: float | None = None) -> None:
        """Groups of bars with intervals.  rows: {name, n, bars: [[series, value, low, high]]}; least: where the axis is
        cut, with a mark, if anything lies below."""
        self.charts["bars"] = {"title": title, "unit": unit, "rows": list(rows), "least": least}

    def courses(self, charts: Sequence[Mapping[str, Any]], across: str) -> None:
        """Courses, one chosen at a time.  charts: {name, x, unit, lines: [{name, y, low, high, colour}], strip}."""
        self.charts["courses"] = {"across": across, "each": list(charts)}

    def tables(self, result: Result, told: Mapping[str, tuple[str, Sequence[str]]]) -> None:
        """Those that are there.  told: {table: (caption, columns)}."""
        for name, (caption, columns) in told.items():
            if rows := result.tables.get(name):
                titles = {c: c.replace("_", " ") for c in columns if any(c in row for row in rows)}
                self.html.append(table(rows, caption, titles, most=60))

    def scalars(self, result: Result) -> None:
        """All of them, with their units and intervals."""
        rows = [{"what": name.replace("_", " "), "value": estimate(s)} for name, s in result.scalars.items()]
        if rows:
            self.html.append(table(rows, "In numbers", most=40))

    def pictures(self, path: Path, names: Mapping[str, str]) -> None:
        for name, caption in names.items():
            if (path / name).exists():
                self.html.append(picture(path / name, caption, caption, wide=True))


def labels(name: str, x: np.ndarray, names: Mapping[int, str] | None = None) -> dict[str, Any]:
    """A colour by label."""
    each = [int(v) for v in np.unique(x)]
    colours = pages.label_colours(each)
    told = [{"id": v, "name": (names or {}).get(v, pages.label_name(v)), "colour": colours[v]} for v in each]
    return {"name": name, "x": x, "labels": told}


def numbers(name: str, x: np.ndarray, unit: str = "") -> dict[str, Any]:
    """A colour by a number."""
    return {"name": name, "x": x, "unit": unit, "scale": pages.colour_scale("viridis", 32)}


# ---------------------------------------------------------------------------- stage by stage


def _activations(run: Traced, result: Result, name: str) -> Study:
    study, arrays = Study(), result.arrays
    said = result.notes.get("said")
    if said:
        study.html.append(paragraph(f"{result.notes.get('verdict', '')}: {said}."))
    features = arrays["features"]
    colours = [labels("cluster", arrays["label"])] if "label" in arrays else []
    colours += [numbers(what, features[:, i]) for i, what in enumerate(result.notes["features"])]
    maps = {what: arrays[key] for key, what in (("umap", "UMAP"), ("pca", "principal components"))
            if key in arrays and arrays[key].shape[1] > 1}  # fmt: skip
    if maps:
        study.points(name, arrays["index"], maps, colours)
    else:
        study.html.append(paragraph("The activations vary in one direction only, so there is no map."))
    columns = ("cluster", "records", "share", "lives", "units", "verdict", "why")
    study.tables(result, {"clusters": ("What the clusters are about", columns)})
    study.scalars(result)
    study.pictures(run.path, {"cluster_features.png": "Effect of each feature on each cluster"})
    return study


def _life(run: Traced, result: Result, name: str) -> Study:
    """Courses of every life that was drawn, with its clusters below."""
    study = Study()
    rows = result.tables["timeline"]
    charts = []
    for life in result.tables["lives"][:LIVES]:
        mine = [row for row in rows if row["episode"] == life["episode"]]
        lines = [{"name": what, "y": [_short(row.get(what)) for row in mine]} for what in result.notes["features"]
                 if what != "tick" and what in mine[0]]  # fmt: skip
        strip = [row["label"] for row in mine] if "label" in mine[0] else []
        colours = pages.label_colours(strip) if strip else {}
        charts.append({
            "name": f"life {life['episode']}, agent {life['agent']}, {len(mine)} ticks", "n": 1,
            "x": [row["tick"] for row in mine], "unit": "as recorded", "lines": lines, "one": True,
            "strip": [colours[v] for v in strip], "strip_names": [pages.label_name(v) for v in strip],
        })  # fmt: skip
    study.courses(charts, "tick")
    if not any(chart["strip"] for chart in charts):
        study.html.append(
            paragraph("No clusters were given; --cluster_dir CLUSTERS colours every tick by its cluster.")
        )
    study.tables(result, {"lives": ("The lives", list(result.tables["lives"][0]))})
    study.scalars(result)
    return study


def _life_phase(run: Traced, result: Result, name: str) -> Study:
    """How much of every part of life a label has, with intervals."""
    study, arrays = Study(), result.arrays
    each = [int(v) for v in arrays["label"]]
    colours = pages.label_colours(each)
    bins = arrays["share"].shape[1]
    lines = [{"name": pages.label_name(v), "y": _all(arrays["share"][i]), "low": _all(arrays["share_low"][i]),
              "high": _all(arrays["share_high"][i]), "colour": colours[v]} for i, v in enumerate(each)]  # fmt: skip
    if lines:
        charts = [{"name": "all labels", "n": result.notes["lives"], "unit": "share of rows", "lines": lines,
                   "x": [_short((b + 0.5) / bins) for b in range(bins)], "strip": []}]  # fmt: skip
        study.courses(charts, "share of life lived")
    columns = ("label", "rows", "lives", "mean_phase", "p", "q")
    ends = ("label", "deaths", "units", "share_of_ends", "low", "high", "share_of_lives", "p", "q")
    study.tables(result, {"clusters": ("Which labels follow phase", columns), "ends": ("At the end of life", ends)})
    study.scalars(result)
    return study


SCORES = {"linear": "linear probe", "mlp": "small network", "time": "time alone", "given": "what is given", "frame":
          "the frame", "action": "previous actions", "all": "frame, time and actions", "random": "shuffled weights",
          "observation": "the observation", "linear_shuffled": "exchanged targets"}  # fmt: skip


def _probes(run: Traced, result: Result, name: str) -> Study:
    """How well every quantity is read, beside what else would say it."""
    study = Study()
    rows = result.tables["targets"]
    there = [key for key in SCORES if any(_short(row.get(key)) is not None for row in rows)]
    study.bars("How well each quantity is read", "R²", [
        {"name": row["target"], "n": _short(row.get("n")), "told": row.get("verdict", ""), "bars": [
            [SCORES[key], _short(row.get(key)), _short(row.get(f"{key}_low")), _short(row.get(f"{key}_high"))]
            for key in there]}
        for row in rows
    ], least=-1)  # fmt: skip
    each = [{"target": row["target"], "what of it stays": row.get("verdict", ""), "memory": row.get("memory") or "",
             "learnt": row.get("learnt") or "", "R²": _ends(row, "linear"),
             "beyond what is given": _ends(row, "partial"), "n": row.get("n")} for row in rows]  # fmt: skip
    study.html.append(table(each, f"States {result.notes.get('states', '')}, by {result.notes['unit']}", most=80))
    if found := result.tables.get("inputs"):
        each = [{"quantity": row["target"], "input": row["input"], "score": _ends(row, "score"),
                 "is": "R²" if row["metric"] == "r2" else row["metric"].replace("_", " "),
                 "with exchanged targets": row.get("exchanged"), "more than those": _ends(row, "selectivity"),
                 "split by step": row.get("by_step"), "n": row["n"]} for row in found]  # fmt: skip
        study.html.append(table(each, "What each input says, linearly", most=200))
    if found := result.tables.get("advantages"):
        each = [{"quantity": row["target"], "input": row["input"], "over": row["over"], "probe": row["probe"],
                 "says more by": _ends(row, "advantage"), "q": row.get("q"), "more?": row["verdict"], "n": row["n"]}
                for row in found]  # fmt: skip
        study.html.append(table(each, "What the state says beyond other inputs", most=200))
    for more, caption in (("emergence", "When in training"), ("agents", "Other agents")):
        if found := result.tables.get(more):
            study.html.append(table(found, caption, most=60))
    study.pictures(run.path, {"mediation.png": "What stays without the obvious", "inputs.png": "Other inputs",
                              "emergence.png": "When in training", "agents.png": "Other agents"})  # fmt: skip
    return study


def _semantics(run: Traced, result: Result, name: str) -> Study:
    """Codes of a policy, where the run is of one; learning curves, where it drew some."""
    study = Study()
    if "names" in result.notes:
        _codes(study, run, result, name)
    if result.tables.get("curve_ends"):
        columns = ("method", "game", "split", "seeds", "return", "low", "high", "steps")
        study.tables(result, {"curve_ends": ("Where learning curves end", columns)})
        study.pictures(run.path, {"curves.png": "Learning curves: mean of each method, with its interval over seeds"})
    return study


def _codes(study: Study, run: Traced, result: Result, name: str) -> None:
    """What the codes of a policy are."""
    arrays = result.arrays
    names = {int(c): said for c, said in result.notes["names"].items()}
    if "plane" in arrays:
        maps = {"plane of the codes": arrays["plane"], "t-SNE of the features": arrays["tsne"]}
        study.points(name, arrays["tsne_index"], maps, [labels("code", arrays["code"], names)])
    else:
        study.html += [paragraph("No embeddings were made; to make them:"), command(_with_embeddings(run, result))]
    for row in (*result.tables.get("use", ()), *result.tables.get("matches", ())):
        row.setdefault("name", names.get(row.get("code", -1), ""))
    effects = result.tables.get("effects", [])
    mine = {code: [row for row in effects if row["code"] == code] for code in names}  # the surest stand first
    result.tables["effects"] = [row for rows in mine.values() for row in rows[:SUREST]]
    study.tables(result, {
        "use": ("How much every code is used", ("code", "name", "states", "share", "units", "run_length", "value")),
        "silhouettes": ("Separation", ("labels", "space", "silhouette", "rows")),
        "runs": ("How long a code lasts", ("labels", "run_length", "low", "high", "rows", "episodes", "surrogates")),
        "agreement": ("Agreement with others", ("with", "kind", "ari", "ari_rotated", "nmi", "nmi_rotated", "n")),
        "matches": (f"Descriptions and codes, {result.notes.get('matches_are', '')}", (
            "description", "verdict", "code", "name", "phi", "low", "high", "q_rotated", "q_exchanged", "levels")),
        "effects": (f"What the codes are about: the {SUREST} surest of each", (
            "name", "what", "kind", "d", "low", "high", "steps", "n")),
    })  # fmt: skip
    study.scalars(result)


def _with_embeddings(run: Traced, result: Result) -> str:
    """What makes a run again with embeddings, beside it; of all states where there are fewer than it asked for."""
    config = artefacts.load_json(run.path, "config.json")["config"]
    given = {name: (run.path / run.manifest["inputs"][name]["path"]).resolve() for name in ("agent", "rollouts")}
    words = [*config["make"], "embeddings", "--config", shown(run.path / "config.json")]
    words += [word for name, path in given.items() for word in (f"--{name}", shown(path))]
    if (there := int(result.notes["states"])) < config["embedding_states"]:
        words += ["--embedding_states", str(there)]
    words += ["--out", f"{shown(run.path)}_embeddings"]
    return f"python {STAGES['semantics'].command} {shlex.join(words)}"


def _states(run: Traced, result: Result, name: str) -> Study:
    """Directions of the simulator's world state, or of the latents that simulations start from."""
    study, arrays = Study(), result.arrays
    source = arrays["source"]
    colours = [labels("cluster", arrays["cluster"])] if len(arrays.get("cluster", ())) == len(source) else []
    colours += [labels("source", source, SOURCES), numbers("value", arrays["value"], "return")]
    maps = {f"{key.removeprefix('c_')}:{k} and {k + 1}": x[:, k : k + 2] for key, x in arrays.items()
            if key.startswith("c_") and x.ndim == 2 for k in (0, 2, 4) if x.shape[1] > k + 1}  # fmt: skip
    pick = arrays["map_row"]  # the states that were put on the map
    maps = {"map": arrays["map"], **{what: x[pick] for what, x in maps.items()}}
    colours = [{**c, "x": np.asarray(c["x"])[pick]} for c in colours]
    study.points(name, arrays["index"][pick], maps, colours)
    study.tables(result, {
        "explained": ("Variance held by components", ("components", "share", "low", "high", "n")),
        "ica": ("Stability of the directions", ("direction", "stability", "match", "explained")),
        "overlap": ("Real against simulated", ("measure", "simulated", "low", "high", "floor", "unit", "n", "reason",
                                               "interval_reason", "floor_reason")),
    })  # fmt: skip
    study.scalars(result)
    return study


def _target_functions(run: Traced, result: Result, name: str) -> Study:
    """Per target function, what starts show before and after they were optimised for it."""
    study, arrays, each = Study(), result.arrays, []
    for i, (label, about) in enumerate(result.notes["targets"].items()):
        fact: dict[str, Any] = {
            "name": f"{about['name']} {'up' if about['sign'] > 0 else 'down'}",
            "unit": about["unit"],
        }
        pair = [arrays[f"{result.notes['field']}_{when}_{label}"][:OPTIMISED] for when in ("before", "after")]
        fact["traces"] = [
            [_all(row) for row in arrays[f"trace_{when}_{label}"][:OPTIMISED]] for when in ("before", "after")
        ]
        if are_pictures(pair[0], 2):
            both = np.stack(pair, 1)  # [S, 2, T, H, W, channels]
            _, _, steps, height, width, _ = both.shape
            sheet = pages.sheet(both.reshape(-1, *both.shape[3:]), COLUMNS)
            study.blocks.append(Block(f"film:{name}_{i}", sheet, False))
            fact |= {"block": study.blocks[-1].name, "steps": steps, "height": height, "width": width}
        each.append(fact)
    study.charts["targets"] = each
    columns = ("target", "sense", "unit", *MEANS, "n", "q", "reason")
    rows = [{c: row.get(c) if c not in MEANS else _ends(row, c) for c in columns} for row in result.tables["targets"]]
    study.html.append(table(rows, "What was reached, means over starts", most=40))
    return study


SHOWN: dict[str, Callable[[Traced, Result, str], Study]] = {
    "activations": _activations, "life": _life, "life_phase": _life_phase, "probes": _probes,
    "semantics": _semantics, "env_states": _states, "latents": _states,
    "target_functions": _target_functions,
}  # fmt: skip


# What each of them reads; a run of an earlier version may lack some of it.
REQUIRED = {
    "activations": ("index", "features"), "life": ("timeline", "lives", "features"),
    "life_phase": ("label", "share", "share_low", "share_high", "lives"), "probes": ("targets", "unit"),
    "semantics": ("names",), "env_states": ("index", "source", "value", "map", "map_row"),
    "latents": ("index", "source", "value", "map", "map_row"), "target_functions": ("targets", "field"),
}  # fmt: skip


def lacks(stage: str, result: Result) -> list[str]:
    """What a result of a stage should hold and does not."""
    if stage == "semantics" and result.tables.get("curve_ends"):
        return []  # learning curves can be drawn of no policy
    return [name for name in REQUIRED[stage] if name not in {*result.arrays, *result.tables, *result.notes}]


# ---------------------------------------------------------------------------- the views


@dataclass(frozen=True)
class Studies:
    """Views of studies, what studies.js is told of each, and the arrays behind them."""

    views: list[View]
    facts: dict[str, Any]
    blocks: list[Block]
    left_out: tuple[str, ...] = ()


def find(roots: Sequence[Path], chosen: Chosen | None) -> tuple[list[Traced], tuple[str, ...]]:
    """The runs of studies among directories and those in them, and why others are left out: they are of another
    agent than the page is."""
    runs: dict[Path, Traced] = {}
    left_out: list[str] = []
    for root in roots:
        found, broken = traced(root, SHOWN)
        left_out += broken
        for run in found:
            ours = None if chosen is None else {agent for r in chosen.runs for agent in r.agents}
            if ours and run.agents and not ours & set(run.agents):
                left_out.append(f"{shown(run.path)} is left out: it is of another agent.")
            else:
                runs.setdefault(run.path.resolve(), run)
    return list(runs.values()), tuple(left_out)


def without_view(
    roots: Sequence[Path], chosen: Chosen | None, about: Sequence[Traced], said: Sequence[str]
) -> list[str]:
    """Why the other runs there are on no page: of another agent, or of a stage that the panel has no view of.  Not of
    what the page stands on, nor of pages and copies of runs.  about: the studies that are shown; said: what was."""
    behind = {*(path for run in about for path in run.chain), *(chosen.every if chosen else ())}
    ours = set() if chosen is None else {agent for run in chosen.runs for agent in run.agents}
    out: list[str] = []
    for root in roots:
        found, broken = traced(root, STAGES.keys() - NO_STUDIES)
        out += broken
        for run in found:
            if run.path.resolve() in behind:
                continue
            why = f"the panel has no view of {STAGES[run.stage].command.removeprefix('-m ')}"
            if ours and run.agents and not ours & set(run.agents):
                why = "it is of another agent"
            out.append(f"{shown(run.path)} is left out: {why}.")
    known = {words.partition(" is left out: ")[0] for words in said}
    return [words for words in dict.fromkeys(out) if words.partition(" is left out: ")[0] not in known]


def studies(runs: Sequence[Traced], chosen: Chosen | None, out: Path) -> Studies:
    """A view of every run; and one that says what makes those that are not there."""
    made = Studies([], {}, [])
    for run in runs:
        stage = run.stage
        name = stage if f"study_{stage}" not in made.facts else f"{stage}_{len(made.facts)}"
        result = Result.load(run.path)
        if missing := lacks(stage, result):
            words = (
                f"An earlier version made this run: it has no {', '.join(missing)}. The command above makes it again."
            )
            study = Study([paragraph(words)])
        else:
            with artefacts.as_written(run.path):
                study = SHOWN[stage](run, result, name)
        title = TITLES[stage] + (f": {run.path.name}" if sum(r.stage == stage for r in runs) > 1 else "")
        again = ["--config", shown(run.path / "config.json"), "--out", shown(out.parent / AGAIN / run.path.name)]
        line = f"python {STAGES[stage].command} {shlex.join(again)}"
        head = f"<h2>{text_of(title)}</h2>{paragraph(f'{shown(run.path)}: {DOES[stage]}.')}"
        body = f'<div class="read">{head}<div class="charts"></div>{"".join(study.html)}</div>'
        made.views.append(View(f"study_{name}", title, body, line))
        made.facts[f"study_{name}"] = study.charts
        made.blocks.extend(study.blocks)
    have = {run.stage for run in runs}
    not_run = list(_missing(have, runs, chosen))
    if not_run:
        rows = "".join(f"<dt>{text_of(title)}</dt><dd>{text_of(words)} {command(line)}</dd>"
                       for title, words, line in not_run)  # fmt: skip
        body = f'<div class="read"><h2>More studies</h2>{paragraph("Not run yet; to make one:")}<dl>{rows}</dl></div>'
        made.views.append(View("more", "More studies", body))
    return made


def _missing(have: set[str], runs: Sequence[Traced], chosen: Chosen | None) -> Iterator[tuple[str, str, str]]:
    """(title, what it does, the command) of the studies that could be made and are not there."""
    policies = any(run.stage in OF_POLICIES and run.stage != "probes" for run in runs)
    if chosen is not None:
        for stage in OF_A_SIMULATOR:
            if stage not in have and chosen.simulator is not None:
                line = made_by(stage, chosen).line + " --maximise value_drop" * (stage == "target_functions")
                yield TITLES[stage], f"{DOES[stage]}.", line
    known: dict[str, Path] = {}
    for run in runs:
        for path, manifest in run.chain.items():
            flags = {"extract_activations": ("extraction", "directory"), "activations": ("cluster_dir",)}
            for flag in flags.get(str(manifest["stage"]), ()):
                known.setdefault(flag, path)
    truth = "of a recording with --truth all (python record.py)"
    if chosen is not None:
        known["agent"] = chosen.agent
        for path, manifest in chosen.every.items():
            if manifest["stage"] == "record":
                known |= {"rollouts": path, "extraction": path}
    wanted = [*(("activations", "life", "life_phase") if policies else ()), "probes"]
    wanted += ["semantics"] * (chosen is not None and (chosen.agent / "semantic.json").exists())
    for stage in wanted:
        if stage in have:
            continue
        words: list[str] = []
        for flag in STAGES[stage].needs:
            where = shown(known[flag]) if flag in known else str(written(flag))
            words += [where] if flag in POSITIONAL else [f"--{flag}", where]
        does = f"{DOES[stage]}{', ' + truth if stage == 'probes' and not policies else ''}."
        yield TITLES[stage], does, f"python {STAGES[stage].command} {shlex.join(words)}"


def first_page(runs: Sequence[Traced], left_out: Sequence[str], made: Studies) -> View:
    """The first view of a page without an agent: which studies it holds, each a link."""
    links = "".join(f'<li><a href="#view={view.id}">{text_of(view.heading)}</a></li>' for view in made.views)
    told = "".join(paragraph(words) for words in left_out)
    shows = "1 run is shown." if len(runs) == 1 else f"{number(len(runs))} runs are shown."
    return View("answer", "Studies", f'<div class="read"><h2>Studies</h2>{paragraph(shows)}'
                                     f"<ul>{links}</ul>{told}</div>")  # fmt: skip


def _short(x: Any) -> float | None:
    """Four digits, or None for what is no number."""
    if x is None or isinstance(x, str) or not np.isfinite(x):
        return None
    return float(f"{x:.4g}")


def _all(x: np.ndarray) -> list[float | None]:
    return [_short(v) for v in x]


def _ends(row: Mapping[str, Any], key: str) -> str:
    """A number with its interval."""
    value, low, high = (_short(row.get(f"{key}{end}")) for end in ("", "_low", "_high"))
    return number(value) + between(low, high, number)
