"""Every pair of agents compared, layer by layer, on the same frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from analysis.shared.probe_fits import FoldedRidge, folds_of
from analysis.similarity.cka import Layer, cka, covariance, floor
from core.artefacts import Result
from core.contracts import Agent
from core.episodes import RolloutStore
from core.progress import bar
from core.roll import Recorded, roll
from core.stats import LOST, Estimate, bootstrap_mean, jackknife, jackknifed, left_out, share_of
from core.trees import leaves

LAYERS = ("embedding", "h")
LOGITS = "logits"
ILLEGAL = -1e6  # logits below this are of options that are not allowed
FOLDS = 5
SHOWN = 8  # episodes side by side, whose frames are held at once
PENALTY = 1e-2  # ridge penalty, a row and a z-scored feature
SHUFFLED = ", weights shuffled"


def predicted(
    x_NP: np.ndarray, y_NQ: np.ndarray, episode_N: np.ndarray, *, rng: np.random.Generator, resamples: int
) -> Estimate:
    """Share of y's variance (all dimensions together) that ridge regression on x predicts on episodes held out: not 1
    where x is y itself, since the ridge shrinks and episodes are few."""
    fold_N = folds_of(episode_N, FOLDS, rng)
    fitted_NQ = FoldedRidge(x_NP, fold_N, np.array([PENALTY])).predict(y_NQ)
    usual_NQ = np.stack([y_NQ[fold_N != g].mean(0) for g in range(FOLDS)])[fold_N]
    squared_N, spread_N = (((y_NQ - guess_NQ) ** 2).sum(1) for guess_NQ in (fitted_NQ, usual_NQ))

    def share(rows: np.ndarray) -> float:
        spread = spread_N[rows].sum()
        return 1 - squared_N[rows].sum() / spread if spread > 0 else np.nan  # nothing to predict

    value, low, high = jackknife(share, episode_N, rng=rng, link=LOST, draws=resamples)
    return Estimate(float(value), float(low), float(high), len(np.unique(episode_N)))


def layers_of(agents: Iterable[Agent]) -> list[str]:
    """Those of LAYERS that every agent has; h always."""
    return [layer for layer in LAYERS if all(layer in agent.points for agent in agents)]


@torch.no_grad()
def states(
    agent: Agent, store: RolloutStore, episodes: Sequence[int], first_step: int, layers: Sequence[str] = LAYERS
) -> dict[str, np.ndarray]:
    """Layers, float64 [N, ...], and ``logits`` float32 [N, A], of every recorded frame t >= first_step as this agent
    sees and remembers it, from its own initial state."""
    device = next(leaves(agent.initial(1))).device
    names = [f"obs/{n}" for n in store.spec.obs]
    found: dict[int, dict[str, np.ndarray]] = {}
    by_length = sorted(episodes, key=lambda e: int(store.steps[e]))
    for together in (by_length[i : i + SHOWN] for i in range(0, len(by_length), SHOWN)):
        shown = [store.pooled(*names, episodes=[e])[0] for e in together]
        lengths = [len(columns[names[0]]) for columns in shown]
        at_BT = [np.arange(max(lengths)).clip(max=length - 1) for length in lengths]  # then its last frame, not kept
        obs = {
            name.removeprefix("obs/"): np.stack([c[name][at_T] for c, at_T in zip(shown, at_BT, strict=True)])
            for name in names
        }
        frames = Recorded(agent.spec, {n: torch.from_numpy(x).to(device) for n, x in obs.items()})
        read: dict[str, list[np.ndarray]] = {layer: [] for layer in (*layers, LOGITS)}
        for m in roll(agent, frames, frames.begin(), steps=max(lengths) - 1):
            for layer in layers:
                read[layer].append(agent.read(layer, m.acted.seen, m.acted.state).double().cpu().numpy())
            read[LOGITS].append(m.acted.logits_BA.float().cpu().numpy())
        for b, (e, length) in enumerate(zip(together, lengths, strict=True)):
            found[e] = {layer: np.stack([x[b] for x in rows[first_step:length]]) for layer, rows in read.items()}
    return {layer: np.concatenate([found[e][layer] for e in episodes]) for layer in (*layers, LOGITS)}


def choices(
    seen: Mapping[str, Mapping[str, np.ndarray]], pairs: Sequence[tuple[str, str]], parts: Mapping[str, int],
    episode_N: np.ndarray, *, resamples: int, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """What two agents would do on the same observations: a row a pair and part of the action.

    ``same``: share of the steps with a choice (two legal options or more) at which both find the same one likeliest;
    ``kl``: KL(a || b) of the part's probabilities, in nats; means over these steps, 95 % intervals over
    ``episode_N``, the units.
    parts: {name of a part: its options}, in the logits' order.
    """
    rows: list[dict[str, Any]] = []
    ends = np.cumsum([0, *parts.values()])
    for a, b in pairs:
        rng = np.random.default_rng(seed)
        for (name, _), first, last in zip(parts.items(), ends[:-1], ends[1:], strict=True):
            one, other = (torch.from_numpy(seen[x][LOGITS][:, first:last]) for x in (a, b))
            legal = (one > ILLEGAL) & (other > ILLEGAL)
            choice_N = (legal.sum(1) > 1).numpy()
            log_p, log_q = (torch.where(legal, x, -torch.inf).log_softmax(1) for x in (one, other))
            kl_N = torch.where(legal, log_p.exp() * (log_p - log_q), 0.0).sum(1).numpy()
            same_N = (log_p.argmax(1) == log_q.argmax(1)).numpy()
            row: dict[str, Any] = {"a": a, "b": b, "part": name, "steps": int(choice_N.sum())}
            row["n"] = len(np.unique(episode_N[choice_N]))
            of = episode_N[choice_N]
            apart = bootstrap_mean(kl_N[choice_N].astype(np.float64), of, rng=rng, resamples=resamples)
            for key, e in (("same", share_of(same_N[choice_N], of)), ("kl", apart)):
                row |= {key: e.value, f"{key}_low": e.low, f"{key}_high": e.high}
            rows.append(row)
    return rows


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
    compared = [layer for layer in LAYERS if layer in next(iter(seen.values()))]
    with bar("pairs", len(pairs) * len(compared), "pairs") as progress:
        for a, b in pairs:
            for layer in compared:
                rng = np.random.default_rng(seed)
                first, second = layers[a, layer], layers[b, layer]
                each_G = cka(covariance(first, second, weight_GE), own[a, layer], own[b, layer])
                value, low, high = jackknifed(each_G, rng=rng, draws=resamples)
                # What is estimated lies between 0 and 1; the estimate itself may lie outside by chance.
                low, high = np.minimum(value, np.fmax(low, 0)), np.maximum(value, np.fmin(high, 1))
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


def assemble(names: Sequence[str], rows: list[dict[str, Any]], chosen: list[dict[str, Any]]) -> Result:
    """Tables ``pairs`` and ``choices``; arrays ``cka_LAYER`` [agents, agents] and ``control_LAYER`` [agents], with
    itself shuffled (NaN of an agent without weights)."""
    result = Result(notes={"agents": list(names)}, tables={"pairs": rows, "choices": chosen})
    for layer in dict.fromkeys(row["layer"] for row in rows):
        of = {(row["a"], row["b"]): row["cka"] for row in rows if row["layer"] == layer}
        result.arrays[f"cka_{layer}"] = np.array(
            [[1.0 if a == b else of.get((a, b), of.get((b, a))) for b in names] for a in names]
        )
        result.arrays[f"control_{layer}"] = np.array([of.get((a, a + SHUFFLED), np.nan) for a in names])
    return result
