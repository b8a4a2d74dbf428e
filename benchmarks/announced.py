"""How much of an agent's deaths its hidden state announces: the numbers and the picture of docs/study.md.

    python -m benchmarks.announced runs/demo runs/held_out ica:1 'ica:1 above 5' runs/announced.png

The demo's runs (directions, behaviours), a recording, the direction that is drawn, and the states that are asked about,
as --start_when of validation.interventions names them: beyond a number, or behaviour=7.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from core.directions import direction_ids, load_basis
from core.episodes import RolloutStore
from core.stats import Estimate, between, bootstrap_mean
from core.when import load_rule
from validation.interventions.start_when import where_started

SOON, BINS, BEFORE = 8, (-np.inf, -1, 1, 2, 3, 5, np.inf), 16


def main(demo: Path, recording: Path, direction: str, where: str, picture: Path) -> None:
    import torch  # after core, which says how its threads wait

    basis = load_basis(demo / "hidden_states", "ica")
    when = where_started([where], basis, load_rule(demo / "behaviours"))
    assert when is not None
    (k,) = direction_ids([direction], basis, "the direction")
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("episode", "c", "value", "inside", "dies")}
    ends: dict[str, list[np.ndarray]] = {"death": [], "reward": []}
    with RolloutStore(recording) as store:
        for e, episode in enumerate(store):
            n = episode.steps
            h = torch.from_numpy(episode.h[:n]).float()
            end = "death" if episode.terminated and episode.reward.sum() <= 0 else "reward"
            dies = np.arange(n) >= (n - SOON if end == "death" else n)
            c = basis.project(h)[:, k].numpy()
            found = (np.full(n, e), c, episode.value[:n], when.holds(h).numpy(), dies)
            for name, x in zip(rows, found, strict=True):
                rows[name].append(x)
            if episode.terminated and n >= BEFORE:
                ends[end].append(np.stack([c[-BEFORE:], episode.value[n - BEFORE : n]], 1))
    episode_N, c_N, value_N, inside_N, dies_N = (np.concatenate(x) for x in rows.values())
    rng = np.random.default_rng(0)

    def said(what: str, hit: np.ndarray, of: np.ndarray) -> None:
        share = bootstrap_mean(hit, of, rng=rng)
        print(f"{what}: {in_digits(share)} ({len(hit):,} rows of {share.n:,} episodes)")

    for side, here in (("at", inside_N), ("at no", ~inside_N)):
        said(f"dies within {SOON} steps, {side} steps {when.words}", dies_N[here], episode_N[here])
    deaths = np.unique(episode_N[dies_N])
    told = np.isin(deaths, episode_N[inside_N & dies_N])
    said(f"deaths with a step {when.words} among their last {SOON}", told, deaths)
    entered = np.unique(episode_N[inside_N])
    said(f"episodes with a step {when.words} that end in a death", np.isin(entered, deaths), entered)
    binned = np.digitize(c_N, BINS[1:-1])
    found = [bootstrap_mean(dies_N[binned == i], episode_N[binned == i], rng=rng) for i in range(len(BINS) - 1)]
    for low, high, share in zip(BINS[:-1], BINS[1:], found, strict=True):
        print(f"{direction} {low:g} to {high:g}: dies within {SOON} {in_digits(share)}")
    draw(found, ends, direction, picture)


def in_digits(share: Estimate) -> str:
    return f"{share.value:.3f}{between(share.low, share.high, '.3f')}"


def draw(found: list, ends: dict[str, list[np.ndarray]], direction: str, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3), layout="constrained")
    at = np.arange(len(found))
    value = np.array([f.value for f in found])
    left.errorbar(
        at, value, [value - [f.low for f in found], [f.high for f in found] - value], fmt="o", color="#1d2b3a"
    )
    left.set_xticks(at, ["< −1", "−1 to 1", "1 to 2", "2 to 3", "3 to 5", "> 5"])
    left.set(xlabel=f"{direction}, standard deviations", ylabel=f"share that dies within {SOON} steps", ylim=(0, 1))
    t = np.arange(-BEFORE, 0)
    rng = np.random.default_rng(0)
    for end, colour in (("death", "#c0392b"), ("reward", "#2e7d32")):
        if not ends[end]:  # of no episode there is no course
            continue
        x_ET2 = np.stack(ends[end])
        for axes, i in ((middle, 0), (right, 1)):
            of_t = [bootstrap_mean(x, np.arange(len(x)), rng=rng) for x in x_ET2[:, :, i].T]
            axes.plot(t, [m.value for m in of_t], color=colour, label=f"{end} ({len(x_ET2):,} episodes)")
            axes.fill_between(t, [m.low for m in of_t], [m.high for m in of_t], color=colour, alpha=0.2, lw=0)
    for axes, label in ((middle, direction), (right, "value")):
        axes.set(xlabel="steps before the end", ylabel=label, xticks=[*range(-BEFORE, 0, 4), -1])
    middle.legend(frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, of in (("demo", Path), ("recording", Path), ("direction", str), ("where", str), ("picture", Path)):
        parser.add_argument(name, type=of)
    asked = parser.parse_args()
    main(asked.demo, asked.recording, asked.direction, asked.where, asked.picture)
