"""Which decisions a direction of the state carries: ``python -m analysis.patching DIR --policy POLICYDIR``.

At a recorded step the state's coordinate along one direction is replaced by its value at another time, all else is
kept, and the policy decides again from the same observation (so under the same mask): KL(original || patched) of each
head, in nats.  Beside it stand random directions that move the state as far, a move of that length towards the donor,
and the donor's whole state.  This is activation patching (Geiger et al. 2021, "Causal abstractions of neural
networks"; Vig et al. 2020, arXiv:2004.12265) of one direction: what it says is about the heads at one step, not about
what follows in the world.

N patched steps, D directions, C random controls, P heads (parts of the action), H state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
import tyro
from torch import Tensor

from agents.policies import kl_per_part, load_policy, log_probs, part_slices
from analysis.directions import fit_pca
from analysis.probes import Unit, choose_unit, groups_of
from core import artefacts, config as cli
from core.artefacts import Result, finite
from core.contracts import EnvSpec, UserError
from core.directions import fingerprint, load_basis
from core.episodes import RolloutStore
from core.progress import bar
from core.stats import band_of, benjamini_hochberg, few, least_units, ratios

STAGE = "patching"
ALPHA = 0.05
LEAST_CONTROLS = 50
LEAST_LOGIT = -1e8  # below: not allowed
VALUE_TOLERANCE = 1e-3  # relative; of a recorded value that is computed again
NOTHING = 1e-10  # nats; what rounding to float32 does is less
PCA_STATES = 50_000
ALL = "all heads"


@dataclass(frozen=True, kw_only=True)
class PatchingConfig:
    """Replace one coordinate of recorded states and see which heads of the policy notice."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """recorded states with observations (analysis.extract_activations)"""
    policy: Path
    """run directory of the policy that was recorded"""
    out: Path = Path("runs/patching")
    """run directory to write"""
    pca_size: int = 8
    """so many first principal components of the recorded states are patched; 0: none"""
    probes: Path | None = None
    """a run of analysis.probes: the directions that its linear probes read"""
    features: tuple[str, ...] = ()
    """of --probes, only these; none: every one"""
    basis: Path | None = None
    """a run with a fitted basis of these states (analysis.hidden_states)"""
    basis_kind: str = "ica"
    """which basis of --basis"""
    direction_ids: tuple[int, ...] = ()
    """of --basis, only these; none: every one"""
    donor: Literal["life", "any"] = "life"
    """where the other value comes from: another time of the same life, or any time of another unit"""
    doses: tuple[float, ...] = (0.25, 0.5, 1.0)
    """shares of the way to the donor's coordinate; 1 is the patch itself and is always done"""
    states: int = 512
    """patched steps, drawn at random"""
    controls: int = 500
    """random directions for every direction, each moving every state as far"""
    unit: Unit = "auto"
    """what is resampled whole: map, world (one run of it) or life; auto: the largest with at least 10"""
    resamples: int = 1000
    """bootstrap resamples of whole units"""
    batch: int = 128
    """steps decided at once"""
    seed: int = 0
    """seed of steps, donors, random directions and intervals"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


class Decider(Protocol):
    """What of a policy is needed (agents.policies.PolicyAgent)."""

    spec: EnvSpec

    def encode(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Any]: ...

    def heads(self, h_BH: Tensor, seen: Any) -> tuple[Tensor, Tensor]: ...


class Directions(NamedTuple):
    """D directions, each on its own: a state's coordinate is ``read @ h``; ``h + x * move`` has x more of it."""

    names: list[str]
    read_DH: np.ndarray
    move_DH: np.ndarray


class Steps(NamedTuple):
    """N recorded steps and their donors."""

    h_NH: np.ndarray  # float32
    donor_NH: np.ndarray
    obs: dict[str, np.ndarray]
    action_NP: np.ndarray
    value_N: np.ndarray
    unit_N: np.ndarray
    index_N2: np.ndarray  # (episode, t)
    donor_index_N2: np.ndarray


# Directions


