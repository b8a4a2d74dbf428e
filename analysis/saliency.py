"""Saliency: what in the frames, in the agent's memory and in the world made a quantity what it is.

``python -m analysis.saliency --samples runs/demo/samples --sample_ids 0 to 8 --quantities action value``

A simulated rollout is run again from its latent, without noise, and the gradient of a quantity at a
target step is taken with respect to every frame, every hidden state h_t and every world state d_t,
averaged over slightly noised copies of the latent (SmoothGrad; analysis.gradients).  It is taken twice:
through agent and world, and with the path action -> world cut; the difference is the straight-through gradient by
way of the agent's own actions.  Captum's methods explain the target frame alone, and checks
say what the pictures are worth (analysis.attributions).

Gradients through actions and through the world's categorical states are straight-through: those of probabilities, not
of the discrete choice, by what the simulator does between two choices, which no training constrains.  A saliency
through them is a hypothesis, which validation.interventions tests (analysis.coupling enumerates actions instead).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis import attributions
from analysis.attributions import Attribution, Frame
from analysis.gradients import (
    Gradients,
    compare_copies,
    each_copy,
    gradients,
    reading_at,
    samples_that_fit,
    unroll,
)
from analysis.quantities import Quantity, find_quantities
from analysis.saliency_figures import draw
from core import artefacts, config as cli
from core.contracts import Simulator, UserError
from core.directions import Basis, fingerprint, load_basis
from core.episodes import RolloutStore
from core.interventions import parse_ids
from core.progress import track
from core.stats import Estimate, bootstrap_mean
from core.video import check_video

STAGE = "saliency"

Method = Literal["plain", "integrated", "deeplift", "occlusion", "latent"]


@dataclass(frozen=True, kw_only=True)
class SaliencyConfig:
    """Gradients of quantities at a target step with respect to frames, hidden states and world states; straight-through
    where they pass an action of the agent or a categorical state of the world."""

    simulator: Path = Path("bundles/coinrun-demo/simulator")
    """simulator run directory"""
    samples: Path = Path("runs/demo/samples")
    """simulated rollouts of that simulator (generative.record_samples)"""
    out: Path = Path("runs/saliency")
    """run directory to write"""
    sample_ids: tuple[str, ...] = ("0", "to", "8")
    """which episodes of --samples: ids, as in 33 39 56 84, and ranges A to B, which end before B as in Python
    (0 to 8 is 0, 1 ... 7)"""
    combine_samples_not_iterate: bool = False
    """explain one rollout from the mean of the samples' latents instead of each sample"""
    quantities: tuple[str, ...] = ("action", "value")
    """what to explain: value, value_delta (change since the step before), action (log-probability of the chosen
    one), leftwards, rightwards, jumping_up, jumping_left, jumping_right, any action by its name, direction_ID (of
    --basis_kind) or ica_ID, pca_ID ... (with --hidden_states), d_pca_ID ... (with --env_states)"""
    hidden_states: Path | None = None
    """hidden_states run directory, for quantities that are directions, and for gradients in their coordinates"""
    env_states: Path | None = None
    """run directory with a basis of world states, for the quantities d_pca_ID ..."""
    basis_kind: str = "ica"
    """the basis that direction_ID means, and gradients are given in: pca, ica, nmf, neurons"""
    methods: tuple[Method, ...] = ("integrated",)
    """besides the smoothed gradients: plain (gradients without noise), integrated (captum's integrated gradients of the
    target frame), deeplift and occlusion (captum's, of the target frame), latent (captum's integrated gradients of
    the whole rollout, by its latent; slow)"""
    checks: bool = False
    """check every picture of the target frame: infidelity, sensitivity, insertion and deletion, and parts of the agent
    and the world with shuffled weights"""
    steps: int = 10
    """transitions of the rollout that is shown"""
    target_step: int = 4
    """step at which the quantity is read; 0 is the first frame"""
    copies: int = 9
    """noised copies of the latent that a gradient is averaged over"""
    noise: float = 1.25e-4
    """standard deviation of that noise, in units of the latent"""
    integrated_steps: int = 32
    """points on the path of integrated gradients; 0 leaves them out"""
    window: int = 8
    """side of the square that occlusion covers, in pixels"""
    stride: int = 4
    """pixels between two such squares"""
    draws: int = 8
    """random changes of a frame that infidelity and sensitivity are measured on"""
    radius: float = 0.02
    """largest change of a number of the frame that sensitivity is asked for; a tenth of it is the standard deviation of
    the noise behind the ceiling of the randomised agents"""
    baseline: Literal["black", "mean"] = "black"
    """what the target frame is compared with: a black frame, or the mean frame of the rollout"""
    batch_size: int = 0
    """samples a forward pass; 0: as many as --memory_gb holds"""
    memory_gb: float = 1.0
    """what the copies of one batch may keep for their backward passes, in GB"""
    video: bool = True
    """write an MP4 beside every PNG"""
    seed: int = 0
    """seed of the noise and of the randomised agent"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def parse_sample_ids(words: Sequence[str], available: int) -> list[int]:
    """``33 39 56`` and ``A to B`` (without B) -> ids in the order given.

    Raises UserError: not a number, a range that is empty or lacks an end, an id that is not among
    ``available`` samples, an id given twice.
    """
    words = list(words)
    ids: list[int] = []
    at = 0
    while at < len(words):
        if words[at + 1 : at + 2] == ["to"]:
            ends = parse_ids([words[at], *words[at + 2 : at + 3]], "--sample_ids")
            if len(ends) < 2 or ends[1] <= ends[0]:
                raise UserError(f"--sample_ids {' '.join(words)}: A to B needs A < B; B itself is left out")
            ids += range(*ends)
            at += 3
        else:
            ids += parse_ids([words[at]], "--sample_ids")
            at += 1
    if not ids:
        raise UserError("--sample_ids is empty; give ids, or a range such as 0 to 8")
    for i in ids:
        if not 0 <= i < available:
            raise UserError(f"--sample_ids: no sample {i}; there are {available} (0 to {available - 1})")
    if len(set(ids)) < len(ids):
        raise UserError(f"--sample_ids names sample {next(i for i in ids if ids.count(i) > 1)} twice")
    return ids


# The whole of it


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
            maps, change, delta = attributions.latent(
                simulator, z_SZ, chosen_S, q, target, config.integrated_steps, len(z_BZ)
            )
            put(f"latent_{q.name}", maps)
            put(f"latent_change_{q.name}", change)
            put(f"latent_delta_{q.name}", delta)
        if q.of_world:
            continue  # the agent alone knows nothing of it
        alike = attributions.agent_randomisation(
            simulator.agent, seen, start.h_BH, chosen_S, q, config.seed, config.radius / 10, config.checks
        )
        for i, name in enumerate(("correlation", "floor", "ceiling")):
            arrays[f"randomised_{name}_{q.name}"] = alike["agent"][:, i]
        found: dict[str, Attribution] = {}
        if "integrated" in methods:
            found["integrated"] = attributions.integrated(frame, q, config.integrated_steps)
        if "deeplift" in methods:
            found["deeplift"] = attributions.deeplift(frame, q)
        if "occlusion" in methods:
            found["occlusion"] = attributions.occlusion(frame, q, config.window, config.stride)
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
        worlds = attributions.world_randomisation(
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
        explain = attributions.explainer(frame, quantity, method, config.integrated_steps, config.window, config.stride)
        local = method == "gradient"
        # What raises the quantity here is the gradient times the change from the baseline.
        share = {n: x * (frame.obs[n] - frame.baseline[n]) if local else x for n, x in of.items()}
        measured = {
            "infidelity": attributions.infidelity(frame, quantity, of, local, config.draws, config.seed),
            "sensitivity": attributions.sensitivity(frame, explain, config.radius, config.draws, config.seed)[:, None],
            "insertion": attributions.areas(frame, quantity, share, True, config.seed),
            "deletion": attributions.areas(frame, quantity, share, False, config.seed),
        }
        out |= {(quantity.name, name, method): values for name, values in measured.items()}
    return out


def summarise(
    result: artefacts.Result, quantities: Sequence[Quantity], ids: Sequence[int], units: np.ndarray, seed: int,
    checks: Mapping[tuple[str, str, str], np.ndarray] | None = None,
) -> None:  # fmt: skip
    """Put the table ``saliency`` (a row a sample and quantity), its means with intervals, and the table ``checks`` (a
    row a quantity, check and what was checked) into a result.

    Samples that ended before the target step are in the table, not in the means.  units: the independent
    episode of each sample."""
    checks = {} if checks is None else checks
    a = result.arrays
    target = result.notes["target_step"]
    fields = result.notes["fields"]

    def mean_of(values: np.ndarray) -> Estimate | None:
        known = np.isfinite(values) & a["alive"][:, target]
        if not known.any():
            return None
        return bootstrap_mean(np.asarray(values, np.float64)[known], units[known], rng=np.random.default_rng(seed))

    rows: list[dict[str, Any]] = []
    for q in quantities:
        sizes = {
            part: np.sqrt(
                sum(
                    (a[f"grad_{f}_{q.name}{part}"].reshape(len(ids), -1).astype(np.float64) ** 2).sum(1) for f in fields
                )
            )
            for part in ("", "_agent_only", "_through_world")
        }
        correlation = a.get(f"randomised_correlation_{q.name}", np.full(len(ids), np.nan))
        deltas = {m: a[f"{m}_delta_{q.name}"] for m in DELTAS if f"{m}_delta_{q.name}" in a}
        for s, i in enumerate(ids):
            row = {
                "sample": "combined" if result.notes["combined"] else i,
                "quantity": q.name,
                "unit": q.unit,
                "y": float(a[f"y_{q.name}"][s]),
                "alive": bool(a["alive"][s, target]),
                "gradient_norm": float(sizes[""][s]),
                "gradient_norm_agent_only": float(sizes["_agent_only"][s]),
                "gradient_norm_through_world": float(sizes["_through_world"][s]),
                "randomised_correlation": float(correlation[s]),
            }
            for m in DELTAS:
                change = a.get(f"latent_change_{q.name}" if m == "latent" else f"change_{q.name}")
                if any(f"{m}_delta_{other.name}" in a for other in quantities):
                    row[f"{m}_change"] = float(change[s]) if m in deltas and change is not None else np.nan
                    row[f"{m}_delta"] = float(deltas[m][s]) if m in deltas else np.nan
            rows.append(row)
        ratio = sizes["_through_world"] / np.maximum(sizes[""], np.finfo(np.float64).tiny)
        means = {"through_world": (ratio, "norm of the straight-through gradient by the world / norm of the whole")}
        for name in ("randomised_correlation", "randomised_floor", "randomised_ceiling"):
            if f"{name}_{q.name}" in a:
                means[name] = (a[f"{name}_{q.name}"], "Spearman correlation of |gradient|")
        for m, delta in deltas.items():
            name = "completeness_delta" if m == "integrated" else f"completeness_delta_{m}"
            means[name] = (np.abs(delta), q.unit)
        for name, (values, unit) in means.items():
            e = mean_of(values)
            if e is not None:
                result.scalar(f"{name}_{q.name}", e.value, unit, e.n, (e.low, e.high))
    result.tables["saliency"] = rows
    unit_of = {q.name: q.unit for q in quantities}
    table: list[dict[str, Any]] = []
    for (name, what, of), values in checks.items():
        row = {"quantity": name, "check": what, "of": of, "unit": CHECKS[what].unit or unit_of[name], "n": 0}
        parts = {"": values[:, 0]}
        labels = CHECKS[what].controls
        parts |= {f"_{label}": values[:, i + 1] for i, label in enumerate(labels)}
        if labels:  # paired, so that the interval is that of the difference
            parts["_minus_control"] = values[:, 0] - values[:, 1]
        for part in ("", "_control", "_minus_control", "_ceiling"):
            e = mean_of(parts[part]) if part in parts else None
            at = part.removeprefix("_") or "value"
            row |= {at: e.value if e else np.nan, f"{at}_low": e.low if e else np.nan}
            row |= {f"{at}_high": e.high if e else np.nan}
            row["n"] = e.n if e and not part else row["n"]
        row["good"] = CHECKS[what].good
        table.append(row)
    if table:
        result.tables["checks"] = table


class Check(NamedTuple):
    """How a check's numbers read."""

    unit: str  # "": the quantity's own
    controls: tuple[str, ...]
    good: str


