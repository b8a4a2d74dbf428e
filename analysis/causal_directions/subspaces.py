"""Subspaces that carry a difference, and others of equal rank to hold them against.

A *patch* adds a part of the difference of two hidden states: h_base + W W^T (h_source - h_base) for an orthonormal
W [H, R].  The subspace that is sought makes the patched agent act as in the source, and the patch back undo it
(distributed alignment search; Geiger et al. 2023, arXiv:2303.02536; without their interchange of several variables).

W is sought where the pairs differ: a component outside of all differences would act by a direction that no edit moves
(the illusion of Makelov et al. 2023, arXiv:2311.17030), and the loss cannot tell it from the real one.

N pairs, H neurons, R rank, D distinct actions, K directions of a basis, M states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.contracts import Agent, UserError
from core.directions import Basis
from core.trees import Tree, rows_of

DIFFERENCES = 0.999  # of how the differences vary about their mean: where W is sought, beside that mean
VARYING = 0.999  # of the variance of recorded states: where states vary
UNREAD = 1e-4  # of the largest singular value of the heads' derivatives: below it a direction is not read
NONE = 1e-12  # a squared length that is none
LEAST_KL, LEAST_VALUE = 1e-9, 1e-6  # nats; of the value's size, or of a return (study): less is rounding
LOOK = 10  # steps between two looks at the pairs that stop the fit
STOPPING = 4  # one of so many levels of the fitting half stops the fit

Change = Callable[[Tensor], Tensor]  # differences [N, H] -> what is added to h [N, H]


@dataclass(frozen=True)
class Readout:
    """What an agent makes of its hidden state, where the rest of what it has seen is fixed."""

    agent: Agent
    seen: Tree
    state: Tree
    actions: tuple[tuple[int, ...], ...]  # ids of the actions that do the same, group by group

    def __call__(self, h_NH: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probabilities of what is done [N, D], value [N])."""
        logits, value = self.agent.heads(*self.agent.replaced("h", h_NH, self.seen, self.state))
        return self.told(logits), value

    def told(self, logits: Tensor) -> Tensor:
        """Logits [..., A] -> log-probabilities of what is done [..., D]."""
        logp = logits.log_softmax(-1)
        return torch.stack([logp[..., list(ids)].logsumexp(-1) for ids in self.actions], -1)

    def rows(self, rows: Tensor) -> Readout:
        """Of some pairs, int64 [n]."""
        return Readout(self.agent, rows_of(self.seen, rows), rows_of(self.state, rows), self.actions)


@dataclass(frozen=True)
class Exchange:
    """Pairs of hidden states that differ in one thing, and what the agent makes of either."""

    base_NH: Tensor
    source_NH: Tensor
    at_base: Readout
    at_source: Readout

    @property
    def difference_NH(self) -> Tensor:
        return self.source_NH - self.base_NH

    def rows(self, rows: Tensor) -> Exchange:
        return Exchange(self.base_NH[rows], self.source_NH[rows], self.at_base.rows(rows), self.at_source.rows(rows))

    def forth(self, change: Change) -> tuple[Tensor, Tensor]:
        """What the agent makes of base states patched from the source."""
        return self.at_base(self.base_NH + change(self.difference_NH))

    def back(self, change: Change) -> tuple[Tensor, Tensor]:
        """What the agent makes of source states patched from the base."""
        return self.at_source(self.source_NH - change(self.difference_NH))


def divergence(of_ND: Tensor, other_ND: Tensor) -> Tensor:
    """KL(of || other) [N] of log-probabilities, nats.  In float64 and normalised there: else a difference of nothing
    but rounding errors would come out at their size, of which it has the square."""
    of, other = (x.double().log_softmax(-1) for x in (of_ND, other_ND))
    return (of.exp() * (of - other)).sum(-1).clamp_min(0).to(of_ND.dtype)


