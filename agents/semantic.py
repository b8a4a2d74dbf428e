"""A policy that clusters its own states while it learns: *semantic clustering inside the policy*.

Beside the policy, h is embedded in a plane by two linear layers (feature dimensionality reduction, FDR), trained so
that neighbours in h are neighbours there (parametric t-SNE; van der Maaten 2009), and the plane is cut into the cells
of a small trained codebook (vector quantisation; van den Oord et al. 2017, arXiv:1711.00937).  The cell that a state
lies in is its *code*.  Two losses are added to PPO's, and a controller raises their weight with the return.

The agent is a RecurrentAgent with two more points, both views of h: ``plane`` and ``code``.  FDR is linear, so what is
put into the plane moves h by the shortest change that leads there, and all that is orthogonal to the plane stays.

C codes; other axes are core.contracts'.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agents.networks import glorot
from agents.ppo import PPOConfig, Rollout, clipped_loss, encode_sequences, unrolled
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from core import config as cli
from core.artefacts import WEIGHTS, load_json, load_weights, read_manifest, write_json
from core.contracts import EnvSpec, UserError
from core.ranks import ALONE, Processes
from core.roll import hot
from core.trees import Tree, rows_of
from envs.procgen_returns import returns_of
from envs.registry import renewed

DESCRIPTION = "semantic.json"  # beside agent.json, which says all else
PLANE = 2  # coordinates
WIDTH = 128  # of FDR's inner layer
LEAST = 1e-10  # of a probability
LOG_LEAST = math.log(LEAST)
BLOCK = 128  # points whose neighbours are worked out at once: they stay in a CPU's cache
BLOCK_OF_GPU = 2048  # ditto on a GPU, where what counts is how many operations it is given


@dataclass(frozen=True, kw_only=True)
class SemanticOptions:
    """Semantic clustering inside the policy (--policy semantic)."""

    codes: int = 8
    """codes of the codebook (also --num_embeddings)"""
    ordinal: bool = False
    """policy and value read h + index of the code / codes: an order among codes that means nothing"""
    alpha1: float = 20.0
    """degrees of freedom of the Student-t kernel of the features"""
    alpha2: float = 20.0
    """degrees of freedom of the Student-t kernel of the plane"""
    beta: float = 0.0
    """weight of the commitment loss, which draws states to their codes (0: codes are drawn to states alone)"""
    fdr_weight: float = 500.0
    """weight of the embedding's loss, before the controller's"""
    vq_weight: float = 1.0
    """weight of the codebook's loss, before the controller's"""
    codebook_rate: float = 0.01
    """share of the way to the mean of its states that a code goes at every minibatch, times the controller's weight
    (running means; van den Oord et al. 2017, appendix A.1); 0: codes learn by the gradient of the codebook's loss, in
    the optimiser's steps and within the clip of the whole gradient's norm"""
    stop_p: bool = False
    """no gradient through the features' own neighbourhoods p: the embedding follows the features, and no longer both
    each other"""
    semantic_minibatch: int = 2048
    """steps a minibatch must have: the embedding's loss is divided by their square, so that its weight holds for this
    number alone"""
    refresh: int = 50
    """updates between two looks of the controller at the return; before the first, its weight is 0"""
    score_max: float | None = None
    """return that counts as the highest; none: the game's, in its mode"""
    faithful_controller: bool = False
    """the controller as it was published: negative where returns are, and the easy mode's highest return in any mode"""

    def check(self, net: AgentConfig, ppo: PPOConfig) -> None:
        """UserError unless the options fit each other and the training."""
        cli.require(2, codes=self.codes, semantic_minibatch=self.semantic_minibatch)
        cli.require(1, refresh=self.refresh)
        cli.require(0, beta=self.beta, fdr_weight=self.fdr_weight, vq_weight=self.vq_weight)
        if not 0 <= self.codebook_rate <= 1:
            raise UserError(f"--codebook_rate {self.codebook_rate:g} must be a share, between 0 and 1")
        if self.alpha1 <= 0 or self.alpha2 <= 0:
            raise UserError("--alpha1 and --alpha2 must be above 0")
        if self.score_max is not None and self.score_max <= 0:
            raise UserError(f"--score_max {self.score_max:g} must be above 0")
        if net.hidden_size <= PLANE:
            raise UserError(f"--hidden_size {net.hidden_size}: a plane of {PLANE} needs more")
        steps = ppo.envs * ppo.rollout_steps // ppo.minibatches
        if steps != self.semantic_minibatch:
            raise UserError(
                f"a minibatch has {steps} steps (--envs x --rollout_steps / --minibatches), the losses of --policy "
                f"semantic are weighted for {self.semantic_minibatch}; change those, or --semantic_minibatch"
            )