def pca_directions(h_NH: np.ndarray, k: int) -> Directions:
    """The first k principal components of the z-scored states; numbers that never change are left alone."""
    basis = fit_pca(h_NH, k)
    read_DH = (basis.project_HK / basis.std_H[:, None]).double().numpy().T
    move_DH = (basis.std_H * basis.lift_KH).double().numpy()
    return Directions([f"pca_{i}" for i in range(k)], read_DH, move_DH)


def probe_directions(path: Path, features: Sequence[str], agent: str) -> Directions:
    """The directions that the linear probes of a run of analysis.probes read.  Raises UserError."""
    artefacts.read_manifest(path, "probes")
    result = Result.load(path)
    names = list(result.notes["directions"])
    if result.notes["agent"] != agent or result.notes["states"] != "h":
        raise UserError(f"{path} read {result.notes['states']} of agent {result.notes['agent']}, not h of {agent}")
    for name in features:
        if name not in names:
            raise UserError(f"{path} has no probe of {name!r}{cli.nearest(name, names)}; it has: {', '.join(names)}")
    ids = [names.index(name) for name in features or names]
    move_DH = result.arrays["direction_move"][ids]
    ids = [i for i, move_H in zip(ids, move_DH, strict=True) if move_H.any()]  # what is not read has no direction
    read_DH, move_DH = (result.arrays[f"direction_{x}"][ids] for x in ("read", "move"))
    return Directions([names[i] for i in ids], read_DH, move_DH)


def basis_directions(path: Path, kind: str, ids: Sequence[int], agent: str) -> Directions:
    """Directions of a fitted basis of h.  Raises UserError."""
    basis = load_basis(path, kind, agent)
    if basis.space != "h":
        raise UserError(f"{path}: the {kind} basis is of {basis.space}; a basis of h is needed")
    basis.check(ids)
    chosen = list(ids or range(basis.size))
    read_DH = (basis.project_HK / basis.std_H[:, None]).double().numpy().T[chosen]
    return Directions([f"{kind}_{i}" for i in chosen], read_DH, (basis.std_H * basis.lift_KH).double().numpy()[chosen])


def joined(parts: Sequence[Directions]) -> Directions:
    """All of them; UserError for none, or two of one name."""
    names = [name for part in parts for name in part.names]
    if not names:
        raise UserError("no direction to patch: give --pca_size, --probes or --basis")
    if len(set(names)) < len(names):
        raise UserError(f"two directions are called {next(n for n in names if names.count(n) > 1)!r}")
    return Directions(names, *(np.concatenate([part[i] for part in parts]) for i in (1, 2)))


# Steps


def draw_steps(store: RolloutStore, config: PatchingConfig, unit_E: np.ndarray, rng: np.random.Generator) -> Steps:
    """Random steps of random lives, and for each another time of the same life, or of a life of another unit."""
    ends_E = np.minimum(store.steps, store.rows)
    usable_E = np.flatnonzero(ends_E >= (2 if config.donor == "life" else 1))
    if not len(usable_E):
        raise UserError(f"{store.path}: no life has two steps, so none has another time to take a value from")
    if config.donor == "any" and len(np.unique(unit_E[usable_E])) < 2:
        raise UserError(f"{store.path}: --donor any needs two units at least; use life")
    pool_M2 = np.concatenate([np.stack([np.full(ends_E[e], e), np.arange(ends_E[e])], 1) for e in usable_E])
    index_N2 = pool_M2[np.sort(rng.permutation(len(pool_M2))[: config.states])]
    if config.donor == "life":
        other_N = rng.integers(1, ends_E[index_N2[:, 0]])  # steps ahead, around the end of the life
        donor_N2 = np.stack([index_N2[:, 0], (index_N2[:, 1] + other_N) % ends_E[index_N2[:, 0]]], 1)
    else:
        donor_N2 = pool_M2[rng.integers(len(pool_M2), size=len(index_N2))]
        while (same_N := unit_E[donor_N2[:, 0]] == unit_E[index_N2[:, 0]]).any():
            donor_N2[same_N] = pool_M2[rng.integers(len(pool_M2), size=int(same_N.sum()))]
    obs_names = [f"obs/{name}" for name in store.spec.obs]
    here = _rows_at(store, ["h", "action", "value", *obs_names], index_N2)
    return Steps(
        here["h"], _rows_at(store, ["h"], donor_N2)["h"], {n.partition("/")[2]: here[n] for n in obs_names},
        here["action"], here["value"], unit_E[index_N2[:, 0]], index_N2, donor_N2,
    )  # fmt: skip