class Loss:
    """How far patched states are from acting as they should, both ways; 1: as far as unpatched ones.

    Half of KL(source || patched) and half of the squared error of the value, each as a share of what it is unpatched;
    one of them alone where the pairs do not differ in the other.
    """

    def __init__(self, pairs: Exchange) -> None:
        self.pairs = pairs
        with torch.no_grad():
            self.base, self.source = pairs.at_base(pairs.base_NH), pairs.at_source(pairs.source_NH)
            one = torch.ones((), device=pairs.base_NH.device)
            self.scales = [one, one]
            self.scales = [part.clone() for part in self._parts(lambda d: torch.zeros_like(d))]
        size = float(sum((x[1] ** 2).mean() for x in (self.base, self.source)))
        least = LEAST_KL, max(LEAST_VALUE**2 * size, torch.finfo(torch.float32).tiny)
        self.asks = [float(scale) >= enough for scale, enough in zip(self.scales, least, strict=True)]

    def _parts(self, change: Change) -> list[Tensor]:
        ways = ((self.source, self.pairs.forth(change)), (self.base, self.pairs.back(change)))
        kl = sum(divergence(meant[0], got[0]).mean() for meant, got in ways)
        error = sum(((meant[1] - got[1]) ** 2).mean() for meant, got in ways)
        return [part / scale for part, scale in zip((kl, error), self.scales, strict=True)]  # type: ignore[operator]

    def __call__(self, change: Change) -> Tensor:
        return torch.stack([part for part, asked in zip(self._parts(change), self.asks, strict=True) if asked]).mean()


def loss_of(pairs: Exchange) -> Loss:
    """UserError where the pairs differ in neither actions nor value."""
    loss = Loss(pairs)
    if not any(loss.asks):
        raise UserError("the edit changes neither the agent's actions nor its value; there is nothing to carry")
    return loss


def along(w_HR: Tensor) -> Change:
    """The patch along an orthonormal W."""
    return lambda d_NH: (d_NH @ w_HR) @ w_HR.T


def along_basis(basis: Basis, ids: Sequence[int]) -> Change:
    """The patch of some coordinates of a basis."""
    read_HR, write_RH = basis.project_HK[:, list(ids)] / basis.std_H[:, None], basis.lift_KH[list(ids)] * basis.std_H
    return lambda d_NH: (d_NH @ read_HR) @ write_RH


def as_long_as(change: Change, like: Change) -> Change:
    """A patch, pair by pair as long as another one."""

    def scaled(d_NH: Tensor) -> Tensor:
        mine, norm = change(d_NH), like(d_NH).norm(dim=1, keepdim=True)
        return mine * norm / mine.norm(dim=1, keepdim=True).clamp_min(NONE)

    return scaled


def span_of(x_NH: Tensor, share: float, least: int = 1) -> Tensor:
    """Orthonormal [H, S]: the fewest right singular vectors that hold a share of the squared length, at least ``least``
    of them where there are as many."""
    _, s, v_SH = torch.linalg.svd(x_NH.double(), full_matrices=False)
    real = int((s > 1e-6 * s[0]).sum()) if len(s) and float(s[0]) > 0 else 0
    held = (s**2).cumsum(0) / (s**2).sum().clamp_min(NONE)
    size = min(max(int((held < share).sum()) + 1, least), real)
    return v_SH[:size].T.to(x_NH.dtype)


def span_with_mean(x_NH: Tensor, share: float, least: int) -> Tensor:
    """``span_of`` of what varies about the mean, and the mean: a large and steady difference, which one dimension
    holds, takes no part of the share away from those in which the rest varies."""
    mean_H = x_NH.double().mean(0)
    about_HS = span_of(x_NH.double() - mean_H, share, least)
    beside_H = mean_H - about_HS @ (about_HS.T @ mean_H)
    if float(beside_H.norm()) <= 1e-6 * float(mean_H.norm()):
        return about_HS.to(x_NH.dtype)
    return torch.cat([about_HS, beside_H[:, None] / beside_H.norm()], 1).to(x_NH.dtype)


@dataclass(frozen=True)
class FitOptions:
    steps: int = 300  # of Adam
    rate: float = 0.03
    restarts: int = 3  # at least 2, see ``fit``
    seed: int = 0


