"""The page of moments of clusters: its links lead to replays that are beside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from analysis.activations import moments
from analysis.lives.recorded import FEATURES, feature_names, open_lives, worlds_of
from core.artefacts import Result


def test_moments_lead_into_the_replays_of_their_worlds(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    result = Result.load(clusters)
    index, label = result.arrays["index"], result.arrays["label"]
    with open_lives(extraction) as store:
        world, names = worlds_of(store), feature_names(store)
        features = [store.pooled(FEATURES, episodes=[int(e)])[0][FEATURES][t] for e, t in index]
        metas = [store.meta(e) for e in range(len(store))]
    result.arrays["features"], result.notes["features"] = np.stack(features), names
    rows = []
    for c in np.unique(label[label >= 0]):
        for n in np.flatnonzero(label == c)[:2]:
            e, t = (int(v) for v in index[n])
            first = int(metas[e].get("first_tick") or 0)
            rows.append({"cluster": int(c), "episode": e, "t": t, "world": int(world[e]), "first_tick": first,
                         "agent": int(metas[e]["agent"]), "tick": first + t})  # fmt: skip
    result.tables["moments"] = rows
    moments.write(result, extraction, tmp_path)
    text = (tmp_path / moments.FILE).read_text()
    links = re.findall(r"href='(replay_(\d+)\.html)#tick=(\d+)&amp;agent=(\d+)'", text)
    assert [(int(w), int(t), int(a)) for _, w, t, a in links] == [(r["world"], r["tick"], r["agent"]) for r in rows]
    assert {file for file, *_ in links} == {p.name for p in tmp_path.glob("replay_*.html")}
    assert "://" not in text and text.count("<h2>") == len({row["cluster"] for row in rows})


def test_of_many_worlds_the_best_exemplars_get_replays_and_without_places_none(
    extraction: Path, clusters: Path, tmp_path: Path
) -> None:
    result = Result.load(clusters)
    result.arrays["features"] = np.zeros((len(result.arrays["index"]), 1))
    result.notes["features"] = ["tick"]
    e, t = (int(v) for v in result.arrays["index"][0])
    row = {"cluster": 0, "episode": e, "t": t, "tick": t}
    result.tables["moments"] = [row]  # of nobody knows which world
    moments.write(result, extraction, tmp_path)
    text = (tmp_path / moments.FILE).read_text()
    assert "No replays: the extraction does not say who lived in which world." in text and "<a " not in text
    result.tables["moments"] = [row | {"world": w, "agent": 1} for w in range(3)]
    shown = moments.page(result, extraction, [1], "")
    assert shown.count("<a ") == 1 and "Worlds with a replay beside this page: 1;" in shown
