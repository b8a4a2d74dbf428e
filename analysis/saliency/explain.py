"""Every gradient, attribution and check of a batch of samples.  S samples; other axes as in core.contracts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.saliency import randomisation
from analysis.saliency.attributions import deeplift, explainer, integrated, latent, occlusion
from analysis.saliency.checks import areas, infidelity, sensitivity
from analysis.saliency.config import SaliencyConfig
from analysis.saliency.frame import Attribution, Frame
from analysis.saliency.tables import summarise
from analysis.shared.gradients import (
    Gradients,
    compare_copies,
    each_copy,
    gradients,
    reading_at,
    samples_that_fit,
    unroll,
)
from analysis.shared.quantities import Quantity
from core import artefacts
from core.contracts import Simulator, UserError
from core.directions import Basis
from core.progress import track


class Explained(NamedTuple):
    """What ``explain`` gives: a row a sample."""

    obs: dict[str, np.ndarray]  # [S, T+1, ...], of the rollout without noise
    action: np.ndarray  # int64 [S, T+1]
    value: np.ndarray  # [S, T+1]
    alive: np.ndarray  # bool [S, T+1]
    arrays: dict[str, np.ndarray]  # gradients and attributions, by the names under which they are stored
    y: dict[str, np.ndarray]  # quantity -> [S], at the target step, without noise
    checks: dict[tuple[str, str, str], np.ndarray]  # (quantity, check, of what) -> value and controls [S, 1 to 3]


def noised(simulator: Simulator, z_SZ: Tensor, ids: Sequence[int], copies: int, sigma: float, seed: int) -> Tensor:
    """[S * copies, Z]: legal latents near each; a sample's noise depends on seed and id alone."""
    rows = []
    for z, i in zip(z_SZ, ids, strict=True):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + i + 1) % 2**63)
        rows.append(z + sigma * torch.randn(copies, len(z), generator=generator, dtype=z.dtype).to(z.device))
    return simulator.normalise(torch.cat(rows))


def explain(
    simulator: Simulator,
    z_SZ: Tensor,
    ids: Sequence[int],
    quantities: Sequence[Quantity],
    config: SaliencyConfig,
    basis: Basis | None = None,
) -> Explained:
    """Every gradient of every quantity for a batch of latents [S, Z] (no files, no global state).

    ids: names of the samples, which seed their noise.  basis: of hidden states, to give gradients in its coordinates.
    Raises UserError where a gradient is NaN or infinite.
    """
    target, copies = config.target_step, config.copies
    methods = [m for m in config.methods if config.integrated_steps or m not in ("integrated", "latent")]
    with torch.no_grad():
        start = simulator.start(z_SZ)
        states, outs = unroll(simulator, start, config.steps + 1)
    chosen_S = outs[target].action_B
    clean = reading_at(outs, target, chosen_S)
    fields = list(outs[0].obs)
    obs = {name: torch.stack([out.obs[name] for out in outs], 1) for name in fields}
    z_BZ = noised(simulator, z_SZ, ids, copies, config.noise, config.seed)
    arrays: dict[str, np.ndarray] = {}

    def put(name: str, x: Tensor) -> None:
        whole_S = torch.isfinite(x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]).all(1)
        if not whole_S.all():
            broken = [i for i, whole in zip(ids, whole_S.tolist(), strict=True) if not whole]
            raise UserError(
                f"{name} is NaN or infinite at sample {broken[0]} ({len(broken)} of {len(whole_S)} samples): the "
                "simulator or its samples are broken; choose other --sample_ids, or train the simulator again"
            )
        arrays[name] = x.detach().to("cpu", torch.float32).numpy()

    chosen_B = chosen_S.repeat_interleave(copies)
    compared = compare_copies(simulator, z_BZ, chosen_B, target, copies) if copies > 1 else None
    per_cut = {
        env_grads: gradients(
            simulator, z_BZ, chosen_B, quantities, target,
            steps=config.steps, copies=copies, env_grads=env_grads, compared=compared,
        )
        for env_grads in (True, False)
    }  # fmt: skip
    plain = each_copy(simulator, z_SZ, chosen_S, quantities, target, steps=config.steps) if "plain" in methods else None
    seen = {name: x[:, : target + 1] for name, x in obs.items()}
    frame = Frame(
        simulator.agent,
        {name: x[:, target] for name, x in obs.items()},
        {name: torch.zeros_like(x[:, 0]) if config.baseline == "black" else x.mean(1) for name, x in obs.items()},
        states[target].h_BH, clean.value_before_B, chosen_S,
    )  # fmt: skip
    checks: dict[tuple[str, str, str], np.ndarray] = {}
    for n, q in enumerate(quantities):
        whole, cut = per_cut[True][n], per_cut[False][n]
        for what in (*fields, "h", "d"):
            a, b = _part(whole, what), _part(cut, what)
            put(f"grad_{what}_{q.name}", a)
            put(f"grad_{what}_{q.name}_agent_only", b)
            put(f"grad_{what}_{q.name}_through_world", a - b)
            if plain is not None:
                put(f"plain_{what}_{q.name}", _part(plain[n], what))
        if basis is not None:
            put(f"grad_{basis.kind}_{q.name}", basis.pullback(whole.h))
        if "latent" in methods:
            maps, change, delta = latent(simulator, z_SZ, chosen_S, q, target, config.integrated_steps, len(z_BZ))
            put(f"latent_{q.name}", maps)
            put(f"latent_change_{q.name}", change)
            put(f"latent_delta_{q.name}", delta)
        if q.of_world:
            continue  # the agent alone knows nothing of it
        alike = randomisation.agent_randomisation(
            simulator.agent, seen, start.h_BH, chosen_S, q, config.seed, config.radius / 10, config.checks
        )
        for i, name in enumerate(("correlation", "floor", "ceiling")):
            arrays[f"randomised_{name}_{q.name}"] = alike["agent"][:, i]
        found: dict[str, Attribution] = {}
        if "integrated" in methods:
            found["integrated"] = integrated(frame, q, config.integrated_steps)
        if "deeplift" in methods:
            found["deeplift"] = deeplift(frame, q)
        if "occlusion" in methods:
            found["occlusion"] = occlusion(frame, q, config.window, config.stride)
        if found:
            with torch.no_grad():
                read = frame.read(q)
                put(f"change_{q.name}", read(*frame.inputs, *frame.fixed) - read(*frame.baselines, *frame.fixed))
        for method, attribution in found.items():
            for name, x in attribution.maps.items():
                put(f"{method}_{name}_{q.name}", x)
            if attribution.delta is not None:
                put(f"{method}_delta_{q.name}", attribution.delta)
        if config.checks:
            slope = {name: _part(cut, name)[:, target] for name in fields}
            checks |= check(frame, q, {"gradient": slope, **{m: x.maps for m, x in found.items()}}, config)
            checks |= {(q.name, "randomised", of_what): values for of_what, values in alike.items()}
    if config.checks and isinstance(simulator, torch.nn.Module):
        worlds = randomisation.world_randomisation(
            simulator, z_SZ, chosen_S, quantities, target, config.seed, config.noise
        )
        for q, alike in zip(quantities, worlds, strict=True):
            checks |= {(q.name, "randomised", of_what): values for of_what, values in alike.items()}
    return Explained(
        obs={name: x.cpu().numpy() for name, x in obs.items()},
        action=torch.stack([out.action_B for out in outs], 1).cpu().numpy(),
        value=torch.stack([out.value_B for out in outs], 1).cpu().numpy(),
        alive=torch.stack([out.alive_B for out in outs], 1).cpu().numpy(),
        arrays=arrays,
        y={q.name: q.read(clean).cpu().numpy() for q in quantities},
        checks=checks,
    )