CHECKS = {
    "infidelity": Check("squared unit", ("control",), "below control: the same map, its pixels shuffled"),
    "sensitivity": Check("relative change of the map", (), "small"),
    "insertion": Check("", ("control",), "above control: random order"),
    "deletion": Check("", ("control",), "below control: random order"),
    "randomised": Check("Spearman correlation of |gradient|", ("control", "ceiling"),
                        "not above control (two randomised ones), far below ceiling (two noises of the trained one)"),
}  # fmt: skip
DELTAS = ("integrated", "deeplift", "latent")  # methods that promise to add up


# The stage


def open_samples(path: Path, simulator: torch.nn.Module) -> RolloutStore:
    """Simulated rollouts of this very simulator; UserError otherwise."""
    store = RolloutStore(path)
    facts = store.manifest["facts"]
    if facts.get("source") != "simulated":
        raise UserError(f"{path} holds real rollouts; --samples needs simulated ones (generative.record_samples)")
    if facts.get("simulator") != fingerprint(simulator):
        raise UserError(f"{path} was recorded in another simulator; record samples in this one first")
    return store


def source_episodes(store: RolloutStore, episodes: Sequence[int]) -> np.ndarray:
    """int64: which independent episode each rollout belongs to.  Simulated rollouts that start in the same real
    episode are one; any other rollout is its own."""
    starts = [store.meta(e).get("start") for e in episodes]
    return np.array([-1 - e if s is None else int(s[0]) for e, s in zip(episodes, starts, strict=True)], np.int64)


