"""Actions of several parts as whole ones, so that what an agent does is one choice among all combinations.

B windows, K steps, A numbers of all parts, W whole actions (the product of the parts' choices; the first part counts
most, as in numpy.ravel_multi_index).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from core.contracts import EnvSpec, UserError
from validation.fidelity.measures import log_softmax
from validation.fidelity.pairing import Paired, Side

MOST = 1024  # whole actions that are compared


def whole_actions(spec: EnvSpec) -> list[str]:
    """The names of the world's whole actions; of one part: of its actions.  UserError where there are too many."""
    if not spec.action_parts:
        return list(spec.action_names)
    if (count := int(np.prod(spec.parts))) > MOST:
        raise UserError(f"{spec.env_id} has {count:,} combinations of its actions' parts, and at most {MOST:,} are "
                        "compared as whole actions")  # fmt: skip
    return [" ".join(choice) for choice in itertools.product(*spec.names_of_parts)]


def whole_logits(logits: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    """Logarithms of the probabilities of whole actions [..., W], the parts being independent, from logits [..., A]."""
    out: np.ndarray = np.zeros((*logits.shape[:-1], 1))
    for part in np.split(logits, np.cumsum(parts)[:-1], -1):
        out = (out[..., :, None] + log_softmax(part)[..., None, :]).reshape(*logits.shape[:-1], -1)
    return out


def whole_numbers(action: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    """Numbers of whole actions, int64 [...], from those of their parts [..., P]."""
    out: np.ndarray = np.ravel_multi_index(tuple(np.moveaxis(action, -1, 0)), parts).astype(np.int64)
    return out


def as_whole(p: Paired, spec: EnvSpec) -> Paired:
    """The same with whole actions; a world of one part: as it is."""
    if not spec.action_parts:
        return p
    parts = spec.parts

    def of(side: Side) -> Side:
        return side._replace(logits=whole_logits(side.logits, parts), action=whole_numbers(side.action, parts))

    kept = {k: whole_logits(v, parts) if k.startswith("judge/") else v for k, v in p.kept.items()}
    strip = {k: whole_numbers(v, parts) if k == "action" else v for k, v in p.strip.items()}
    forced = None if p.forced is None else of(p.forced)
    return replace(p, real=of(p.real), free=of(p.free), forced=forced, dreamed=of(p.dreamed), kept=kept, strip=strip)