def _part(g: Gradients, what: str) -> Tensor:
    return g.h if what == "h" else g.d if what == "d" else g.obs[what]


def check(
    frame: Frame, quantity: Quantity, maps: dict[str, dict[str, Tensor]], config: SaliencyConfig
) -> dict[tuple[str, str, str], np.ndarray]:
    """Checks of a quantity's pictures of the target frame, {method: maps [S, ...]}, by (quantity, check, method)."""
    out: dict[tuple[str, str, str], np.ndarray] = {}
    for method, of in maps.items():
        explain = explainer(frame, quantity, method, config.integrated_steps, config.window, config.stride)
        local = method == "gradient"
        # What raises the quantity here is the gradient times the change from the baseline.
        share = {n: x * (frame.obs[n] - frame.baseline[n]) if local else x for n, x in of.items()}
        measured = {
            "infidelity": infidelity(frame, quantity, of, local, config.draws, config.seed),
            "sensitivity": sensitivity(frame, explain, config.radius, config.draws, config.seed)[:, None],
            "insertion": areas(frame, quantity, share, True, config.seed),
            "deletion": areas(frame, quantity, share, False, config.seed),
        }
        out |= {(quantity.name, name, method): values for name, values in measured.items()}
    return out


def compute(
    simulator: Simulator,
    z_SZ: Tensor,
    ids: Sequence[int],
    quantities: Sequence[Quantity],
    config: SaliencyConfig,
    units: np.ndarray | None = None,
    basis: Basis | None = None,
) -> artefacts.Result:
    """``explain`` in chunks that fit into memory, as a Result.

    ids of combined samples: [-1].  units: the independent episode of each sample (default: its own).
    """
    size = config.batch_size or samples_that_fit(
        simulator, z_SZ, config.target_step + 1, config.copies, config.memory_gb * 1e9
    )
    chunks = [slice(i, i + size) for i in range(0, len(ids), size)]
    parts = [
        explain(simulator, z_SZ[c], ids[c], quantities, config, basis)
        for c in track(chunks, "saliency", unit="batches")
    ]

    def joined(rows: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(rows)

    result = artefacts.Result()
    fields = list(parts[0].obs)
    for name in fields:
        x = joined([p.obs[name] for p in parts])
        picture = x.ndim == 5 and x.shape[-1] == 3
        result.arrays[name] = (x * 255).round().clip(0, 255).astype(np.uint8) if picture else x
    for name in ("action", "value", "alive"):
        result.arrays[name] = joined([getattr(p, name) for p in parts])
    for name in parts[0].arrays:
        result.arrays[name] = joined([p.arrays[name] for p in parts])
    for q in quantities:
        result.arrays[f"y_{q.name}"] = joined([p.y[q.name] for p in parts])
    result.arrays["sample_ids"] = np.asarray(ids, np.int64)
    result.notes |= {
        "target_step": config.target_step,
        "units": {q.name: q.unit for q in quantities},
        "fields": fields,
        "combined": list(ids) == [-1],
        "copies": config.copies,
        "batch_size": size,
    }
    checks = {key: joined([p.checks[key] for p in parts]) for key in parts[0].checks}
    summarise(result, quantities, ids, np.asarray(ids) if units is None else units, config.seed, checks)
    return result
