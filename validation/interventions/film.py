"""The frames of a study's videos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.artefacts import Result
from validation.hypotheses.grammar import Hypothesis
from validation.interventions.bench import Bench
from validation.paired.course import still_on

SHOWN = (0.1, 0.5, 0.9)  # of the effect over starts: the starts in the videos


def film(bench: Bench, result: Result, hypotheses: Sequence[Hypothesis]) -> None:
    """Frames of three starts for every claim, without and with the change in the real world and in the simulator, into
    arrays ``film/NUMBER`` uint8 [starts, 4, T, 64, 64, 3]: those whose effect is at the SHOWN quantiles.  Black where
    the episode is over."""
    assert bench.real is not None
    names = [h.name for h in hypotheses]
    filmed = [c for c in result.notes["claims"] if c["headline"] and {"quantity", "event"} & c.keys()]
    for number, claim in enumerate(filmed):
        h = hypotheses[names.index(claim["hypothesis"])]
        k = bench.real.noise_NTA.shape[1] - 1
        quantity = claim.get("quantity", f"event:{claim.get('event')}@{k}")
        effect_N = result.arrays[f"observed/{quantity}"][names.index(h.name)]
        about = np.flatnonzero(~np.isnan(effect_N))
        order = about[np.argsort(effect_N[about], kind="stable")]
        chosen = [int(order[round(share * (len(order) - 1))]) for share in SHOWN]
        rows = torch.tensor(chosen, device=bench.starts.h_NH.device)
        panels = []
        for change in (None, bench.build(h)):
            seen: list[np.ndarray] = []
            course = bench.real.course(() if change is None else (change,), h.through, seen)
            # Slots replay different stretches where there are no snapshots; a start's own begins at its offset.
            shown = [[seen[int(bench.starts.offset_N[n]) + t][n] for t in range(k + 1)] for n in chosen]
            panels.append(np.stack(shown) * still_on(course, rows))
        panels += list(bench.predictor.film(bench.build(h), h.through, rows))
        result.arrays[f"film/{number}"] = np.stack(panels, 1)
        claim["filmed"] = [{"start": n, "effect": float(effect_N[n])} for n in chosen]
