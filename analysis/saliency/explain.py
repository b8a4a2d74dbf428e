"""Every gradient, attribution and check of a batch of samples.  S samples; other axes as in core.contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.saliency import randomisation
from analysis.saliency.attributions import deeplift, explainer, integrated, latent, occlusion
from analysis.saliency.checks import areas, infidelity, sensitivity
from analysis.saliency.config import SaliencyConfig
from analysis.saliency.frame import ROWS, Attribution, Frame, generator_of, noised, smoothed
from analysis.saliency.maps import AGENT_ONLY, WHOLE, MapsWriter, has_path, of_pixels
from analysis.saliency.tables import summarise
from analysis.shared.gradients import Gradients, Noised, gradients, mean_of, reading_at, samples_that_fit
from analysis.shared.quantities import Quantity
from analysis.shared.randomised import has_weights
from analysis.shared.samples import Latents
from core import artefacts, ranks
from core.contracts import UserError
from core.directions import Basis
from core.figures import as_bytes
from core.files import Spool
from core.progress import track
from core.roll import Simulator
from core.trees import Tree, flatten


class Explained(NamedTuple):
    """What ``explain`` gives: a row a sample."""

    obs: dict[str, np.ndarray]  # [S, T+1, ...], of the rollout without noise
    action: np.ndarray  # int64 [S, T+1]
    value: np.ndarray  # [S, T+1]
    alive: np.ndarray  # bool [S, T+1]
    arrays: dict[str, np.ndarray]  # gradients and attributions, by the names under which they are stored
    y: dict[str, np.ndarray]  # quantity -> [S], at the target step, without noise
    checks: dict[tuple[str, str, str], np.ndarray]  # (quantity, check, of what) -> value and controls [S, 1 to 3]


def frame_noise(
    obs: Mapping[str, Tensor], ids: Sequence[int], config: SaliencyConfig, pictures: Sequence[str]
) -> list[dict[str, Tensor]]:
    """Noise for every copy, [S, T+1, ...] a field, in shares of a frame's range: 1 of ``pictures``, of another field
    what the sample's own rollout spans.  A sample's noise depends on seed and id alone."""
    if config.copies == 1:
        return []
    out = []
    for copy in range(config.copies):
        draws: dict[str, list[Tensor]] = {name: [] for name in obs}
        for s, i in enumerate(ids):
            generator = generator_of(config.seed, i, copy)
            for name, x in obs.items():
                span = 1.0 if name in pictures else float(x[s].max() - x[s].min())
                drawn = torch.randn(x.shape[1:], generator=generator, dtype=x.dtype)
                draws[name].append((config.noise * span * drawn).to(x.device))
        out.append({name: torch.stack(found) for name, found in draws.items()})
    return out


def of_rollouts(
    worlds: Sequence[Simulator[Any]],
    z_SZ: Tensor,
    chosen_S: Tensor,
    quantities: Sequence[Quantity],
    config: SaliencyConfig,
) -> list[list[Gradients]]:
    """[whole, with the path action -> world cut] of every quantity; means over noised worlds where there are any."""
    copies = [gradients(w, z_SZ, chosen_S, quantities, config.target_step, steps=config.steps) for w in worlds]
    if len(copies) == 1:
        return copies[0]
    return [[mean_of([copy[n][path] for copy in copies]) for path in range(2)] for n in range(len(quantities))]


class Kept(NamedTuple):
    """Arrays of the samples ``ids``, none of which may be NaN or infinite."""

    ids: Sequence[int]
    arrays: dict[str, np.ndarray]

    def put(self, name: str, x: Tensor) -> None:
        """Keep an array [S, ...]; UserError where it is no number."""
        whole_S = torch.isfinite(x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]).all(1)
        if not whole_S.all():
            broken = [i for i, whole in zip(self.ids, whole_S.tolist(), strict=True) if not whole]
            raise UserError(
                f"{name} is NaN or infinite at sample {broken[0]} ({len(broken)} of {len(whole_S)} samples): the "
                "simulator or its samples are broken; choose other --sample_ids, or train the simulator again"
            )
        self.arrays[name] = x.detach().to("cpu", torch.float32).numpy()


def explain(
    simulator: Simulator[Any],
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
    target = config.target_step
    with torch.no_grad():
        memory = simulator.remembered(z_SZ)
        moments = list(simulator.roll(z_SZ, steps=config.steps))
    chosen_S = moments[target].action
    clean = reading_at(moments, target, chosen_S)
    obs = {name: torch.stack([m.shown.obs[name] for m in moments], 1) for name in moments[0].shown.obs}
    noise = frame_noise(obs, ids, config, simulator.world.spec.pictures)
    found = Kept(ids, {})
    worlds = [replace(simulator, world=Noised(simulator.world, more)) for more in noise] or [simulator]
    of_rollout = of_rollouts(worlds, z_SZ, chosen_S, quantities, config)
    plain = None
    if "plain" in config.methods:
        plain = gradients(simulator, z_SZ, chosen_S, quantities, target, steps=config.steps, paths=(True,))
    before = moments[target - 1].acted.state if target else memory
    frame = Frame(
        simulator.agent,
        {name: x[:, target] for name, x in obs.items()},
        {name: torch.zeros_like(x[:, 0]) if config.baseline == "black" else x.mean(1) for name, x in obs.items()},
        flatten(before), clean.value_before_B, chosen_S,
    )  # fmt: skip
    at_target = [{name: x[:, target] for name, x in more.items()} for more in noise]
    seen = {name: x[:, : target + 1] for name, x in obs.items()}
    checks: dict[tuple[str, str, str], np.ndarray] = {}
    for n, q in enumerate(quantities):
        whole, cut = of_rollout[n]
        for what in (*obs, "h", "d"):
            a, b = whole.of(what), cut.of(what)
            found.put(f"grad_{what}_{q.name}", a)
            found.put(f"grad_{what}_{q.name}_agent_only", b)
            found.put(f"grad_{what}_{q.name}_through_world", a - b)
            if plain is not None:
                found.put(f"plain_{what}_{q.name}", plain[n][0].of(what))
        if basis is not None:
            found.put(f"grad_{basis.kind}_{q.name}", basis.pullback(whole.h))
        if "latent" in config.methods and config.integrated_steps:
            each = [latent(w, z_SZ, chosen_S, q, target, config.integrated_steps, ROWS) for w in worlds]
            for part, copies in zip(("", "_change", "_delta"), zip(*each, strict=True), strict=True):
                found.put(f"latent{part}_{q.name}", torch.stack(copies).mean(0))
        if not q.of_world:  # the agent alone knows nothing of it
            slope = {name: cut.of(name)[:, target] for name in obs}
            checks |= of_frame(frame, at_target, q, slope, seen, memory, config, found)
    if config.checks and has_weights(simulator.world):
        shuffled = randomisation.world_randomisation(simulator, z_SZ, chosen_S, quantities, target, config.seed)
        for q, alike in zip(quantities, shuffled, strict=True):
            checks |= {(q.name, "randomised", of_what): values for of_what, values in alike.items()}
    return Explained(
        obs={name: x.cpu().numpy() for name, x in obs.items()},
        action=torch.stack([m.action for m in moments], 1).cpu().numpy(),
        value=torch.stack([m.acted.value_B for m in moments], 1).cpu().numpy(),
        alive=torch.stack([m.alive_B for m in moments], 1).cpu().numpy(),
        arrays=found.arrays,
        y={q.name: q.read(clean).cpu().numpy() for q in quantities},
        checks=checks,
    )


def of_frame(
    frame: Frame,
    noise: Sequence[Mapping[str, Tensor]],
    quantity: Quantity,
    slope: dict[str, Tensor],
    seen: Mapping[str, Tensor],
    memory: Tree,
    config: SaliencyConfig,
    found: Kept,
) -> dict[tuple[str, str, str], np.ndarray]:
    """Captum's methods of the target frame, put into ``found``; and the checks of all pictures of it, by (quantity,
    check, of what).  slope: the gradient there; seen, memory: all frames up to it, and the state before the first."""
    alike: dict[str, np.ndarray] = {}
    if has_weights(frame.agent):
        alike = randomisation.agent_randomisation(
            frame.agent, seen, memory, frame.chosen_S, quantity, config.seed, config.radius / 10, config.checks
        )
        for i, name in enumerate(("correlation", "floor", "ceiling")):
            found.arrays[f"randomised_{name}_{quantity.name}"] = alike["agent"][:, i]
    steps: dict[int, torch.nn.Module] = {}
    methods: dict[str, Callable[[Frame], Attribution]] = {
        "integrated": lambda f: integrated(f, quantity, config.integrated_steps),
        "deeplift": lambda f: deeplift(f, quantity, steps),
        "occlusion": lambda f: occlusion(f, quantity, config.window, config.stride),
    }
    asked = [m for m in methods if m in config.methods and (m != "integrated" or config.integrated_steps)]
    frames = noised(frame, noise)
    maps = {m: smoothed(frames, methods[m]) for m in asked}
    if maps:
        with torch.no_grad():
            read = frame.read(quantity)
            shown = torch.stack([read(*f.inputs, *f.fixed) for f in frames]).mean(0)
            change = shown - read(*frame.baselines, *frame.fixed)
        found.put(f"change_{quantity.name}", change)  # what the maps of a method that is complete add up to
    for method, attribution in maps.items():
        for name, x in attribution.maps.items():
            found.put(f"{method}_{name}_{quantity.name}", x)
        if attribution.delta is not None:
            found.put(f"{method}_delta_{quantity.name}", attribution.delta)
    if not config.checks:
        return {}
    checks = check(frame, quantity, {"gradient": slope, **{m: x.maps for m, x in maps.items()}}, found.ids, config)
    return checks | {(quantity.name, "randomised", of_what): values for of_what, values in alike.items()}


def check(
    frame: Frame, quantity: Quantity, maps: dict[str, dict[str, Tensor]], ids: Sequence[int], config: SaliencyConfig
) -> dict[tuple[str, str, str], np.ndarray]:
    """Checks of a quantity's pictures of the target frame, {method: maps [S, ...]}, by (quantity, check, method)."""
    out: dict[tuple[str, str, str], np.ndarray] = {}
    for method, of in maps.items():
        explain = explainer(frame, quantity, method, config.integrated_steps, config.window, config.stride)
        local = method == "gradient"
        # What raises the quantity here is the gradient times the change from the baseline.
        share = {n: x * (frame.obs[n] - frame.baseline[n]) if local else x for n, x in of.items()}
        measured = {
            "infidelity": infidelity(frame, quantity, of, local, config.draws, ids, config.seed),
            "sensitivity": sensitivity(frame, explain, config.radius, config.draws, config.seed)[:, None],
            "insertion": areas(frame, quantity, share, True, ids, config.seed),
            "deletion": areas(frame, quantity, share, False, ids, config.seed),
        }
        out |= {(quantity.name, name, method): values for name, values in measured.items()}
    return out


