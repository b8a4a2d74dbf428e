"""How well subspaces carry an edit, on levels that chose nothing (N pairs, H neurons, R rank, Q measures)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.causal_directions import subspaces
from analysis.causal_directions.pairs import Pairs, Run, go_on
from analysis.causal_directions.subspaces import Change, FitOptions, along, along_basis, divergence
from core.artefacts import Result
from core.contracts import Agent, UserError
from core.directions import Basis
from core.progress import track
from core.stats import ALPHA, Estimate, benjamini_hochberg, in_text, means, ratios, share_of
from envs.procgen import ProcgenEnv

CAUSAL, WHOLE, NOTHING, RANDOM = "causal", "whole state", "unpatched", "random"
PROBE, MEAN = "probe", "mean difference"
VARYING, READ = "causal, where states vary", "causal, as the heads read"
LONG = "random, as long"
CARRIED = (NOTHING, WHOLE, CAUSAL, VARYING, PROBE, MEAN)  # what other edits are tried with
SUFFICIENT = 0.8  # of the whole state's interchange accuracy: what the lower end of a rank's must reach
LEAST_LEVELS = 6  # on each half: fewer cannot say anything at level 0.05
LATER_DRAWS = 5  # of the random subspaces: runs of the real game cost more than a step
SMALLEST_KL = 0.005  # nats, of interest: of less, actions' probabilities differ by less than .05 in all (Pinsker)
JACOBIANS = 64  # states at which the heads' derivatives are taken
ACCURACY, AGREEMENT, KL, VALUE = "interchange accuracy", "agreement", "kl", "value error"
BACK_ACCURACY, BACK_KL = "interchange accuracy back", "kl back"
CRITERIA = (
    "Interchange accuracy: of the pairs whose likeliest action differs between base and source, the share in which the "
    "patched base's is the source's. Carries: the lower end of its 95 % interval is at least 0.8 of the whole state's "
    "accuracy, at this rank and at every larger one that was tried (from the largest down, so that no rank is picked), "
    "and at this rank it is ahead of random subspaces (q <= .05). "
    "The heads see h alone, so that at once the whole state's accuracy is 1 by construction; later it need not be, as "
    "the world is not edited. This is about this agent, these starts and this edit; none of it makes a direction a "
    "concept."
)


@dataclass(frozen=True)
class Method:
    """Patches of one kind and rank; of several (random ones) the mean is taken, pair by pair."""

    name: str
    rank: int
    changes: Sequence[Change]


@dataclass
class Later:
    """The steps after: every patched run is held against the source's, with the same action noise."""

    agent: Agent
    env: ProcgenEnv
    pairs: Pairs
    source: Run = field(init=False)

    def __post_init__(self) -> None:
        self.source = go_on(self.agent, self.env, self.pairs.source, self.pairs.noise_NTA, self.pairs.exchange.at_base)

    def __call__(self, change: Change) -> dict[str, np.ndarray]:
        """Mean KL over the steps that both are on (NaN: none), and the difference of the last value, ended: 0."""
        x, k = self.pairs.exchange, self.pairs.noise_NTA.shape[1] - 1
        h_NH = x.base_NH + change(x.difference_NH)
        run = go_on(self.agent, self.env, self.pairs.base, self.pairs.noise_NTA, x.at_base, h_NH)
        both_NT = (run.on_NT & self.source.on_NT)[:, 1:]
        kl_NT = divergence(self.source.logp_NTD, run.logp_NTD)[:, 1:]
        kl_N = torch.where(both_NT, kl_NT, 0).sum(1) / both_NT.sum(1)
        last = run.value_NT[:, k] * run.on_NT[:, k] - self.source.value_NT[:, k] * self.source.on_NT[:, k]
        return {f"{KL}@1..{k}": _array(kl_N), f"{VALUE}@{k}": _array(last.abs())}


@torch.no_grad()
def at_once(pairs: subspaces.Exchange, change: Change) -> dict[str, np.ndarray]:
    """Measures of the patched step itself, each [N]; accuracies are NaN where base and source do the same."""
    base, source = pairs.at_base(pairs.base_NH), pairs.at_source(pairs.source_NH)
    forth, back = pairs.forth(change), pairs.back(change)
    differ = base[0].argmax(1) != source[0].argmax(1)
    hit, undone = forth[0].argmax(1) == source[0].argmax(1), back[0].argmax(1) == base[0].argmax(1)
    nan = torch.full_like(base[1], math.nan)
    return {name: _array(x) for name, x in {
        ACCURACY: torch.where(differ, hit.to(nan.dtype), nan), AGREEMENT: hit,
        KL: divergence(source[0], forth[0]), VALUE: (forth[1] - source[1]).abs(),
        BACK_ACCURACY: torch.where(differ, undone.to(nan.dtype), nan), BACK_KL: divergence(base[0], back[0]),
    }.items()}  # fmt: skip


