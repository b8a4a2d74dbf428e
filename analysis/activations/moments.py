"""From a cluster to moments: exemplars of every cluster, each with a link to its tick in the replay of its world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from analysis.activations.records import Records
from analysis.lives.recorded import Clusters, open_lives
from analysis.lives.world_replay import replay_of
from core.artefacts import Result, write_atomically
from core.contracts import UserError
from core.pages import html, label_colours, label_name
from core.replay import page as replay_page

FILE = "moments.html"
MOST_WORLDS = 12  # that get a page: about 0.4 MB each
SHOWN = ("self_health", "self_food", "self_water", "in_combat", "n_visible_players", "n_visible_npcs")  # features


def moments(
    x_NX: np.ndarray, label_N: np.ndarray, probability_N: np.ndarray, records: Records, most: int
) -> list[dict[str, Any]]:
    """Exemplars: of every cluster the records nearest to its middle (the median of where it was clustered) among those
    that HDBSCAN is surest of, one a life, with where to see them (``analysis.replay``, ``analysis.life``)."""
    out: list[dict[str, Any]] = []
    for c in range(int(label_N.max()) + 1):
        mine = np.flatnonzero(label_N == c)
        sure = mine[probability_N[mine] >= np.median(probability_N[mine])]
        away = np.linalg.norm(x_NX[sure] - np.median(x_NX[mine], axis=0), axis=1)
        seen: set[int] = set()
        for n in sure[np.argsort(away, kind="stable")]:
            life = int(records.lives.life_N[n])
            if life in seen or len(seen) == most:
                continue
            seen.add(life)
            episode, t = (int(v) for v in records.index_N2[n])
            out.append({"cluster": c, "episode": episode, "t": t, **records.about.get(episode, {})})
            out[-1]["tick"] = t + out[-1].get("first_tick", 0)
    return out


def write(result: Result, extraction: Path, out: Path) -> None:
    """``moments.html``, and ``replay_W.html`` of the worlds of the moments (of MOST_WORLDS, those of the best exemplars
    of every cluster first).  An extraction without places has no replays: the page says so."""
    rows = result.tables["moments"]
    rank = {id(row): i - [r["cluster"] for r in rows].index(row["cluster"]) for i, row in enumerate(rows)}
    by_rank = sorted(rows, key=lambda row: rank[id(row)])
    worlds = list(dict.fromkeys(row["world"] for row in by_rank if row.get("world", -1) >= 0))
    clusters = Clusters(result.arrays["index"], result.arrays["label"])
    made, why = [], "" if worlds else "the extraction does not say who lived in which world"
    with open_lives(extraction) as store:
        for world in worlds[:MOST_WORLDS]:
            try:
                replay = replay_of(store, world, clusters, "nearest", str(store.manifest["facts"].get("policy") or ""))
            except UserError as error:
                why = str(error)
                break
            write_atomically(out / f"replay_{world}.html", replay_page(replay).encode())
            made.append(world)
    write_atomically(out / FILE, page(result, extraction, made, why).encode())


def page(result: Result, extraction: Path, worlds: Sequence[int], why: str) -> str:
    """The table of moments; worlds: those with a replay beside it; why: there are none."""
    rows, names = result.tables["moments"], result.notes["features"]
    features = [name for name in SHOWN if name in names]
    place = {(int(e), int(t)): n for n, (e, t) in enumerate(result.arrays["index"])}
    colours, verdicts = label_colours(result.arrays["label"]), result.notes.get("verdicts", {})
    body = [
        "<h1>Moments of every cluster</h1><p class='soft'>The records nearest to the middle of a cluster, among those "
        "HDBSCAN is surest of; each of another life.</p>"
    ]
    if why:
        body.append(f"<p class='soft'>No replays: {escape(why)}.</p>")
    elif len({row["world"] for row in rows}) > len(worlds):
        body.append(
            f"<p class='soft'>Worlds with a replay beside this page: {len(worlds)}; another: <code>python -m "
            f"analysis.replay {escape(str(extraction))} --cluster_dir DIR --world W</code>.</p>"
        )
    for c in dict.fromkeys(row["cluster"] for row in rows):
        said = verdicts.get(str(c), {})
        about = (
            f": {escape(str(said['verdict']))} <span class='soft'>({escape(str(said['why']))})</span>" if said else ""
        )
        swatch = f"<span class='swatch' style='background:{colours[c]}'></span>"
        head = "".join(f"<th class='n'>{escape(name.replace('_', ' '))}</th>" for name in features)
        body.append(
            f"<h2>{swatch}{label_name(c)}{about}</h2><table><tr><th>moment</th><th class='n'>episode</th>"
            f"<th class='n'>step</th>{head}</tr>"
        )
        for row in (row for row in rows if row["cluster"] == c):
            values = result.arrays["features"][place[row["episode"], row["t"]]]
            cells = "".join(f"<td class='n'>{values[names.index(name)]:g}</td>" for name in features)
            body.append(
                f"<tr><td>{_moment(row, worlds)}</td><td class='n'>{row['episode']}</td><td class='n'>{row['t']}</td>"
                f"{cells}</tr>"
            )
        body.append("</table>")
    return html("Moments of every cluster", STYLE, "".join(body))


STYLE = """
body { max-width: 62rem; margin: 0 auto; padding: 1rem; font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.soft { color: var(--soft); font-weight: 400; }
table { width: 100%; }
td, th { text-align: left; padding: .15rem .6rem .15rem 0; border-bottom: 1px solid var(--line); }
.swatch { display: inline-block; width: .85rem; height: .85rem; border-radius: 3px; margin-right: .4rem; }
"""


def _moment(row: Mapping[str, Any], worlds: Sequence[int]) -> str:
    """What a moment is called, a link where its world has a page."""
    parts = [f"{name} {row[name]}" for name in ("world", "agent") if row.get(name, -1) >= 0]
    name = ", ".join([*parts, f"tick {row['tick']}"])
    if row.get("world") not in worlds:
        return name
    who = f"&amp;agent={row['agent']}" if "agent" in row else ""
    return f"<a href='replay_{row['world']}.html#tick={row['tick']}{who}'>{name}</a>"