def written(part: Explained, quantities: Sequence[Quantity], maps: MapsWriter, field: str) -> Explained:
    """A chunk without its gradients by frames and world states; their norms stay.  Those by one field, a picture, are
    written as maps."""
    arrays = {}
    for name, x in part.arrays.items():
        if not name.startswith(tuple(f"{kind}_{of}_" for kind in ("grad", "plain") for of in (*part.obs, "d"))):
            arrays[name] = x
    for q in quantities:
        for path in ("", "_agent_only", "_through_world"):
            squares = [part.arrays[f"grad_{of}_{q.name}{path}"].astype(np.float64) ** 2 for of in part.obs]
            arrays[f"norm_{q.name}{path}"] = np.sqrt(sum(x.reshape(len(x), -1).sum(1) for x in squares))
        maps.put(WHOLE, q.name, of_pixels(part.arrays[f"grad_{field}_{q.name}"]))
        if has_path(q.name):
            maps.put(AGENT_ONLY, q.name, of_pixels(part.arrays[f"grad_{field}_{q.name}_agent_only"]))
    maps.advance(len(part.action))
    return part._replace(arrays=arrays)


def spooled(part: Explained, spool: Spool) -> Explained:
    """A chunk without what has more than a vector a sample, which goes into the spool."""
    for name, x in (*part.obs.items(), *part.arrays.items()):
        if x.ndim > 2:
            spool.add(name, x)
    few = {name: x for name, x in part.arrays.items() if x.ndim <= 2}
    return part._replace(obs={name: x for name, x in part.obs.items() if x.ndim <= 2}, arrays=few)