def _array(x: Tensor) -> np.ndarray:
    return np.asarray(x.double().cpu().numpy())


def halves(level_N: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows to fit on, rows to judge on), by whole levels.  UserError where there are too few."""
    levels = np.random.default_rng(seed).permutation(np.unique(level_N))
    if len(levels) < 2 * LEAST_LEVELS:
        raise UserError(
            f"pairs of {len(levels)} levels, and at least {2 * LEAST_LEVELS} are needed, half to fit on and half to "
            "judge on; ask for more (--starts), fewer steps of --lag, or another edit"
        )
    fits = np.isin(level_N, levels[: len(levels) // 2])
    return np.flatnonzero(fits), np.flatnonzero(~fits)


@dataclass(frozen=True)
class Found:
    """The subspaces of each rank, what they are held against, and where they lie."""

    w: dict[int, Tensor]  # [H, R]
    methods: list[Method]
    guards: dict[int, subspaces.Guard]


def seek(
    pairs: subspaces.Exchange, level_N: np.ndarray, states_MH: Tensor, ranks: Sequence[int], options: FitOptions, *,
    bases: Mapping[str, Basis], draws: int,
) -> Found:  # fmt: skip
    """Fit every rank on these pairs, and everything that it is held against.  states: recorded ones."""
    loss = subspaces.loss_of(pairs)
    generator = torch.Generator().manual_seed(options.seed)
    size, most = pairs.base_NH.shape[1], max(ranks)
    order = {kind: subspaces.chosen(basis, loss, most) for kind, basis in bases.items()}
    some = torch.arange(min(JACOBIANS, len(pairs.base_NH)), device=pairs.base_NH.device)
    read_HS = subspaces.read_by(pairs.at_base.rows(some), pairs.base_NH[some])
    probe_HR, mean_HR = subspaces.probe(pairs, most), subspaces.mean_difference(pairs, most)
    methods = [Method(NOTHING, 0, [subspaces.zero]), Method(WHOLE, size, [subspaces.all_of])]
    found, guards = {}, {}
    for rank in track(ranks, "fitting subspaces"):
        w = found[rank] = subspaces.fit(pairs, level_N, rank, options)
        held = guards[rank] = subspaces.guard(w, states_MH, read_HS)
        random = [along(subspaces.random_subspace(size, rank, generator, w)) for _ in range(draws)]
        methods += [Method(CAUSAL, rank, [along(w)])]
        methods += [Method(name, rank, [subspaces.zero if part is None else along(part)])
                    for name, part in ((VARYING, held.varying_HR), (READ, held.read_HR))]  # fmt: skip
        methods += [Method(kind, rank, [along_basis(basis, order[kind][:rank])])
                    for kind, basis in bases.items() if len(order[kind]) >= rank]  # fmt: skip
        methods += [Method(name, rank, [along(whole[:, :rank])])
                    for name, whole in ((PROBE, probe_HR), (MEAN, mean_HR)) if whole.shape[1] >= rank]  # fmt: skip
        methods += [Method(RANDOM, rank, random)]
        methods += [Method(LONG, rank, [subspaces.as_long_as(change, along(w)) for change in random])]
    return Found(found, methods, guards)


Measured = dict[tuple[str, int], dict[str, np.ndarray]]


def measure(pairs: Pairs, methods: Sequence[Method], later: Callable[[Change], dict[str, np.ndarray]]) -> Measured:
    """{(method, rank): {measure: [N]}}."""
    out: Measured = {}
    for method in track(methods, "judging subspaces"):
        for each in (
            [at_once(pairs.exchange, change) for change in method.changes],
            [later(change) for change in method.changes[:LATER_DRAWS]],
        ):
            mine = out.setdefault((method.name, method.rank), {})
            mine |= {q: np.mean([one[q] for one in each], 0) for q in each[0]}
    return out


def unit_of(name: str) -> str:
    if name.startswith(("interchange", AGREEMENT)):
        return "share of pairs"
    return "share" if name.startswith("undone") else "nats" if name.startswith(KL) else "return"


def estimated(
    found: Measured, told: Sequence[str], level_N: np.ndarray, edit: str, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A row a method, rank and measure, with intervals over whole levels.  told: of ``told_of``."""
    rows = []
    for (name, rank), values in found.items():
        numbers = {q: _estimate(q, x, level_N, rng) for q, x in values.items()}
        for q in [q for q in values if q.startswith(KL) and q != BACK_KL]:
            plain = found[NOTHING, 0][q] if q in told else np.full(len(values[q]), np.nan)
            numbers[f"recovered {q}"] = _recovered(values[q], plain, level_N, rng)
        rows += [{"edit": edit, "method": name, "rank": rank, "measure": q, "value": e.value, "low": e.low,
                  "high": e.high, "unit": "share" if q.startswith("recovered") else unit_of(q), "n": e.n}
                 for q, e in numbers.items()]  # fmt: skip
    return rows