def bases_in(
    path: Path | None, agent: str, device: torch.device, env_states: Path | None = None, simulator: str | None = None
) -> Callable[[str], Basis]:
    """kind -> basis of the hidden-states directory, and d_KIND -> that of the world-states one, each read once.

    agent, simulator: fingerprints that they must have been fitted on."""
    known: dict[str, Basis] = {}

    def basis_of(kind: str) -> Basis:
        if kind not in known:
            of_world = kind.startswith("d_")
            where, flag = (env_states, "--env_states") if of_world else (path, "--hidden_states")
            if where is None:
                raise UserError(f"the quantity {kind}_ID is a direction and needs {flag} DIR")
            basis = load_basis(where, kind.removeprefix("d_"), simulator if of_world else agent).to(device)
            if (basis.space == "d") != of_world:
                raise UserError(f"{where}: its {basis.kind} basis is one of {basis.space}; it does not go with {flag}")
            known[kind] = basis
        return known[kind]

    return basis_of


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


def main(config: SaliencyConfig) -> None:
    from generative.simulator import load_simulator

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    if not 0 <= config.target_step <= config.steps:
        raise UserError(f"--target_step {config.target_step} is not between 0 and --steps {config.steps}")
    cli.require(0, seed=config.seed)
    if not 0 < config.memory_gb < np.inf:
        raise UserError(f"--memory_gb {config.memory_gb:g} must be above 0")
    if config.copies < 1 or not 0 <= config.noise < np.inf or config.integrated_steps < 0 or config.batch_size < 0:
        raise UserError("--copies must be at least 1; --noise, --integrated_steps and --batch_size not negative")
    if not 1 <= config.stride <= config.window or config.draws < 1 or not 0 < config.radius < np.inf:
        raise UserError("--stride must be from 1 to --window; --draws at least 1; --radius above 0")
    if config.video:
        check_video()
    simulator = load_simulator(config.simulator, device)
    agent, names = fingerprint(simulator.agent), simulator.spec.action_names
    side = min(
        (n for x in simulator.spec.obs.values() if len(x.shape) == 3 for n in x.shape[:2]), default=config.window
    )
    if config.window > side:
        raise UserError(f"--window {config.window} does not fit into a frame of {side} pixels")
    with open_samples(config.samples, simulator) as store:
        ids = parse_sample_ids(config.sample_ids, len(store))
        basis_of = bases_in(config.hidden_states, agent, device, config.env_states, fingerprint(simulator))
        quantities = find_quantities(config.quantities, simulator.spec, basis_of, config.basis_kind)
        basis = None if config.hidden_states is None else basis_of(config.basis_kind)
        late = next((q for q in quantities if config.target_step < q.first_step), None)
        if late is not None:
            raise UserError(f"{late.name} needs --target_step {late.first_step} or later")
        z_SZ, units = torch.from_numpy(store.latents(ids)).to(device), source_episodes(store, ids)
    combined_ids = ids
    if config.combine_samples_not_iterate:
        z_SZ, ids = simulator.normalise(z_SZ.mean(0, keepdim=True)), [-1]
        units = units[:1]
    inputs = {"simulator": config.simulator, "samples": config.samples}
    if config.hidden_states is not None:
        inputs["hidden_states"] = config.hidden_states
    if config.env_states is not None:
        inputs["env_states"] = config.env_states
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        result = compute(simulator, z_SZ, ids, quantities, config, units, basis)
        if config.combine_samples_not_iterate:
            result.notes["combined_ids"] = combined_ids
        draw(result, run.path, names, config.video)
        result.save(run.path)
        run.metrics |= result.scalars
    print(f"saliency of {len(ids)} rollout(s), {len(quantities)} quantities: {config.out}")


if __name__ == "__main__":
    cli.run(SaliencyConfig, main, STAGE)