class SemanticAgent(RecurrentAgent):
    """RecurrentAgent with the points ``plane`` [B, 2], where FDR puts h, and ``code`` [B, C], one-hot.

    A vector put at ``code`` means its largest entry; a state that has that code already stays as it is.
    """

    codebook_C2: nn.Parameter

    def __init__(self, config: AgentConfig, spec: EnvSpec, semantic: SemanticOptions) -> None:
        super().__init__(config, spec)
        self.semantic = semantic
        self.points = {**self.points, "plane": PLANE, "code": semantic.codes}
        self.fdr = nn.Sequential(nn.Linear(config.hidden_size, WIDTH), nn.Linear(WIDTH, PLANE))
        glorot(self.fdr)
        self.codebook_C2 = nn.Parameter(torch.empty(semantic.codes, PLANE).uniform_(-1, 1) / semantic.codes)

    def plane(self, h_BH: Tensor) -> Tensor:
        """Where FDR puts states, [B, 2]."""
        out: Tensor = self.fdr(h_BH)
        return out

    def code(self, plane_B2: Tensor) -> Tensor:
        """The nearest codes, int64 [B]."""
        return (plane_B2[:, None] - self.codebook_C2).square().sum(-1).argmin(1)

    @torch.no_grad()
    def draw_codes(self, plane_N2: Tensor, code_N: Tensor, share: float) -> None:
        """Codes go this share of the way to the mean of their states; one without states stays."""
        of_NC = hot(code_N, self.semantic.codes, plane_N2)
        states_C1 = of_NC.sum(0)[:, None]
        mean_C2 = of_NC.T @ plane_N2 / states_C1.clamp_min(1)
        self.codebook_C2.add_(share * (states_C1 > 0) * (mean_C2 - self.codebook_C2))

    def plane_axes(self) -> tuple[Tensor, Tensor]:
        """(how the plane depends on h [2, H], how h is moved by a move in the plane [2, H]: the least that does it)."""
        first, second = self.fdr[0].weight, self.fdr[1].weight
        down_2H = second.double() @ first.double()  # type: ignore[operator]
        up_2H = torch.linalg.solve(down_2H @ down_2H.T, down_2H)
        return down_2H, up_2H

    def moved(self, h_BH: Tensor, plane_B2: Tensor) -> Tensor:
        """States with another place in the plane."""
        _, up_2H = self.plane_axes()
        return h_BH + ((plane_B2 - self.plane(h_BH)).double() @ up_2H).to(h_BH.dtype)

    def heads(self, seen: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        if self.semantic.ordinal:
            h_BH = super().read("h", seen, state)
            with torch.no_grad():
                code_B = self.code(self.plane(h_BH))
            _, state = super().replaced("h", h_BH + code_B[:, None] / self.semantic.codes, seen, state)
        return super().heads(seen, state)

    def read(self, point: str, seen: Tensor, state: Tree) -> Tensor:
        if point not in ("plane", "code"):
            return super().read(point, seen, state)
        plane_B2 = self.plane(super().read("h", seen, state))
        if point == "plane":
            return plane_B2
        return nn.functional.one_hot(self.code(plane_B2), self.semantic.codes).to(plane_B2.dtype)

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        if point not in ("plane", "code"):
            return super().replaced(point, x_BN, seen, state)
        h_BH = super().read("h", seen, state)
        if point == "plane":
            return super().replaced("h", self.moved(h_BH, x_BN), seen, state)
        code_B = x_BN.argmax(-1)
        other_B = code_B != self.code(self.plane(h_BH))
        moved_BH = torch.where(other_B[:, None], self.moved(h_BH, self.codebook_C2[code_B]), h_BH)
        return super().replaced("h", moved_BH, seen, state)


# The losses


class CrossEntropy(torch.autograd.Function):
    """-sum p log q / N^2: p are the neighbourhoods of features [N, F], q those of the plane [N, 2], each a Student-t
    kernel of squared distances, (1 + d^2 / alpha)^(-(alpha + 1) / 2), normalised over the neighbours of a point without
    the point itself; both clipped at 1e-10.

    The gradient is worked out with the loss, a block of points at a time that stays in the cache: autograd on whole
    matrices takes longer (benchmarks/semantic.py).  Kernels are taken in logarithms, as those of features far apart are
    less than float32 holds.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, h_NH: Tensor, plane_N2: Tensor, alpha1: float, alpha2: float, stop_p: bool
    ) -> Tensor:
        n = len(h_NH)
        # Squared distances are differences of squared lengths: keep those small.
        x_NH, y_N2 = h_NH - h_NH.mean(0), plane_N2 - plane_N2.mean(0)
        to_x_NN, to_y_NN = h_NH.new_empty(0 if stop_p else n, n), h_NH.new_empty(n, n)  # dL / d squared distance
        total = torch.zeros((), dtype=torch.float64, device=h_NH.device)
        for rows in _blocks(h_NH):
            near_p, p = _neighbours(x_NH, rows, alpha1)
            near_q, log_q = _neighbours(y_N2, rows, alpha2)
            p.exp_()
            clipped_p, clipped_q = p.clamp_min(LEAST), log_q.clamp_min(LOG_LEAST)
            cross = clipped_p * clipped_q
            total -= cross.sum(dtype=torch.float64)
            counts = clipped_p.masked_fill_(log_q < LOG_LEAST, 0)
            move = counts.sub_(log_q.exp_().mul_(counts.sum(1, keepdim=True)))
            torch.mul(move, near_q, out=to_y_NN[rows])
            if not stop_p:
                told = clipped_q.masked_fill_(p < LEAST, 0).mul_(p)
                told.sub_(p.mul_(told.sum(1, keepdim=True)))
                torch.mul(told, near_p, out=to_x_NN[rows])
        scale = n**2
        ctx.to_plane = _pulled(to_y_NN, y_N2) / scale
        ctx.to_h = None if stop_p else _pulled(to_x_NN, x_NH) / scale
        return (total / scale).to(h_NH.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None if ctx.to_h is None else grad * ctx.to_h, grad * ctx.to_plane, None, None, None


def _blocks(x_NF: Tensor) -> list[slice]:
    size = BLOCK if x_NF.device.type == "cpu" else BLOCK_OF_GPU
    return [slice(first, min(first + size, len(x_NF))) for first in range(0, len(x_NF), size)]


def _neighbours(x_NF: Tensor, rows: slice, alpha: float) -> tuple[Tensor, Tensor]:
    """Of some points: (minus the derivative of the kernel's logarithm by the squared distance; logarithms of the
    probabilities of their neighbours), both [rows, N]."""
    length_N, x_RF = x_NF.square().sum(1), x_NF[rows]
    kernel = torch.addmm(length_N[rows, None] + length_N, x_RF, x_NF.T, alpha=-2).clamp_min_(0).div_(alpha).add_(1)
    power = (alpha + 1) / 2
    log_RN = kernel.log().mul_(-power)
    own_R = torch.arange(len(x_NF), device=x_NF.device)[rows]
    log_RN[own_R - rows.start, own_R] = float("-inf")
    log_RN.sub_(log_RN.logsumexp(1, keepdim=True))
    return kernel.reciprocal_().mul_(power / alpha), log_RN


def entropies(x_NF: Tensor, alpha: float) -> Tensor:
    """Entropy of the neighbourhood that ``CrossEntropy`` gives every point, float [N], in nats: e to it is how many
    neighbours a point has."""
    x_NF = x_NF - x_NF.mean(0)
    blocks = (_neighbours(x_NF, rows, alpha)[1] for rows in _blocks(x_NF))
    return torch.cat([torch.special.entr(log_RN.exp()).sum(1) for log_RN in blocks])


def _pulled(to_NN: Tensor, x_NF: Tensor) -> Tensor:
    """A gradient with respect to squared distances as one with respect to the points, [N, F]."""
    # Two products: a sum of a matrix and its transpose takes longer than the second one.
    sums_N = to_NN.sum(1) + to_NN.sum(0)
    return 2 * (sums_N[:, None] * x_NF - to_NN @ x_NF - to_NN.T @ x_NF)


def fdr_loss(h_NH: Tensor, plane_N2: Tensor, options: SemanticOptions) -> Tensor:
    """How badly neighbourhoods in the plane tell those of the features (``CrossEntropy``).  At first ln N / N, where
    the plane tells no neighbours apart."""
    loss: Tensor = CrossEntropy.apply(h_NH, plane_N2, options.alpha1, options.alpha2, options.stop_p)  # type: ignore[no-untyped-call]
    return loss


def vq_loss(plane_N2: Tensor, code_N2: Tensor, beta: float) -> Tensor:
    """Mean squared distance of codes from the states they are nearest to, and ``beta`` times that of states from
    them."""
    codebook = (plane_N2.detach() - code_N2).square().mean()
    return codebook + beta * (plane_N2 - code_N2.detach()).square().mean() if beta else codebook


@dataclass
class Controller:
    """The weight of both losses: min(score / (0.8 highest), 1), of the mean return of the last 100 episodes, looked at
    every ``refresh`` updates; 0 before the first look, and no less than 0 but where it is ``faithful``."""

    refresh: int
    highest: float
    faithful: bool = False
    updates: int = field(default=0)
    weight: float = field(default=0.0)

    @classmethod
    def of(cls, options: SemanticOptions, game: str, mode: str) -> Controller:
        """For a game.  Raises UserError where its highest return is not known."""
        highest = options.score_max
        if highest is None:
            try:
                highest = returns_of(game, "easy" if options.faithful_controller else mode)[1]
            except UserError as error:
                raise UserError(f"{error}; say --score_max") from None
        return cls(options.refresh, highest, options.faithful_controller)

    def collected(self, returns: deque[float]) -> None:
        """One more rollout; ``returns`` of the last episodes."""
        self.updates += 1
        if self.updates % self.refresh == 0 and returns:
            weight = min(float(np.mean(returns)) / (0.8 * self.highest), 1.0)
            self.weight = weight if self.faithful else max(weight, 0.0)


def semantic_loss_of(
    options: SemanticOptions, controller: Controller
) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """PPO's loss (the arguments of ``agents.ppo.loss_of``) plus the controller's weight times both losses; where codes
    are running means they are moved here, and their loss has no gradient for them.

    Both losses are the whole minibatch's in every process (neighbours of a state are in all shares of it), and so are
    the means that codes go to."""

    def loss_of(
        agent: SemanticAgent,
        r: Rollout,
        advantage: Tensor,
        columns: Tensor,
        config: PPOConfig,
        entropy_coef: float,
        processes: Processes = ALONE,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mine = processes.share(columns)
        obs = {k: v.index_select(1, mine) for k, v in r.obs.items()}
        seen = encode_sequences(agent, obs, config.bf16)
        seen, state = unrolled(agent, seen, rows_of(r.state_first, mine), r.is_first[:, mine])
        loss, parts = clipped_loss(
            *agent.heads(seen, state), r, advantage, columns, config, entropy_coef, processes, agent.spec.parts
        )
        h_NH = processes.whole(agent.read("h", seen, state))
        plane_N2 = agent.plane(h_NH)
        code_N = agent.code(plane_N2)
        fdr = fdr_loss(h_NH, plane_N2, options)
        codes_N2 = agent.codebook_C2[code_N]
        if options.codebook_rate:
            codes_N2 = codes_N2.detach()
            agent.draw_codes(plane_N2, code_N, options.codebook_rate * max(controller.weight, 0))
        vq = vq_loss(plane_N2, codes_N2, options.beta)
        parts["fdr_loss"], parts["vq_loss"] = fdr.detach(), vq.detach()
        parts["codes_used"] = torch.bincount(code_N, minlength=options.codes).count_nonzero()
        parts["semantic_weight"] = fdr.new_tensor(controller.weight)
        return loss + controller.weight * (options.fdr_weight * fdr + options.vq_weight * vq), parts

    return loss_of


# Run directories


def save_semantic(agent: SemanticAgent, path: Path, name: str = WEIGHTS) -> None:
    """Weights and what is needed to build the agent again."""
    write_json(path / DESCRIPTION, cli.to_json(agent.semantic))
    save_agent(agent, path, name)


def load_semantic(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> SemanticAgent:
    """The agent of a run directory, in eval mode, frozen.  UserError if there is none of this kind in it, if it is
    half-written, or if its weights are of another codebook."""
    path = Path(path)
    if DESCRIPTION not in read_manifest(path)["files"]:
        raise UserError(f"{path} holds no policy with semantic clusters; train one with train.py --policy semantic")
    data, about = load_json(path, "agent.json"), load_json(path, DESCRIPTION)
    if not isinstance(data, dict) or not {"net", "spec"} <= data.keys() or not isinstance(about, dict):
        raise UserError(f"{path / DESCRIPTION} is not the description of such a policy; copy or train it again")
    net: Any = cli.from_json(AgentConfig, data["net"])
    agent = SemanticAgent(net, renewed(EnvSpec.from_json(data["spec"])), cli.from_json(SemanticOptions, about))
    load_weights(agent, path, name)
    return agent.to(device).eval().requires_grad_(False)
