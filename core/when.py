"""In which behaviour is the agent now?  A rule that tells it while the agent acts.

The behaviours stage clusters a step by its hidden state, the world around it and how both change over the next
steps.  While the agent acts the future is not known, and in the real world the simulator's world state is not either.
So "inside behaviour b" means here: a linear discriminant of the present h alone (Fisher; shrunk covariance, Ledoit &
Wolf 2004), fitted to the recorded steps and their labels, says b.  It is wrong in a known share of cases: ``found``
is measured on episodes that were left out of the fit, and goes into the manifest of whatever uses the rule.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.artefacts import MANIFEST, Result, read_manifest, sha256
from core.contracts import UserError
from core.episodes import RolloutStore
from core.stats import bootstrap_mean

FOLDS = 5
NOT_ASKED = -2  # in place of a label; -1 is one, of what is in no behaviour


@dataclass(frozen=True)
class Rule:
    """Present behaviour = the largest of ``h @ weight_HC + bias_C``, among the behaviours ``names_C``."""

    weight_HC: Tensor
    bias_C: Tensor
    names_C: Tensor  # int64
    facts: dict[str, Any] = field(default_factory=dict)  # where it comes from, how often it is right

    def __call__(self, h_BH: Tensor) -> Tensor:
        """int64 [B]."""
        return self.names_C[(h_BH @ self.weight_HC + self.bias_C).argmax(-1)]

    def check(self, behaviours: tuple[int, ...]) -> Rule:
        """The rule itself; UserError for a behaviour that it never tells."""
        known = [b for b in self.names_C.tolist() if b >= 0]  # -1: in none
        for b in behaviours:
            if b not in known:
                raise UserError(f"behaviour {b} does not exist; there are: {', '.join(map(str, known))}")
        return self

    def to(self, device: torch.device | str | None) -> Rule:
        moved: dict[str, Any] = {n: getattr(self, n).to(device) for n in ("weight_HC", "bias_C", "names_C")}
        return replace(self, **moved)

    def said_of(self, behaviours: tuple[int, ...]) -> dict[str, Any]:
        """For a manifest: how right the rule is, overall and about these behaviours."""
        found = {k: v for k, v in self.facts.items() if k != "of_behaviour"}
        return found | {"of_behaviour": {str(b): self.facts["of_behaviour"][str(b)] for b in behaviours}}


def put_rule(result: Result, h_NH: np.ndarray, label_N: np.ndarray, episode_N: np.ndarray) -> None:
    """Fit the rule and put it into the result of the behaviours; nothing where there are fewer than two of them."""
    if len(np.unique(label_N)) < 2:
        return
    rule = fit(h_NH, label_N, episode_N)
    arrays = {"rule_weight": rule.weight_HC, "rule_bias": rule.bias_C, "rule_names": rule.names_C}
    result.arrays |= {name: x.numpy() for name, x in arrays.items()}
    result.notes["rule"] = rule.facts


def load_rule(path: Path, agent: str | None = None) -> Rule:
    """The rule of a behaviours run directory, fitted to its real steps.

    agent: fingerprint of the agent they must be of.  Raises UserError.  A run of an earlier version holds no rule: it
    is fitted again, for which the rollouts that were labelled must be where they were, and the same.
    """
    path = Path(path)
    manifest = read_manifest(path, "behaviours")
    if agent is not None and manifest["facts"]["agent"] != agent:
        raise UserError(f"{path}: behaviours of agent {manifest['facts']['agent']}, not of {agent}")
    result = Result.load(path)
    if "rule" in result.notes:
        weight, bias, names = (torch.from_numpy(result.arrays[f"rule_{n}"]) for n in ("weight", "bias", "names"))
        return Rule(weight, bias, names, result.notes["rule"])
    if len(present := np.unique(result.arrays["labels_real"])) < 2:
        raise UserError(
            f"{path}: only behaviour {', '.join(map(str, present))} has real steps, so that nothing tells it from "
            "others; leave out --behaviours, or cluster anew: python -m analysis.behaviours with more --clusters, or a "
            "smaller --min_cluster_size"
        )
    source = manifest["inputs"]["rollouts"]
    rollouts = path / source["path"]
    if not (rollouts / MANIFEST).exists() or sha256(rollouts / MANIFEST) != source["manifest_sha256"]:
        raise UserError(f"{path} was made from {rollouts}, which is gone or has changed; run behaviours again")
    with RolloutStore(rollouts) as store:
        columns, index_N2 = store.pooled("h")
    where = {(int(e), int(t)): i for i, (e, t) in enumerate(index_N2)}
    rows = np.array([where[int(e), int(t)] for e, t in result.arrays["index_real"]])
    return fit(columns["h"][rows], result.arrays["labels_real"].astype(np.int64), index_N2[rows, 0])


def fit(h_NH: np.ndarray, label_N: np.ndarray, episode_N: np.ndarray, seed: int = 0) -> Rule:
    """The rule from hidden states and their labels; its facts from a cross-validation over whole episodes, NaN or None
    of what that cannot ask: a single episode leaves none to fit on, and others may show one behaviour alone."""
    from sklearn.model_selection import GroupKFold

    present = np.unique(label_N)
    if len(present) < 2:
        raise UserError(f"only behaviour {present[0]} has real steps, so that nothing tells it from others")
    folds = min(FOLDS, len(np.unique(episode_N)))
    told_N = np.full(len(label_N), NOT_ASKED)
    if folds >= 2:
        for train, test in GroupKFold(folds).split(h_NH, label_N, episode_N):
            if len(np.unique(label_N[train])) >= 2:
                weight, bias, names = _discriminant(h_NH[train], label_N[train])
                told_N[test] = names[(h_NH[test] @ weight + bias).argmax(1)]
    asked_N = told_N != NOT_ASKED
    found = bootstrap_mean((told_N == label_N)[asked_N], episode_N[asked_N], rng=np.random.default_rng(seed))
    of = {}
    for b in present:
        is_b, says_b = label_N == b, told_N == b
        both = float((is_b & says_b).sum())
        of[str(b)] = {
            "share": float(is_b.mean()),
            "found": both / float((is_b & asked_N).sum()) if (is_b & asked_N).any() else None,
            "right": both / float(says_b.sum()) if says_b.any() else None,
        }
    facts = {
        "rule": "linear discriminant of the present hidden state",
        "found": found.value, "found_interval": list(found.interval), "episodes": found.n,
        "chance": float(np.unique(label_N, return_counts=True)[1].max() / len(label_N)), "of_behaviour": of,
    }  # fmt: skip
    weight, bias, names = _discriminant(h_NH, label_N)
    return Rule(torch.from_numpy(weight).float(), torch.from_numpy(bias).float(), torch.from_numpy(names), facts)


def _discriminant(h_NH: np.ndarray, label_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weight [H, C], bias [C], behaviour of each column [C])."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    with warnings.catch_warnings():  # a behaviour of one step: it adds nothing to the spread, which is pooled
        warnings.filterwarnings("ignore", "Only one sample available", UserWarning)
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(np.asarray(h_NH, np.float64), label_N)
    weight, bias = model.coef_.T, model.intercept_
    if weight.shape[1] == 1:  # two behaviours: scikit-learn gives the difference alone
        weight, bias = np.concatenate([-weight, weight], 1) / 2, np.concatenate([-bias, bias]) / 2
    return weight, bias, model.classes_.astype(np.int64)