def _rows_at(store: RolloutStore, names: Sequence[str], index_N2: np.ndarray) -> dict[str, np.ndarray]:
    """Columns at (episode, t), in this order; one episode in memory at a time."""
    out: dict[str, np.ndarray] = {}
    for e in np.unique(index_N2[:, 0]):
        columns, _ = store.pooled(*names, episodes=[int(e)])
        rows = np.flatnonzero(index_N2[:, 0] == e)
        for name, values in columns.items():
            out.setdefault(name, np.empty((len(index_N2), *values.shape[1:]), values.dtype))[rows] = values[
                index_N2[rows, 1]
            ]
    return out


@torch.no_grad()
def check_alignment(agent: Decider, steps: Steps, batch: int) -> dict[str, float]:
    """That these states, decided upon with these observations, are what the policy acted on.

    Every recorded action must be allowed, and every recorded value come out again.  Returns what was found; raises
    UserError.
    """
    least, off = np.inf, 0.0
    for rows in np.array_split(np.arange(len(steps.h_NH)), -(-len(steps.h_NH) // batch)):
        h_BH, seen = _shown(agent, steps, rows)
        logits_BA, value_B = agent.heads(h_BH, seen)
        action_BP = torch.from_numpy(steps.action_NP[rows]).to(h_BH.device)
        least = float(np.minimum(least, float(log_probs(logits_BA, action_BP, agent.spec).min())))
        recorded_B = torch.from_numpy(steps.value_N[rows]).to(h_BH.device)
        off = float(np.maximum(off, float(((value_B - recorded_B).abs() / recorded_B.abs().clamp(min=1)).max())))
    if not least >= LEAST_LOGIT:
        raise UserError(
            "the policy could not have taken a recorded action: states, observations and actions do not belong "
            "together; extract the activations again"
        )
    if not off <= VALUE_TOLERANCE:
        raise UserError(
            f"the policy's value of a recorded state is {off:.2g} off the recorded one: states and observations do not "
            "belong together; extract the activations again"
        )
    return {"least_log_probability": least, "value_off": off}


def _shown(agent: Decider, steps: Steps, rows: np.ndarray) -> tuple[Tensor, Any]:
    device = next(agent.parameters()).device if isinstance(agent, torch.nn.Module) else torch.device("cpu")
    obs = {name: torch.from_numpy(values[rows]).to(device) for name, values in steps.obs.items()}
    return torch.from_numpy(steps.h_NH[rows]).to(device), agent.encode(obs)[1]


# Patching


class Patched(NamedTuple):
    """KL(original || patched) in nats, of every step and head."""

    dose_XDNP: np.ndarray  # by dose
    towards_DNP: np.ndarray  # a move of the patch's length towards the donor
    random_DCNP: np.ndarray  # float32
    swap_NP: np.ndarray
    identity: float  # largest KL of a patch with the step's own coordinate: exactly 0
    choice_NP: np.ndarray  # bool: more than one choice was allowed


@torch.no_grad()
def patch(
    agent: Decider, steps: Steps, directions: Directions, std_H: np.ndarray, *, doses: Sequence[float], controls: int,
    batch: int, seed: int,
) -> Patched:  # fmt: skip
    """Every direction, dose and control at every step.

    std_H: of the recorded states (0: never changes).  Lengths are those of the z-scored state, in which random
    directions are uniform, as in analysis.directions.random_basis; the same ones serve every direction, and a step's
    sign along them is that of its patch.
    """
    n, d, parts = len(steps.h_NH), len(directions.names), len(agent.spec.action_parts)
    rng = np.random.default_rng(seed)
    unit_CH = rng.standard_normal((controls, len(std_H))) * (std_H > 0)
    unit_CH /= np.linalg.norm(unit_CH, axis=1, keepdims=True)
    scale_H = np.where(std_H > 0, std_H, 1)
    change_NH = (steps.donor_NH - steps.h_NH).astype(np.float64)
    amount_DN = directions.read_DH @ change_NH.T
    length_DN = np.abs(amount_DN) * np.linalg.norm(directions.move_DH / scale_H, axis=1)[:, None]
    whole_N = np.linalg.norm(change_NH / scale_H, axis=1)
    share_DN = np.divide(length_DN, whole_N, out=np.zeros_like(length_DN), where=whole_N > 0)
    out = Patched(
        np.zeros((len(doses), d, n, parts)), np.zeros((d, n, parts)),
        np.zeros((d, controls, n, parts), np.float32), np.zeros((n, parts)), 0.0, np.zeros((n, parts), bool),
    )  # fmt: skip
    identity = 0.0
    batches = np.array_split(np.arange(n), -(-n // batch))
    with bar("patching", len(batches) * d, "directions") as progress:
        for rows in batches:
            h_BH, seen = _shown(agent, steps, rows)
            logits_BA, _ = agent.heads(h_BH, seen)

            def kl(change_BH: np.ndarray, h_BH: Tensor = h_BH, seen: Any = seen, logits_BA: Tensor = logits_BA) -> Any:
                moved_BH = h_BH + torch.from_numpy(change_BH.astype(np.float32)).to(h_BH.device)
                after_BA = agent.heads(moved_BH, seen)[0]
                return kl_per_part(logits_BA.double(), after_BA.double(), agent.spec).cpu().numpy()

            for p, part in enumerate(part_slices(agent.spec).values()):
                out.choice_NP[rows, p] = ((logits_BA[:, part] > LEAST_LOGIT).sum(-1) > 1).cpu().numpy()
            out.swap_NP[rows] = kl(change_NH[rows])
            for i in range(d):
                amount_B = amount_DN[i, rows, None]
                identity = max(identity, float(np.abs(kl(0 * amount_B * directions.move_DH[i])).max()))
                for x, dose in enumerate(doses):
                    out.dose_XDNP[x, i, rows] = kl(dose * amount_B * directions.move_DH[i])
                out.towards_DNP[i, rows] = kl(share_DN[i, rows, None] * change_NH[rows])
                signed_B = length_DN[i, rows, None] * np.sign(amount_B)
                for c in range(controls):
                    out.random_DCNP[i, c, rows] = kl(signed_B * (unit_CH[c] * scale_H))
                progress.advance()
    return out._replace(identity=identity)


# Statistics


def table_of(
    patched: Patched, names: Sequence[str], parts: Sequence[str], doses: Sequence[float], unit_N: np.ndarray, *,
    resamples: int, rng: np.random.Generator,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """(a row a direction and head, a row a direction, head and dose).

    Means are over the steps at which the head had a choice; a head with choices in fewer than six units is not tested.
    q: of the rank among the random directions, over all directions and heads; those of all heads together are a family
    of their own, since they follow from the others.
    """
    heads = [*parts, ALL]
    units, of_N = np.unique(unit_N, return_inverse=True)
    choice_NQ = np.column_stack([patched.choice_NP, patched.choice_NP.any(1)])
    member_EN = (of_N == np.arange(len(units))[:, None]).astype(np.float64)
    count_EQ = member_EN @ choice_NQ

    def sums(kl_NP: np.ndarray) -> np.ndarray:
        """[E, Q] over the steps with a choice of every unit."""
        out: np.ndarray = member_EN @ (np.column_stack([kl_NP, kl_NP.sum(-1)]) * choice_NQ)
        return out

    last = list(doses).index(1.0)
    swap_EQ = sums(patched.swap_NP)
    count_Q = choice_NQ.sum(0)
    rows: list[dict[str, Any]] = []
    dosed: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        kl_XEQ = np.stack([sums(kl_DNP[i]) for kl_DNP in patched.dose_XDNP])
        towards_EQ = sums(patched.towards_DNP[i])
        random = patched.random_DCNP[i].astype(np.float64)
        random = np.concatenate([random, random.sum(-1, keepdims=True)], -1)
        for k, head in enumerate(heads):
            if not count_Q[k]:
                rows.append({"direction": name, "head": head, "steps": 0, "verdict": "never had a choice"})
                continue
            here = count_EQ[:, k] > 0
            n, steps = int(here.sum()), count_EQ[here, k, None]
            by_dose = ratios(kl_XEQ[:, here, k].T, steps, rng=rng, draws=resamples).estimates()
            share = ratios(kl_XEQ[last, here, k, None], swap_EQ[here, k, None], rng=rng, draws=resamples).estimates()[0]
            dose_1, swap = by_dose[last], float(swap_EQ[:, k].sum() / steps.sum())
            random_C = random[:, choice_NQ[:, k], k].mean(1)
            band = band_of(random_C, ALPHA)
            rows.append(
                {
                    "direction": name, "head": head, "kl": dose_1.value, "low": finite(dose_1.low),
                    "high": finite(dose_1.high), "swap": swap, "share": finite(share.value),
                    "share_low": finite(share.low), "share_high": finite(share.high),
                    "towards_donor": float(towards_EQ[:, k].sum() / steps.sum()),
                    "random": float(random_C.mean()), "random_low": band[0], "random_high": band[1],
                    "p": float((1 + (random_C >= dose_1.value).sum()) / (1 + len(random_C))),
                    "steps": int(count_Q[k]), "n": n,
                }
            )  # fmt: skip
            dosed += [
                {"direction": name, "head": head, "dose": dose, "kl": e.value, "low": finite(e.low),
                 "high": finite(e.high)}
                for dose, e in zip(doses, by_dose, strict=True)
            ]  # fmt: skip
    enough = least_units(ALPHA)
    p = np.array([row["p"] if row.get("n", 0) >= enough else np.nan for row in rows])
    whole = np.array([row["head"] == ALL for row in rows])
    q = np.where(whole, *(benjamini_hochberg(np.where(some, p, np.nan)) for some in (whole, ~whole)))
    for row, q_value in zip(rows, q, strict=True):
        if "p" in row:
            row["q"] = finite(q_value)
            row["verdict"] = verdict(row)
    return rows, dosed


def verdict(row: Mapping[str, Any]) -> str:
    """What a row says, in words."""
    if row["q"] is None:
        return "too few choices to tell"
    if row["kl"] < NOTHING:
        return "moves nothing"
    if row["q"] <= ALPHA and row["low"] > 0:
        return "moves it more than random directions do"
    return "no more than random directions" if row["kl"] <= row["random_high"] else "not sure"


# The stage


def check(config: PatchingConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(LEAST_CONTROLS, controls=config.controls)
    cli.require(2, states=config.states)
    cli.require(1, batch=config.batch)
    cli.require(99, resamples=config.resamples)
    cli.require(0, pca_size=config.pca_size, seed=config.seed)
    if any(not 0 < dose <= 1 for dose in config.doses) or len(set(config.doses)) < len(config.doses):
        raise UserError("--doses are different shares of the way to the donor, above 0 and at most 1")
    if config.features and config.probes is None:
        raise UserError("--features belongs to --probes")
    if config.direction_ids and config.basis is None:
        raise UserError("--direction_ids belongs to --basis")


def main(config: PatchingConfig) -> None:
    from analysis.patching_figures import draw

    check(config)
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    agent = load_policy(config.policy, device)
    rng = np.random.default_rng(config.seed)
    with RolloutStore(config.extraction) as store:
        name, recorded = fingerprint(agent), store.manifest["facts"].get("agent")
        if recorded != name:
            raise UserError(
                f"{config.extraction} was recorded from another policy (agent {recorded}) than {config.policy} ({name})"
            )
        missing = [f for f in store.spec.obs if f"obs/{f}" not in store.column_names]
        if missing:
            raise UserError(
                f"{config.extraction} has no observations ({', '.join(missing)}), and the policy decides with them; "
                "extract the activations with analysis.extract_activations"
            )
        groups_E = groups_of(store)
        unit = choose_unit(groups_E, config.unit, least_units(ALPHA))
        steps = draw_steps(store, config, groups_E[unit], rng)
        ends_E = np.minimum(store.steps, store.rows)
        some_E = rng.permutation(np.flatnonzero(ends_E > 0))
        some_E = np.sort(some_E[: max(2, int(np.searchsorted(np.cumsum(ends_E[some_E]), PCA_STATES)))])
        h_MH = store.pooled("h", episodes=[int(e) for e in some_E])[0]["h"]
    found = [pca_directions(h_MH, config.pca_size)] if config.pca_size else []
    if config.probes is not None:
        found.append(probe_directions(config.probes, config.features, name))
    if config.basis is not None:
        found.append(basis_directions(config.basis, config.basis_kind, config.direction_ids, name))
    directions = joined(found)
    if directions.read_DH.shape[1] != steps.h_NH.shape[1]:
        raise UserError(
            f"the directions are of {directions.read_DH.shape[1]} numbers, the states have {steps.h_NH.shape[1]}"
        )
    aligned = check_alignment(agent, steps, config.batch)
    doses = sorted({*config.doses, 1.0})
    inputs = {"extraction": config.extraction, "policy": config.policy, "probes": config.probes, "basis": config.basis}
    given = {k: v for k, v in inputs.items() if v is not None}
    with artefacts.new_run(config.out, STAGE, config, given, overwrite=config.overwrite) as run:
        patched = patch(
            agent, steps, directions, h_MH.astype(np.float64).std(0),
            doses=doses, controls=config.controls, batch=config.batch, seed=config.seed,
        )  # fmt: skip
        parts = list(agent.spec.action_parts)
        rows, dosed = table_of(
            patched, directions.names, parts, doses, steps.unit_N, resamples=config.resamples, rng=rng
        )
        result = Result(tables={"patching": rows, "doses": dosed})
        result.notes = {
            "agent": name, "donor": config.donor, "unit": unit, "units": len(np.unique(steps.unit_N)),
            "states": len(steps.h_NH), "controls": config.controls, "directions": directions.names,
            "heads": [*parts, ALL], "identity": patched.identity, **aligned,
        }  # fmt: skip
        result.scalar("identity", patched.identity, "nats, largest KL of patching in a step's own coordinate")
        result.arrays = {
            "index": steps.index_N2, "donor_index": steps.donor_index_N2, "direction_read": directions.read_DH,
            "direction_move": directions.move_DH, "kl": patched.dose_XDNP[doses.index(1.0)].astype(np.float32),
            "swap": patched.swap_NP.astype(np.float32), "choice": patched.choice_NP,
            "random": patched.random_DCNP.mean(2),
        }  # fmt: skip
        result.save(run.path)
        for file, figure in draw(result).items():
            figure.savefig(run.path / file, dpi=100, metadata={"Software": None})
        run.facts, run.metrics = {"agent": name}, result.scalars
    print(summary(result, config.out))


def summary(result: Result, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    notes = result.notes
    rows = [row for row in result.tables["patching"] if row["head"] != ALL]
    tested = [row for row in rows if row.get("q") is not None]
    moved = [row for row in tested if row["verdict"].startswith("moves it")]
    lines = [
        f"{notes['states']} steps of {notes['units']} units ({notes['unit']}), donor: "
        f"{'the same life' if notes['donor'] == 'life' else 'another unit'}; {len(notes['directions'])} directions, "
        f"{notes['controls']} random ones each: {out}",
        f"  patching in the step's own coordinate changes {notes['identity']:g} nats; recorded values come out again "
        f"within {notes['value_off']:.1g}",
        f"  {len(moved)} of {len(tested)} pairs of direction and head move more than random directions as long "
        f"(q <= {ALPHA})",
    ]
    fewest = math.ceil(len(tested) / (1 + notes["controls"]) / ALPHA)
    if len(moved) < fewest > 1:
        lines.append(f"  fewer than {fewest} such pairs cannot be told from chance with {notes['controls']} --controls")
    for row in sorted(moved, key=lambda row: -row["kl"])[:10]:
        lines.append(
            f"  {row['direction']} -> {row['head']}: {row['kl']:.3g} nats [{row['low']:.3g}, {row['high']:.3g}]"
            f"{few(row['n'])}, random {row['random']:.3g}, "
            f"{row['share'] or 0:.0%} of the whole state's {row['swap']:.3g}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(PatchingConfig, main, STAGE)