def told_of(found: Measured, level_N: np.ndarray) -> list[str]:
    """The measures in which unpatched pairs differ: what is not there is not taken away.

    Divergences are there unless their 95 % interval lies below the smallest of interest; values, beyond rounding.
    """
    out = []
    for q, x_N in found[NOTHING, 0].items():
        there = ~np.isnan(x_N)
        if q.startswith(KL) and there.any():
            high = means(x_N[there, None], level_N[there], rng=np.random.default_rng(0)).estimates()[0].high
            if high < SMALLEST_KL or x_N[there].mean() < subspaces.LEAST_KL:
                continue
        if q.startswith(VALUE) and there.any() and x_N[there].mean() < subspaces.LEAST_VALUE:
            continue
        out.append(q)
    return out


def _estimate(name: str, x_N: np.ndarray, level_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    there = ~np.isnan(x_N)
    if not there.any():
        return Estimate.unknown()
    if unit_of(name) == "share of pairs":
        return share_of(x_N[there], level_N[there])
    return means(x_N[there, None], level_N[there], rng=rng).estimates()[0]


def _recovered(x_N: np.ndarray, plain_N: np.ndarray, level_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """The share of the unpatched divergence that a patch takes away, a ratio of sums."""
    there = ~np.isnan(x_N) & ~np.isnan(plain_N)
    _, of_N = np.unique(level_N[there], return_inverse=True)
    if not len(of_N):
        return Estimate.unknown()
    away, whole = (np.bincount(of_N, x)[:, None] for x in (plain_N[there] - x_N[there], plain_N[there]))
    return ratios(away, whole, rng=rng).estimates()[0]


def compared(
    found: Measured, told: Sequence[str], level_N: np.ndarray, edit: str, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The causal subspace less every other one of its rank, pair by pair.  told: of ``told_of``."""
    rows = []
    ranks = [rank for name, rank in found if name == CAUSAL]
    for rank in ranks:
        mine = found[CAUSAL, rank]
        for (name, other), values in found.items():
            if name == CAUSAL or other != rank and name not in (WHOLE, NOTHING):
                continue
            for q in [q for q in mine if q not in (AGREEMENT, BACK_ACCURACY, BACK_KL) and q in told]:
                change = mine[q] - values[q]
                there = ~np.isnan(change)
                if not there.any():
                    continue
                got = means(change[there, None], level_N[there], rng=rng)
                e = got.estimates()[0]
                rows.append({"edit": edit, "rank": rank, "against": name, "measure": q, "difference": e.value,
                             "low": e.low, "high": e.high, "unit": unit_of(q), "n": e.n,
                             "p": float(got.p()[0])})  # fmt: skip
    return rows


def with_q(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with Benjamini-Hochberg's q over all of them."""
    q = benjamini_hochberg(np.array([row["p"] for row in rows]))
    return [{**row, "q": float(x)} for row, x in zip(rows, q, strict=True)]


def estimate_of(rows: Sequence[Mapping[str, Any]], edit: str, method: str, rank: int | None, name: str) -> Estimate:
    """One number of the table; NaN where it has none (a basis of fewer directions)."""
    for row in rows:
        if (row["edit"], row["method"], row["measure"]) == (edit, method, name) and rank in (None, row["rank"]):
            return Estimate(row["value"], row["low"], row["high"], row["n"])
    return Estimate.unknown()


def smallest(
    rows: Sequence[Mapping[str, Any]], tests: Sequence[Mapping[str, Any]], edit: str, ranks: Sequence[int]
) -> int | None:
    """The smallest rank that carries the edit (``CRITERIA``); None: none does.  tests: of ``with_q``."""
    whole = estimate_of(rows, edit, WHOLE, None, ACCURACY).value
    out = None
    for rank in sorted(ranks, reverse=True):
        if not estimate_of(rows, edit, CAUSAL, rank, ACCURACY).low >= SUFFICIENT * whole:  # also of NaN
            break
        out = rank
    asked = {"edit": edit, "rank": out, "against": RANDOM, "measure": ACCURACY}
    ahead = [t for t in tests if all(t[k] == v for k, v in asked.items()) and t["low"] > 0 and t["q"] <= ALPHA]
    return out if ahead else None


def _share(e: Estimate) -> str:
    """A share as a sentence gives it."""
    return in_text(e, of="levels") if e.n else "an unknown share (no level tells)"


def _little(rows: Sequence[Mapping[str, Any]], edit: str, measure: str) -> str:
    """How little of a divergence there is, where there is none of interest (``told_of``); else nothing."""
    plain = estimate_of(rows, edit, NOTHING, 0, measure)
    if not plain.n or estimate_of(rows, edit, WHOLE, None, f"recovered {measure}").n:
        return ""
    return (
        f"the divergence from the edited world's policy is {in_text(plain, of='levels')} nats, the smallest of "
        f"interest {SMALLEST_KL:g}"
    )


def sentences(
    rows: Sequence[Mapping[str, Any]], edit: str, ranks: Sequence[int], least: int | None, horizon: int,
    guards: Mapping[int, subspaces.Guard],
) -> list[str]:  # fmt: skip
    """What was found, in words no stronger than the test."""
    rank = max(ranks) if least is None else least
    accuracy, whole = (estimate_of(rows, edit, name, r, ACCURACY) for name, r in ((CAUSAL, rank), (WHOLE, None)))
    if accuracy.n == 0:
        head = f"'{edit}': no held-out pair's likeliest action differs, so that no rank can be said to carry it"
    else:
        said = f"interchange accuracy {in_text(accuracy, of='levels')}, the whole state's {whole.value:.3g}"
        others = [(name, estimate_of(rows, edit, name, rank, ACCURACY)) for name in (PROBE, MEAN, "pca", "ica", RANDOM)]
        beside = ", ".join(f"{name} {e.value:.3g}" for name, e in others if e.n)
        head = f"'{edit}': rank {rank} carries it by this test" if least is not None else (
            f"'{edit}': no rank up to {rank} is shown to carry it; rank {rank}")  # fmt: skip
        head = f"{head}: {said}; beside {beside}"
    kl, late = (estimate_of(rows, edit, CAUSAL, rank, f"recovered {KL}{at}") for at in ("", f"@1..{horizon}"))
    whole_late = estimate_of(rows, edit, WHOLE, None, f"recovered {KL}@1..{horizon}")
    when = f"over the {horizon} steps after"
    after = f"{_share(late)} {when} (the whole state: {_share(whole_late)})"
    if whole_late[:3] == (0, 0, 0):  # in no pair anything
        after = f"nothing {when}, as the whole state does: what is exchanged lasts no longer"
    first = f"the patch takes away {_share(kl)} of the divergence from the edited world's policy at once"
    if little := _little(rows, edit, KL):
        first = f"there is nothing to take away at once ({little})"
    if little := _little(rows, edit, f"{KL}@1..{horizon}"):
        after = f"there is nothing to take away {when} ({little})"
    back = estimate_of(rows, edit, CAUSAL, rank, BACK_ACCURACY)
    held = guards[rank]
    inside = estimate_of(rows, edit, VARYING, rank, ACCURACY)
    return [
        f"{head}.",
        f"At rank {rank} {first}, and {after}; patched back it restores {_share(back)} of the actions.",
        f"{held.varying:.3g} of it lies where recorded states vary, {held.read:.3g} where the heads read; with the "
        f"part where states vary alone the accuracy is {_share(inside)}.",
    ]


def text_of_transfer(rows: Sequence[Mapping[str, Any]], edit: str, rank: int) -> str:
    """How the same subspace does with another edit."""
    accuracy = estimate_of(rows, edit, CAUSAL, rank, ACCURACY)
    kl = estimate_of(rows, edit, CAUSAL, rank, f"recovered {KL}")
    little = _little(rows, edit, KL)
    taken = f"nothing to take away at once ({little})" if little else f"recovered {_share(kl)} of the KL at once"
    if accuracy.n == 0:
        return f"'{edit}' (transfer): no pair's likeliest action differs; {taken}."
    return f"'{edit}' (transfer, rank {rank}): interchange accuracy {in_text(accuracy, of='levels')}; {taken}."


@dataclass(frozen=True)
class Asked:
    """What ``study`` is asked."""

    edit: str
    ranks: tuple[int, ...]
    horizon: int
    draws: int
    seed: int


def study(
    agent: Agent, pairs: Pairs, others: Mapping[str, Pairs], env: Callable[[int], ProcgenEnv], asked: Asked,
    options: FitOptions, bases: Mapping[str, Basis],
) -> tuple[Result, dict[int, Tensor], Tensor]:  # fmt: skip
    """(the result, W by rank, recorded states).  others: pairs of the edits that it is carried over to.

    Tables ``subspaces`` (a row an edit, method, rank and measure), ``differences`` (the causal one less another) and
    ``guard``; arrays ``subspace/RANK`` [H, R] and ``METHOD/RANK/MEASURE`` [N].
    """
    rng = np.random.default_rng(asked.seed)
    learn, judge = halves(pairs.level_N, asked.seed)
    held = pairs.rows(judge)
    fresh = {words: _on(other, np.unique(held.level_N), words) for words, other in others.items()}
    player = env(len(held))
    try:
        x = pairs.exchange
        plain = go_on(agent, player, held.base, held.noise_NTA, x.at_base)
        states_MH = torch.cat([x.base_NH[torch.from_numpy(learn)], plain.h_NTH[plain.on_NT]])
        found = seek(
            x.rows(torch.from_numpy(learn)), pairs.level_N[learn], states_MH, asked.ranks, options, bases=bases,
            draws=asked.draws,
        )  # fmt: skip
        measured = measure(held, found.methods, Later(agent, player, held))
        told = told_of(measured, held.level_N)
        rows = estimated(measured, told, held.level_N, asked.edit, rng)
        tests = compared(measured, told, held.level_N, asked.edit, rng)
        for words, other in fresh.items():
            got = measure(other, [m for m in found.methods if m.name in CARRIED], Later(agent, player, other))
            told = told_of(got, other.level_N)
            rows += estimated(got, told, other.level_N, words, rng)
            tests += compared(got, told, other.level_N, words, rng)
    finally:
        player.close()
    tests = with_q(tests)
    result = Result(tables={"subspaces": rows, "differences": tests})
    result.tables["guard"] = [
        {"rank": rank, "where_states_vary": g.varying, "where_heads_read": g.read, "states": len(states_MH)}
        for rank, g in found.guards.items()
    ]
    result.arrays = {f"subspace/{rank}": w.cpu().numpy() for rank, w in found.w.items()}
    result.arrays |= {f"{name}/{rank}/{q}": v for (name, rank), of in measured.items() for q, v in of.items()}
    result.arrays["level"] = held.level_N
    least = smallest(rows, tests, asked.edit, asked.ranks)
    rank = max(asked.ranks) if least is None else least
    texts = sentences(rows, asked.edit, asked.ranks, least, asked.horizon, found.guards)
    texts += [text_of_transfer(rows, words, rank) for words in fresh]
    accuracy = estimate_of(rows, asked.edit, CAUSAL, rank, ACCURACY)
    result.scalar("rank", rank, "dimensions")
    result.scalar("interchange_accuracy", *accuracy[:1], "share of pairs", accuracy.n, accuracy.interval)
    result.notes = {
        "criteria": CRITERIA, "claims": [{"headline": True, "text": text} for text in texts],
        "carries": least is not None, "rank": rank, "horizon": asked.horizon, "fitted_on": len(learn),
        "judged_on": len(held),
    }  # fmt: skip
    return result, found.w, states_MH


def _on(pairs: Pairs, levels: np.ndarray, words: str) -> Pairs:
    """The pairs on levels that nothing was fitted on.  UserError where there are too few."""
    rows = np.flatnonzero(np.isin(pairs.level_N, levels))
    if (n := len(np.unique(pairs.level_N[rows]))) < LEAST_LEVELS:
        raise UserError(
            f"--transfer {words!r} can be made on {n} of {len(levels)} held-out levels, and at least {LEAST_LEVELS} "
            "are needed; ask for more (--starts) or another edit"
        )
    return pairs.rows(rows)
