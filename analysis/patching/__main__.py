"""Which decisions a direction of the state carries: ``python -m analysis.patching DIR --policy POLICYDIR``.

At a recorded step the state's coordinate along one direction is replaced by its value at another time, all else is
kept, and the agent decides again from the same observation (so under the same mask): KL(original || patched) of each
head (of the only one, ``action``, where an action has no parts), in nats.  Beside it stand random directions that
occur, each from a recorded state to one of another unit, which move the state as far; a move of that length towards the
donor; and the donor's whole state.  This is activation patching (Geiger et al. 2021, "Causal abstractions of neural
networks"; Vig et al. 2020, arXiv:2004.12265) of one direction: what it says is about the heads at one step, not about
what follows in the world.

N patched steps, D directions, C random controls, P heads (parts of the action), H state.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.patching", file=sys.stderr)
    sys.exit(2)

import numpy as np
import torch

from agents.load import load_agent
from agents.policies import part_slices
from analysis.patching.config import PatchingConfig
from analysis.patching.directions import basis_directions, joined, pca_directions, probe_directions
from analysis.patching.patch import check_alignment, draw_steps, patch
from analysis.patching.table import ALL, read_and_used, summary, table_of
from analysis.shared.units import choose_unit, groups_told_of, shared_by
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.stats import ALPHA, least_units

STAGE = "patching"
LEAST_CONTROLS = 50
PCA_STATES = 50_000


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
    from analysis.patching.figures import draw

    check(config)
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    inputs = artefacts.Inputs({
        "extraction": config.extraction, "policy": config.policy, "probes": config.probes, "basis": config.basis
    })  # fmt: skip
    agent = load_agent(config.policy, device)
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
                "record it with record.py or analysis.extract_activations"
            )
        groups_E = groups_told_of(store)
        unit = choose_unit(groups_E, config.unit, least_units(ALPHA), store.path)
        steps = draw_steps(store, config, groups_E[unit], rng)
        ends_E = np.minimum(store.steps, store.rows)
        some_E = rng.permutation(np.flatnonzero(ends_E > 0))
        some_E = np.sort(some_E[: max(2, int(np.searchsorted(np.cumsum(ends_E[some_E]), PCA_STATES)))])
        h_MH = store.pooled("h", episodes=[int(e) for e in some_E])[0]["h"]
    found = [pca_directions(h_MH, config.pca_size)] if config.pca_size else []
    read: list[str] = []
    if config.probes is not None:
        found.append(probe_directions(config.probes, config.features, name))
        read = found[-1].names
    if config.basis is not None:
        found.append(basis_directions(config.basis, config.basis_kind, config.direction_ids, name))
    directions = joined(found)
    if directions.read_DH.shape[1] != steps.h_NH.shape[1]:
        raise UserError(
            f"the directions are of {directions.read_DH.shape[1]} numbers, the states have {steps.h_NH.shape[1]}"
        )
    aligned = check_alignment(agent, steps, config.batch)
    doses = sorted({*config.doses, 1.0})
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        patched = patch(
            agent, steps, directions, h_MH.astype(np.float64).std(0),
            doses=doses, controls=config.controls, batch=config.batch, seed=config.seed,
        )  # fmt: skip
        parts = list(part_slices(agent.spec))
        rows, dosed = table_of(
            patched, directions.names, parts, doses, steps.unit_N, resamples=config.resamples, rng=rng
        )
        result = Result(tables={"patching": rows, "doses": dosed})
        if config.probes is not None and read:
            result.tables["read_used"] = read_and_used(Result.load(config.probes).tables["targets"], rows, read)
        result.notes = {
            "agent": name, "donor": config.donor, "unit": unit, "units": len(np.unique(steps.unit_N)),
            "states": len(steps.h_NH), "controls": config.controls, "directions": directions.names,
            "heads": [*parts, ALL], "identity": patched.identity, **aligned,
            "shared": shared_by({n: of_E[steps.index_N2[:, 0]] for n, of_E in groups_E.items()}, unit),
        }  # fmt: skip
        result.scalar("identity", patched.identity, "nats, largest KL of patching in a step's own coordinate")
        result.arrays = {
            "index": steps.index_N2, "donor_index": steps.donor_index_N2, "direction_read": directions.read_DH,
            "direction_move": directions.move_DH, "kl": patched.dose_XDNP[doses.index(1.0)].astype(np.float32),
            "swap": patched.swap_NP.astype(np.float32), "choice": patched.choice_NP,
            "random": patched.random_DCNP.mean(2),
        }  # fmt: skip
        result.save(run.path)
        with run.figures():
            for file, figure in draw(result).items():
                figure.savefig(run.path / file, dpi=100, metadata={"Software": None})
        run.facts, run.metrics = {"agent": name}, result.scalars
    print(summary(result, config.out))


if __name__ == "__main__":
    cli.run(PatchingConfig, main, STAGE)
