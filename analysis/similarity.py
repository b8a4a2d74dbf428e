"""How alike agents see and remember: ``python -m analysis.similarity --agents runs/a runs/b --rollouts runs/rollouts``.

Every agent is shown the same recorded frames and keeps its own memory of them; then pairs are compared by linear CKA
(Kornblith et al. 2019, arXiv:1905.00414: 1 is the same up to rotation and scale; here without its bias, so that it is 0
on average where nothing is alike) and by how much of one agent's states
a linear map from the other's predicts on episodes it was not fitted on.  Both are high for agents that have learned
nothing, since all see the same frames: read them beside the same agent with its weights shuffled, and beside episodes
exchanged between the two, which leaves only time in the episode in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from agents.recurrent import RecurrentAgent, load_agent
from analysis.attributions import randomised
from analysis.probe_fits import exchanged
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Agent, UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.figures import SEQUENTIAL, figure_of
from core.progress import bar
from core.stats import LOST, Estimate, few, jackknife, jackknifed, left_out

STAGE = "similarity"
LAYERS = ("embedding", "h")
FOLDS = 5
PRINTED = 20  # pairs
PENALTY = 1e-2  # ridge penalty, a row and a z-scored feature
SHUFFLED = ", weights shuffled"


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    """Compare agents, or the checkpoints of one, on the same frames."""

    agents: tuple[Path, ...] = (Path("bundles/coinrun-demo/agent"),)
    """agent run directories, of one game"""
    checkpoints: bool = False
    """compare all saved checkpoints of each agent too"""
    rollouts: Path = Path("runs/demo/rollouts")
    """real rollouts whose frames all are shown (of any agent)"""
    out: Path = Path("runs/similarity")
    """run directory to write"""
    episodes: int = 64
    """at most so many episodes, the first of --rollouts"""
    first_step: int = 1
    """earlier steps are left out: step 0 is all initial state"""
    exchanges: int = 20
    """exchanges of episodes for the floor"""
    resamples: int = 200
    """bootstrap resamples of whole episodes"""
    seed: int = 0
    """seed of shuffled weights, exchanges, folds and intervals"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


class Layer(NamedTuple):
    """States of one agent, centred, and which rows are of which episode."""

    x_NP: np.ndarray
    starts_E: np.ndarray  # first row of each episode
    count_E: np.ndarray

    @classmethod
    def of(cls, x_NP: np.ndarray, episode_N: np.ndarray) -> Layer:
        """Rows of an episode must be consecutive."""
        x_NP = np.asarray(x_NP, np.float64) - np.mean(x_NP, 0)
        starts = np.flatnonzero(np.r_[True, episode_N[1:] != episode_N[:-1]])
        return cls(x_NP, starts, np.diff(np.r_[starts, len(x_NP)]))

    @property
    def sum_EP(self) -> np.ndarray:
        out: np.ndarray = np.add.reduceat(self.x_NP, self.starts_E)
        return out


BLOCK = 1 << 22  # numbers of a product held at once