def compute(
    simulator: Simulator[Any],
    z_SZ: Tensor | Latents,
    ids: Sequence[int],
    quantities: Sequence[Quantity],
    config: SaliencyConfig,
    units: np.ndarray | None = None,
    basis: Basis | None = None,
    maps: MapsWriter | None = None,
    spool: Spool | None = None,
) -> artefacts.Result:
    """``explain`` in chunks that fit into memory, as a Result.

    ids of combined samples: [-1].  units: the independent episode of each sample (default: its own).  maps: is given
    every chunk's gradients by frames, which are then no arrays of the result.  spool: takes what has more than a vector
    a sample, so that memory holds a chunk of it (``Result.spooled``); it must be open until the result is saved.
    """
    size = config.batch_size or samples_that_fit(simulator, z_SZ[:1], config.target_step + 1, config.memory_gb * 1e9)
    chunks = [slice(i, i + size) for i in range(0, len(ids), size)]
    explained = ranks.each(
        chunks, lambda c: explain(simulator, z_SZ[c], ids[c], quantities, config, basis), "lower --batch_size"
    )
    parts, fields, spec = [], [], simulator.world.spec
    for found in track(explained, "saliency", len(chunks), unit="batches"):
        part = Explained(*found)
        fields = list(part.obs)
        part = part if maps is None else written(part, quantities, maps, spec.main_field)
        part = part._replace(obs={n: as_bytes(x) if n in spec.pictures else x for n, x in part.obs.items()})
        parts.append(part if spool is None else spooled(part, spool))

    def joined(rows: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(rows)

    result = artefacts.Result(spooled={} if spool is None else spool.arrays)
    for name in parts[0].obs:
        result.arrays[name] = joined([p.obs[name] for p in parts])
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