def fit(pairs: Exchange, level_N: np.ndarray, rank: int, options: FitOptions) -> Tensor:
    """The subspace W [H, R] that carries the difference of the pairs.

    Begun from the differences' largest directions, from what the heads read of them most, and at random: where a large
    and steady difference goes with the one that acts, the gradient alone stays with the large one.  Of all that was
    passed, what did best on a quarter of the levels, which the gradient does not see, is taken.  W's columns are the
    principal directions of the differences within it, so turned that the edit raises their coordinates on average.
    """
    span_HS = span_with_mean(pairs.difference_NH, DIFFERENCES, rank)
    if span_HS.shape[1] < rank:
        n, real = len(pairs.difference_NH), span_HS.shape[1]
        more = (
            f": the {n} pairs that it is fitted on, half of them, span no more; raise --starts or" if real == n else ";"
        )
        raise UserError(f"--ranks {rank}: the edit changes h in only {real} independent directions{more} lower --ranks")
    levels = np.unique(level_N)
    rng = np.random.default_rng(options.seed)
    looked = rng.permutation(levels)[: len(levels) // STOPPING]
    stop = np.isin(level_N, looked)
    learn = _tensor_of(np.flatnonzero(~stop), pairs)
    loss = loss_of(pairs.rows(learn))
    judge = Loss(pairs.rows(_tensor_of(np.flatnonzero(stop), pairs))) if stop.any() else loss
    judge = judge if any(judge.asks) else loss
    generator = torch.Generator().manual_seed(options.seed)
    size = span_HS.shape[1]
    best, found = float("inf"), span_HS[:, :rank]
    read_GS = (gradients(pairs.at_base, pairs.base_NH) @ span_HS).double()
    _, _, read_SS = torch.linalg.svd(read_GS.T @ read_GS)
    begins = [torch.eye(size, rank), read_SS[:rank].T]
    begins += [torch.randn(size, rank, generator=generator) for _ in range(options.restarts - len(begins))]
    for begin_SR in begins:
        a_SR = begin_SR.to(span_HS).contiguous().requires_grad_()
        adam = torch.optim.Adam([a_SR], lr=options.rate)
        for step in range(options.steps + 1):
            w_HR = span_HS @ torch.linalg.qr(a_SR)[0]
            if step % LOOK == 0:
                with torch.no_grad():
                    now = float(judge(along(w_HR)))
                if now < best:
                    best, found = now, w_HR.detach().clone()
            (a_SR.grad,) = torch.autograd.grad(loss(along(w_HR)), a_SR)
            adam.step()
    return turned(found, pairs.difference_NH)


def turned(w_HR: Tensor, difference_NH: Tensor) -> Tensor:
    """The same subspace by the principal directions of the differences in it, which the mean difference raises."""
    c_NR = (difference_NH @ w_HR).double()
    _, _, v_RR = torch.linalg.svd(c_NR.T @ c_NR)
    out = w_HR.double() @ v_RR.T
    sign = torch.where((difference_NH.double() @ out).mean(0) < 0, -1.0, 1.0)
    return (out * sign).to(w_HR.dtype)


def _tensor_of(rows: np.ndarray, pairs: Exchange) -> Tensor:
    return torch.from_numpy(rows).to(pairs.base_NH.device)


def mean_difference(pairs: Exchange, rank: int) -> Tensor:
    """[H, R]: the mean difference, then the largest directions of what it leaves."""
    d_NH = pairs.difference_NH
    first = d_NH.mean(0, keepdim=True)
    first = first / first.norm().clamp_min(NONE)
    rest = d_NH - (d_NH @ first.T) @ first
    _, _, v_SH = torch.linalg.svd(rest.double(), full_matrices=False)
    return torch.linalg.qr(torch.cat([first, v_SH[: rank - 1].to(first)]).T)[0]


def probe(pairs: Exchange, rank: int) -> Tensor:
    """[H, R]: directions that tell base from source states linearly.  The first is the logistic regression's (z-scored
    states, L2 penalty 1); every other one's is that of what is left without those before (iterative nullspace
    projection; Ravfogel et al. 2020, arXiv:2004.07667)."""
    from sklearn.linear_model import LogisticRegression

    x = torch.cat([pairs.base_NH, pairs.source_NH]).double().cpu().numpy()
    y = np.repeat([0, 1], len(pairs.base_NH))
    scale = np.maximum(x.std(0), 1e-6)
    found = np.zeros((x.shape[1], 0))
    for _ in range(rank):
        left = x - (x @ found) @ found.T
        model = LogisticRegression(max_iter=2000).fit((left - left.mean(0)) / scale, y)
        w = model.coef_[0] / scale
        w = w - found @ (found.T @ w)
        if (norm := np.linalg.norm(w)) < 1e-9:  # nothing is left that tells
            break
        found = np.concatenate([found, (w / norm)[:, None]], 1)
    return torch.from_numpy(found).to(pairs.base_NH)


def chosen(basis: Basis, loss: Loss, most: int) -> list[int]:
    """The directions of a basis in the order in which adding them to the patch lowers the loss most (greedy)."""
    ids: list[int] = []
    able = [i for i in range(basis.size) if basis.lift_KH[i].any()]
    with torch.no_grad():
        while len(ids) < min(most, len(able)):
            left = [i for i in able if i not in ids]
            ids.append(min(left, key=lambda i: float(loss(along_basis(basis, [*ids, i])))))
    return ids


def random_subspace(size: int, rank: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Orthonormal [H, R], uniform."""
    return torch.linalg.qr(torch.randn(size, rank, generator=generator))[0].to(like)


@dataclass(frozen=True)
class Guard:
    """Where a subspace lies; parts are orthonormal [H, R], None where nothing is left."""

    varying: float  # share of W where states vary
    read: float  # share of W that the heads read
    varying_HR: Tensor | None
    read_HR: Tensor | None


def guard(w_HR: Tensor, states_MH: Tensor, read_HS: Tensor) -> Guard:
    """read: orthonormal, what the heads read (``read_by``)."""
    varying_HS = span_of(states_MH - states_MH.mean(0), VARYING)
    shares, parts = [], []
    for span_HS in (varying_HS, read_HS):
        inside = span_HS @ (span_HS.T @ w_HR)
        shares.append(float((inside**2).sum() / w_HR.shape[1]))
        u, s, _ = torch.linalg.svd(inside, full_matrices=False)
        parts.append(u[:, s > 1e-3] if bool((s > 1e-3).any()) else None)
    return Guard(shares[0], shares[1], parts[0], parts[1])


def read_by(at: Readout, h_NH: Tensor) -> Tensor:
    """Orthonormal [H, S]: the directions in which a small change of these states changes a log-probability or the
    value.  Linear heads: the row space of their weights, as far as actions differ."""
    _, s, v_SH = torch.linalg.svd(gradients(at, h_NH).double(), full_matrices=False)
    return v_SH[s > UNREAD * s[0]].T.to(h_NH.dtype)


def gradients(at: Readout, h_NH: Tensor) -> Tensor:
    """Of every log-probability and of the value, with respect to h: [(D + 1) * N, H]."""
    h = h_NH.detach().clone().requires_grad_()
    logp, value = at(h)
    return torch.cat([torch.autograd.grad(x.sum(), h, retain_graph=True)[0] for x in (*logp.unbind(1), value)])


def as_basis(w_HR: Tensor, states_MH: Tensor, agent: str, facts: dict[str, object]) -> Basis:
    """A basis whose coordinates have mean 0 and deviation 1 over the states; kind ``causal``."""
    mean_H = states_MH.mean(0)
    std_R = ((states_MH - mean_H) @ w_HR).std(0)
    std_R = torch.where(std_R > 1e-9, std_R, torch.ones_like(std_R))
    return Basis(
        "causal", mean_H.cpu(), torch.ones_like(mean_H).cpu(), (w_HR / std_R).cpu(), (w_HR * std_R).T.cpu(),
        agent=agent, facts=facts,
    )  # fmt: skip


def zero(d_NH: Tensor) -> Tensor:
    """No patch."""
    return torch.zeros_like(d_NH)


def all_of(d_NH: Tensor) -> Tensor:
    """The whole state."""
    return d_NH