def covariance(a: Layer, b: Layer, weight_GE: np.ndarray) -> np.ndarray:
    """Squared Frobenius norm of the covariance of a's and b's states without its bias, float64 [G], of the episodes
    that have weight 1 and not 0.  NaN of fewer than 4 episodes.

    The norm of a sample covariance is too large, since noise does not cancel in a square.  Here only products of
    different episodes enter, so that neither a step nor its neighbours in time are multiplied with themselves: the
    U-statistic of Song et al. (2012, JMLR 13, eq. 5) with episodes as units, in the space of features, where it takes
    the memory of E x P x Q numbers in blocks.  (Debiased CKA: Nguyen, Raghu and Kornblith 2021, arXiv:2010.15327.)
    """
    n = len(a.count_E)
    m_G, steps_G = weight_GE.sum(1), weight_GE @ a.count_E
    sum_EP, sum_EQ = a.sum_EP, b.sum_EP
    sum_GP, sum_GQ = weight_GE @ sum_EP, weight_GE @ sum_EQ
    parts_a, parts_b = np.split(a.x_NP, a.starts_E[1:]), np.split(b.x_NP, b.starts_E[1:])
    squares_G, between_G = np.zeros((2, len(weight_GE)))
    ends_EP, own_E = np.zeros_like(sum_EP), np.zeros(n)
    step = max(1, BLOCK // (max(n, len(weight_GE)) * sum_EP.shape[1]))
    for q in range(0, sum_EQ.shape[1], step):
        columns = slice(q, q + step)
        product_EPQ = np.stack([x.T @ y[:, columns] for x, y in zip(parts_a, parts_b, strict=True)])
        flat_EF = product_EPQ.reshape(n, -1)
        whole_GF = weight_GE @ flat_EF
        squares_G += (whole_GF**2).sum(1) - weight_GE @ (flat_EF**2).sum(1)
        # Sums over distinct episodes of (sum of a) . product . (sum of b): all, less those that meet themselves.
        whole_GPQ = whole_GF.reshape(-1, *product_EPQ.shape[1:])
        between_G += (np.einsum("gp,gpq->gq", sum_GP, whole_GPQ) * sum_GQ[:, columns]).sum(1)
        outer_EF = (sum_EP[:, :, None] * sum_EQ[:, None, columns]).reshape(n, -1)
        between_G -= (whole_GF * (weight_GE @ outer_EF)).sum(1)
        first_EQ = np.einsum("ep,epq->eq", sum_EP, product_EPQ)
        between_G -= ((weight_GE @ first_EQ) * sum_GQ[:, columns]).sum(1)
        last_EP = np.einsum("epq,eq->ep", product_EPQ, sum_EQ[:, columns])
        ends_EP += last_EP
        own_E += (sum_EP * last_EP).sum(1)
    between_G -= ((weight_GE @ ends_EP) * sum_GP).sum(1)
    between_G += 2 * weight_GE @ own_E
    k_EE, l_EE = sum_EP @ sum_EP.T, sum_EQ @ sum_EQ.T
    for gram in (k_EE, l_EE):
        np.fill_diagonal(gram, 0)
    to_k_GE, to_l_GE = (weight_GE * (weight_GE @ gram) for gram in (k_EE, l_EE))
    apart_G = to_k_GE.sum(1) * to_l_GE.sum(1) - 4 * (to_k_GE * to_l_GE).sum(1)
    apart_G += 2 * (weight_GE * (weight_GE @ (k_EE * l_EE))).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_G = steps_G / m_G
        found = squares_G / (m_G * (m_G - 1)) / mean_G**2
        found -= 2 * between_G / (m_G * (m_G - 1) * (m_G - 2)) / mean_G**3
        found += apart_G / (m_G * (m_G - 1) * (m_G - 2) * (m_G - 3)) / mean_G**4
    return np.where(m_G >= 4, found, np.nan)


def cka(both: np.ndarray, own_a: np.ndarray, own_b: np.ndarray) -> np.ndarray:
    """Debiased linear CKA from ``covariance`` of the pair and of each with itself: at most about 1, around 0 (also
    below) for unrelated states; NaN where one side never changes."""
    norm = np.sqrt(np.maximum(own_a, 0) * np.maximum(own_b, 0))
    return np.divide(both, norm, out=np.full(len(norm), np.nan), where=norm > 0)


def linear_cka(a: Layer, b: Layer) -> float:
    """Debiased linear CKA of all episodes."""
    once = np.ones((1, len(a.count_E)))
    return float(cka(covariance(a, b, once), covariance(a, a, once), covariance(b, b, once))[0])


def floor(a: Layer, b: Layer, episode_N: np.ndarray, *, rng: np.random.Generator, exchanges: int) -> np.ndarray:
    """CKA [exchanges] with the episodes of b exchanged: what time in the episode alone makes alike."""
    units, of_N = np.unique(episode_N, return_inverse=True)
    donors = [exchanged(of_N, rng.permutation(len(units))) for _ in range(exchanges)]
    return np.array([linear_cka(a, Layer.of(b.x_NP[donor], episode_N)) for donor in donors])


def predicted(
    x_NP: np.ndarray, y_NQ: np.ndarray, episode_N: np.ndarray, *, rng: np.random.Generator, resamples: int
) -> Estimate:
    """Share of y's variance (all dimensions together) that ridge regression on x predicts on episodes held out."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold

    units, of_N = np.unique(episode_N, return_inverse=True)
    order = rng.permutation(len(units))[of_N]
    squared_N, spread_N = np.zeros(len(x_NP)), np.zeros(len(x_NP))
    for train, test in GroupKFold(FOLDS).split(x_NP, groups=order):
        mean, std = x_NP[train].mean(0), x_NP[train].std(0)
        train_x, test_x = ((x_NP[rows] - mean) / np.where(std > 0, std, 1) for rows in (train, test))
        fitted = Ridge(PENALTY * len(train)).fit(train_x, y_NQ[train]).predict(test_x)
        squared_N[test] = ((y_NQ[test] - fitted) ** 2).sum(1)
        spread_N[test] = ((y_NQ[test] - y_NQ[train].mean(0)) ** 2).sum(1)
    value, low, high = jackknife(
        lambda rows: 1 - squared_N[rows].sum() / spread_N[rows].sum(), episode_N, rng=rng, link=LOST, draws=resamples
    )
    return Estimate(float(value), float(low), float(high), len(units))


@torch.no_grad()
def states(agent: Agent, store: RolloutStore, episodes: Sequence[int], first_step: int) -> dict[str, np.ndarray]:
    """Embeddings and hidden states, float64 [N, ...], of every recorded frame t >= first_step as this agent sees and
    remembers it, from its own initial state."""
    device = next(leaves(agent.initial(1))).device
    names = list(store.spec.obs)
    rows: dict[str, list[np.ndarray]] = {}
    for e in episodes:
        columns, _ = store.pooled(*(f"obs/{n}" for n in names), episodes=[e])
        frames = Recorded(agent.spec, {n: torch.from_numpy(columns[f"obs/{n}"])[None].to(device) for n in names})
        last = len(columns[f"obs/{names[0]}"]) - 1
        moments = list(roll(agent, frames, frames.begin(), steps=last))[first_step:]
        for layer in LAYERS:
            found = [agent.read(layer, m.acted.seen, m.acted.state) for m in moments]
            rows.setdefault(layer, []).append(torch.cat(found).double().cpu().numpy())
    return {layer: np.concatenate(parts) for layer, parts in rows.items()}


def compare(
    seen: Mapping[str, Mapping[str, np.ndarray]], pairs: Sequence[tuple[str, str]], episode_N: np.ndarray, *,
    exchanges: int, resamples: int, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a pair and layer.  seen: name -> layer -> states [N, ...] of the same steps."""
    rows: list[dict[str, Any]] = []
    n = len(np.unique(episode_N))
    weight_GE = left_out(n, np.random.default_rng(seed))
    layers = {(name, layer): Layer.of(x, episode_N) for name, of in seen.items() for layer, x in of.items()}
    own = {key: covariance(a, a, weight_GE) for key, a in layers.items()}
    with bar("pairs", len(pairs) * len(LAYERS), "pairs") as progress:
        for a, b in pairs:
            for layer in LAYERS:
                rng = np.random.default_rng(seed)
                first, second = layers[a, layer], layers[b, layer]
                each_G = cka(covariance(first, second, weight_GE), own[a, layer], own[b, layer])
                value, low, high = jackknifed(each_G, rng=rng, draws=resamples)
                chance = floor(first, second, episode_N, rng=rng, exchanges=exchanges)
                x, y = seen[a][layer], seen[b][layer]
                forth, back = (predicted(p, q, episode_N, rng=rng, resamples=resamples) for p, q in ((x, y), (y, x)))
                rows.append(
                    {
                        "a": a, "b": b, "layer": layer,
                        "cka": float(value), "cka_low": float(low), "cka_high": float(high),
                        "exchanged": float(chance.mean()), "exchanged_most": float(chance.max()),
                        "r2_b_from_a": forth.value, "r2_b_from_a_low": forth.low, "r2_b_from_a_high": forth.high,
                        "r2_a_from_b": back.value, "r2_a_from_b_low": back.low, "r2_a_from_b_high": back.high,
                        "n": n, "steps": len(x),
                    }
                )  # fmt: skip
                progress.advance()
    return rows


def assemble(names: Sequence[str], rows: list[dict[str, Any]]) -> Result:
    """Table ``pairs``; arrays ``cka_LAYER`` [agents, agents] and ``control_LAYER`` [agents], with itself shuffled."""
    result = Result(notes={"agents": list(names)}, tables={"pairs": rows})
    for layer in LAYERS:
        of = {(row["a"], row["b"]): row["cka"] for row in rows if row["layer"] == layer}
        result.arrays[f"cka_{layer}"] = np.array(
            [[1.0 if a == b else of.get((a, b), of.get((b, a))) for b in names] for a in names]
        )
        result.arrays[f"control_{layer}"] = np.array([of[a, a + SHUFFLED] for a in names])
    return result


def draw(result: Result) -> Any:
    """A matplotlib Figure: CKA of every pair, and of each agent with its shuffled self, a panel a layer."""
    names = result.notes["agents"]
    figure = figure_of(2 * (0.5 * len(names) + 3.6), 0.5 * len(names) + 2.8)
    for axis, layer in zip(figure.subplots(1, len(LAYERS)), LAYERS, strict=True):
        shown = np.concatenate([result.arrays[f"cka_{layer}"], result.arrays[f"control_{layer}"][:, None]], 1)
        image = axis.imshow(shown, cmap=SEQUENTIAL, vmin=0, vmax=1)
        for (i, j), v in np.ndenumerate(shown):
            axis.text(j, i, f"{v:.2f}", ha="center", va="center", fontsize=7, color="w" if v < 0.6 else "k")
        axis.axvline(len(names) - 0.5, color="w", linewidth=3)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xticks(range(len(names) + 1), [*names, "itself" + SHUFFLED], fontsize=8, rotation=40, ha="right")
        axis.set_title("hidden state" if layer == "h" else layer, fontsize=10)
    figure.colorbar(image, ax=figure.axes, label="linear CKA", shrink=0.8)
    return figure


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each directory's path, or as many of the last parts as tell it from the others.

    UserError for a directory that is given twice."""
    parts = [Path(path).resolve().parts for path in paths]
    for own in parts:
        if parts.count(own) > 1:
            raise UserError(f"--agents names {Path(*own)} twice")
    out = []
    for own in parts:
        size = 1
        while sum(other[-size:] == own[-size:] for other in parts) > 1:
            size += 1
        out.append("/".join(own[-size:]))
    return out


def load(paths: Sequence[Path], checkpoints: bool, device: torch.device) -> dict[str, RecurrentAgent]:
    """Agents by a short name; UserError if one is given twice, or no checkpoint is there to compare."""
    out: dict[str, RecurrentAgent] = {}
    for path, name in zip(paths, short_names(paths), strict=True):
        files = [artefacts.WEIGHTS]
        if checkpoints:
            files = artefacts.files_of(path, "checkpoint_*.safetensors") + files
            if len(files) == 1:
                raise UserError(f"{path} has no checkpoints; train with --checkpoints, or leave the flag away")
        for file in files:
            label = name
            if file != artefacts.WEIGHTS:
                label += f" @ {int(Path(file).stem.rpartition('_')[2]):,}"
            out[label] = load_agent(path, device, file)
    return out


def main(config: SimilarityConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, exchanges=config.exchanges, threads=config.threads)
    cli.require(0, first_step=config.first_step, seed=config.seed)
    cli.require(FOLDS, episodes=config.episodes)
    cli.require(99, resamples=config.resamples)
    agents = load(config.agents, config.checkpoints, device)
    with RolloutStore(config.rollouts) as store:
        if store.manifest["facts"].get("source") != "real":
            raise UserError(f"{config.rollouts} are simulated; --rollouts takes real ones (record.py)")
        for name, agent in agents.items():
            if dict(agent.spec.obs) != dict(store.spec.obs):
                raise UserError(f"{name} does not read the observations of {config.rollouts}")
        usable = [e for e in range(len(store)) if min(store.steps[e], store.rows[e]) > config.first_step]
        episodes = usable[: config.episodes]
        if len(episodes) < FOLDS:
            raise UserError(
                f"{config.rollouts} has {len(episodes)} episodes of more than {config.first_step} steps; at least "
                f"{FOLDS} are needed: record more"
            )
        _, index_N2 = store.pooled("value", episodes=episodes, first=config.first_step)
        everyone: dict[str, Agent] = {**agents, **{n + SHUFFLED: randomised(a, config.seed) for n, a in agents.items()}}
        seen = {n: states(a, store, episodes, config.first_step) for n, a in everyone.items()}
    names = list(agents)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]] + [(a, a + SHUFFLED) for a in names]
    inputs = {"rollouts": config.rollouts, **{f"agent_{i}": path for i, path in enumerate(config.agents)}}
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        with threadpool_limits(config.threads):
            rows = compare(
                seen, pairs, index_N2[:, 0],
                exchanges=config.exchanges, resamples=config.resamples, seed=config.seed,
            )  # fmt: skip
        result = assemble(names, rows)
        result.save(run.path)
        draw(result).savefig(run.path / "similarity.png", dpi=110)
        run.facts = {"agents": {n: fingerprint(a) for n, a in agents.items()}}
    print(f"{len(agents)} agents on the same {len(index_N2):,} frames of {len(episodes)} episodes: {config.out}")
    shown = [row for row in rows if row["layer"] == "h"]
    for row in shown[:PRINTED]:
        print(
            f"  {row['a']} ~ {row['b']}: CKA {row['cka']:.2f} [{row['cka_low']:.2f}, {row['cka_high']:.2f}]"
            f"{few(row['n'])} (episodes exchanged {row['exchanged']:.2f}); "
            f"R2 {row['r2_b_from_a']:.2f} and {row['r2_a_from_b']:.2f}"
        )
    if len(shown) > PRINTED:
        print(f"  ... {len(shown) - PRINTED} more in pairs.csv")


if __name__ == "__main__":
    cli.run(SimilarityConfig, main, STAGE)
