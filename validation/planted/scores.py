"""How every method is scored in the planted worlds; ``validation.planted`` plays these and makes the table.

A job plays one method in one freshly drawn world and gives numbers.  The same number from many worlds is one
score.  Methods whose name begins with CONTROL are broken on purpose.

E episodes, X stimuli; other axes as in core.contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.behaviours.clustering import cluster
from analysis.behaviours.config import BehaviourOptions
from analysis.behaviours.histories import Steps
from analysis.coupling import (
    agreement as coupling_agreement,
    correlation,
    estimates,
    jacobian,
    tables,
)
from analysis.coupling.config import CouplingConfig
from analysis.coupling.edges import drawn
from analysis.saliency import explain
from analysis.saliency.config import SaliencyConfig
from analysis.shared import clusters, gradients
from analysis.shared.directions import fit_pca, principal_scores
from analysis.shared.gradients import agent_gradients
from analysis.shared.probe_fits import linear_probe
from analysis.shared.quantities import find_quantities, known_quantities
from analysis.shared.randomised import randomised
from core.artefacts import Result
from core.directions import Basis, name_of
from core.stats import ALPHA, cohens_d_interval, jackknife, least_permutations
from envs.planted import DELAY, SIZE, Kind, PlantedWorld, TwinModel, behaviour_of, planted_simulator, scene as scene_of
from envs.planted_truth import PlantedTruth
from validation.hypotheses.grammar import shift_of
from validation.interventions import verdicts
from validation.interventions.controls import FEWEST, Family, NothingToChooseError
from validation.interventions.options import StudyOptions
from validation.interventions.study import study, ways_of
from validation.paired.course import is_own
from validation.paired.simulated import SimulatedWorld
from validation.planted.claims import benches_of, judged_claims, many_claims, require_snapshots
from validation.planted.measures import (
    ACCUSED,
    AGREEMENT,
    AGREEMENT_ERROR,
    ARROWS,
    CAUSE_FOUND,
    CLOSED_FORM,
    CONFIRMED,
    CONTROL,
    CORRELATION_EDGES,
    CUT,
    D_COVERAGE,
    EDGES,
    EFFECT_ERROR,
    ELSEWHERE,
    FALSE_ALARMS,
    FALSE_EDGES,
    FIRST_ORDER,
    HISTORIES,
    MASS,
    MISSES,
    POWER,
    R2_CAUSE,
    R2_NUISANCE,
    RECOVERY,
    SIGNS,
    TWINS,
    Found,
    Key,
    Measure,
    significant,
)
from validation.planted.scene import Scene, draw, fitted_ica, match, negated

LAGS = (1, 2, DELAY)
WEAK = 0.125  # weight of the effects whose discovery is counted as power
TRIES = 3  # Jacobians of a kind, and probes, tried on each experiment without an effect
HAZARD = 0.2  # twice the chance of an ending a step where episodes are of unequal length: they last 2 to 25 steps
CONTEXT = 2  # the direction that tells the gated world's behaviour
CONFUSING = ("confounded", "mediated", "gated", "pixels")  # worlds in which directions correlate without an effect
ACTING: tuple[Kind, ...] = ("confounded", "linear", "mediated", "delayed", "gated", "pixels")  # by a mean Jacobian


def directions_job(kind: Kind, seed: int) -> Found:
    """Are the planted directions found?  Independent ones only: that is what ICA asks for."""
    scene = draw(kind, seed, episodes=200, steps=64)
    pca = fit_pca(scene.h_NH[scene.index_N2[:, 1] > 0], SIZE).to(dtype=torch.float64)
    fits = (("ICA", fitted_ica(kind, seed)), (f"{CONTROL}PCA for ICA", pca))
    return {Key(kind, name, RECOVERY): [float(np.abs(match(scene.known.basis, b)[1]).min())] for name, b in fits}


class Coupled(NamedTuple):
    """Coupling of the planted directions, and what should have come out: [behaviours, lags, K, K]."""

    result: Result
    effects: np.ndarray  # whose signs and zeros hold wherever the agent is
    judged: np.ndarray  # bool, entries that are not a direction's own past, nor of unknown sign
    planned: estimates.Plan

    def found(self) -> np.ndarray:
        """bool, what is drawn as an edge."""
        return drawn(self.result, "", ALPHA)


Jacobians = Callable[..., dict[str, Tensor]]  # as analysis.coupling.jacobian.jacobians


def couple(
    scene: Scene, seed: int, permutations: int, basis: Basis | None = None, *,
    jacobians: Jacobians = jacobian.jacobians,
) -> Coupled:  # fmt: skip
    """analysis.coupling, whole: correlations of the real episodes, Jacobians of simulated ones."""
    known, simulator = scene.known, scene.simulator
    basis = known.basis if basis is None else basis
    config = CouplingConfig(lags=LAGS, permutations=permutations, resamples=99, samples_per_behaviour=24, seed=seed)
    with torch.no_grad():
        h_ETH = simulator.rollout(scene.z_EZ, 12).h
    episodes, rows = h_ETH.shape[:2]
    index_N2 = np.stack([np.repeat(np.arange(episodes), rows), np.tile(np.arange(rows), episodes)], 1)
    h_NH = h_ETH.flatten(0, 1)
    label_N = np.repeat(behaviour_of(scene.options, scene.z_EZ[:, :SIZE].numpy()), rows)
    sampled = correlation.Labelled(
        index_N2, index_N2[:, 0], np.broadcast_to(label_N, len(h_NH)), basis.project(h_NH).numpy()
    )
    c_NK = basis.project(torch.from_numpy(scene.h_NH)).numpy()
    real_label_N = np.broadcast_to(behaviour_of(scene.options, scene.x_NX), len(c_NK))
    observed = correlation.Labelled(scene.index_N2, scene.episode_N, real_label_N, c_NK)
    behaviours = list(range(known.behaviours))
    planned = estimates.plan(simulator, scene.z_EZ, sampled, h_NH.numpy(), behaviours, config)
    found = estimates.couple(simulator, planned, observed, basis, behaviours, config, jacobians)
    effects = np.stack([known.effects(LAGS, behaviour=b) for b in behaviours])
    judged = ~np.eye(SIZE, dtype=bool) & ~(known.through_world_KK & (effects == 0))
    return Coupled(tables.assemble(found, behaviours, {}, basis.names, config), effects, judged, planned)


def exact_effects(scene: Scene, planned: estimates.Plan, basis: Basis) -> np.ndarray:
    """The closed form of the whole effects [lags, K, K] at the planned states of a world with one behaviour, the mean
    over episodes."""
    with torch.no_grad():
        moments = jacobian.unrolled(scene.simulator, planned.place, max(LAGS))
    even, found = np.full((max(LAGS), 3), 1 / 3), []
    for lag in LAGS:
        at = moments[max(LAGS) - lag]
        x_MX, c_MK = (x.detach().numpy() for x in (at.shown.features_BD, basis.project(at.h_BH)))
        by_action = [scene.known.effect_of_actions(x, c, lag).ravel() for x, c in zip(x_MX, c_MK, strict=True)]
        mean = estimates.mean_over_episodes(np.stack(by_action), planned.unit_M).mean(0).reshape(SIZE, SIZE)
        found.append(mean + scene.known.jacobian(even[:lag], env_grads=False))
    return np.stack(found)


def auroc(there: np.ndarray, score: np.ndarray) -> float:
    """Probability that an entry that is there scores higher than one that is not."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(there, score))


def share(of: np.ndarray, where: np.ndarray) -> float:
    """Share of the entries ``where`` that are also ``of``; 0 if there are none."""
    return float(of[where].mean()) if where.any() else 0.0


def coupling_job(kind: Kind, permutations: int, seed: int, jacobians: Jacobians = jacobian.jacobians) -> Found:
    """Are the arrows found, with their signs, and no others?"""
    scene = draw(kind, seed)
    coupled = couple(scene, seed, permutations, jacobians=jacobians)
    a, effects, judged = coupled.result.arrays, coupled.effects, coupled.judged
    there = effects != 0
    J, r, found = a["jacobian"], a["correlation"], coupled.found()
    flipped = couple(scene, seed, least_permutations(ALPHA), jacobians=lambda *given: negated(jacobians(*given)))
    wrong = flipped.result.arrays["jacobian"]
    out: Found = {
        Key(kind, "Jacobian coupling", EDGES): [auroc(there[judged], np.abs(J)[judged])],
        Key(kind, "Jacobian coupling", SIGNS): [share(np.sign(J) == np.sign(effects), there & judged)],
        Key(kind, "Jacobian coupling", FALSE_EDGES): [share(~there, judged & found)],
        Key(kind, "Jacobian coupling", ARROWS): [share(found, there & judged)],
        Key(kind, f"{CONTROL}sign flipped", SIGNS): [share(np.sign(wrong) == np.sign(effects), there & judged)],
        Key(kind, "lagged correlation", CORRELATION_EDGES): [auroc(there[judged], np.abs(r)[judged])],
    }
    if kind in CONFUSING:
        called = judged & (a["q_correlation"] <= ALPHA)
        out[Key(kind, f"{CONTROL}correlation as cause", FALSE_EDGES)] = [share(~there, called)]
    if kind == "mediated":
        world = np.abs(a["jacobian_through_world"])
        left = np.abs(a["jacobian_agent_only"])[there & judged].max() / np.abs(J)[there & judged].max()
        out[Key(kind, "Jacobian through the world", EDGES)] = [auroc(there[judged], world[judged])]
        out[Key(kind, "Jacobian of the agent alone", CUT)] = [float(left)]
        twin = scene._replace(simulator=planted_simulator(dtype=torch.float64, model=TwinModel(scene.options)))
        b = couple(twin, seed, least_permutations(ALPHA), jacobians=jacobians).result.arrays
        for method, name in (("actions enumerated", "jacobian_through_world"),
                             (f"{CONTROL}straight-through", "straight_through_world")):  # fmt: skip
            out[Key(kind, method, TWINS)] = [float(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max())]
    if kind not in ("gated", "pixels"):
        exact = exact_effects(scene, coupled.planned, scene.known.basis)
        out[Key(kind, "Jacobian coupling", CLOSED_FORM)] = [float(np.abs(J - exact).max())]
    if kind == "linear":
        ica = fitted_ica(kind, seed)
        order, cosine = match(scene.known.basis, ica)
        of_ica = couple(scene, seed, least_permutations(ALPHA), ica, jacobians=jacobians)
        J_ica = of_ica.result.arrays["jacobian"][..., order[:, None], order]
        J_ica = J_ica * np.sign(cosine)[:, None] * np.sign(cosine)
        out[Key(kind, "coupling of fitted ICA", EDGES)] = [auroc(there[judged], np.abs(J_ica)[judged])]
        out[Key(kind, "coupling of fitted ICA", SIGNS)] = [share(np.sign(J_ica) == np.sign(effects), there & judged)]
    return out


def value_gradient(known: PlantedTruth, probabilities_TA: np.ndarray) -> np.ndarray:
    """d value(T) / d x(t), as the agent reads the stimuli at steps 0 .. T, float64 [T+1, X]: closed form."""
    steps = len(probabilities_TA)
    onward = [known.jacobian(probabilities_TA[t:]) @ known.value_K for t in range(steps)] + [known.value_K]
    return np.stack(onward) @ known.numbers.U_KX


def saliency_job(kind: Kind, seed: int) -> Found:
    """Does saliency lie where the value really looks?"""
    scene = draw(kind, seed, episodes=8)
    simulator, known, target = scene.simulator, scene.known, DELAY
    value = known_quantities(simulator.world.spec)["value"]
    other = randomised(simulator.agent, seed)
    with torch.no_grad():
        out = simulator.rollout(scene.z_EZ, target)
    chosen_E, (name,) = out.action[:, target], out.obs
    broken = agent_gradients(other, out.obs, simulator.remembered(scene.z_EZ), chosen_E, value)[name].numpy()
    if known.mask_XHW is not None:
        config = SaliencyConfig(steps=target, target_step=target, integrated_steps=16, seed=seed)
        arrays = explain.explain(simulator, scene.z_EZ, range(len(scene.z_EZ)), [value], config).arrays
        there = known.mask_XHW[known.causal][..., None]

        def mass(map_EX: np.ndarray) -> list[float]:
            return [float((np.abs(map_EX) * there).sum() / np.abs(map_EX).sum())]

        # No action moves the value there, so that with and without the world it is the agent's memory alone.
        onward = np.stack([known.value_change(target - t) for t in range(target + 1)]) @ known.numbers.U_KX
        template_XF = scene_of(scene.options).template_XF

        def error(grad: np.ndarray) -> list[float]:
            of_brightness = grad.reshape(*grad.shape[:2], -1).astype(np.float64) @ template_XF.T
            return [float(np.abs(of_brightness - onward).max())]

        return {
            Key(kind, "gradient", MASS): mass(arrays["grad_frames_value"]),
            Key(kind, "gradient", CLOSED_FORM): error(arrays["grad_frames_value"]),
            Key(kind, "gradient, agent alone", CLOSED_FORM): error(arrays["grad_frames_value_agent_only"]),
            Key(kind, "gradient, agent alone", MASS): mass(arrays["grad_frames_value_agent_only"]),
            Key(kind, "integrated gradients", MASS): mass(arrays["integrated_frames_value"]),
            Key(kind, f"{CONTROL}randomised agent", MASS): mass(broken),
        }
    ((found, _),) = gradients.gradients(simulator, scene.z_EZ, chosen_E, [value], target, steps=target)
    C_XX = known.numbers.C_XX
    p_ETA = out.logits[:, :target].softmax(-1).numpy()
    exact = np.stack([value_gradient(known, p_TA) for p_TA in p_ETA])
    gradient, wrong = found.obs[name].numpy() @ C_XX, broken @ C_XX
    there = exact != 0
    return {
        Key(kind, "gradient", MASS): [float(np.abs(gradient[there]).sum() / np.abs(gradient).sum())],
        Key(kind, "gradient", CLOSED_FORM): [float(np.abs(gradient - exact).max())],
        Key(kind, f"{CONTROL}randomised agent", MASS): [float(np.abs(wrong[there]).sum() / np.abs(wrong).sum())],
    }


class Flipped(SimulatedWorld):
    """Derivatives of the wrong sign."""

    def jacobian(self, *given: Any, **named: Any) -> dict[str, Tensor]:
        return negated(super().jacobian(*given, **named))


def intervene(
    scene: Scene, directions: Sequence[int], starts: int, horizon: int, seed: int,
    simulated: type[SimulatedWorld] = SimulatedWorld,
) -> Result | None:  # fmt: skip
    """validation.interventions' study of a drawn world.  None where impulses are so rare that none comes within the
    horizon of any start: it claims nothing."""

    def make_env(slots: int) -> PlantedWorld:
        world = PlantedWorld(scene.options, slots)
        require_snapshots(world)
        return world

    options = StudyOptions(
        directions=tuple(directions),
        amounts=(2.0,),
        starts=starts,
        horizon=horizon,
        controls=FEWEST,
        latest_start=8,
        seed=seed,
    )
    try:
        return study(scene.simulator, make_env, scene.known.basis, options, simulated=simulated)
    except NothingToChooseError:
        return None


def closed_form(scene: Scene, result: Result, horizon: int) -> np.ndarray:
    """Effect of every hypothesis on the value ``horizon`` steps later, for every start [G, N], in a linear world."""
    per_unit = scene.known.value_change(horizon)
    c_NK = scene.known.basis.project(torch.from_numpy(result.arrays["h"])).numpy()
    rows = []
    for name in result.notes["hypotheses"]:
        kind, direction = name.split()[:2]
        own = np.arange(SIZE) == int(direction.partition(":")[2])
        if kind == "shift":
            rows.append(np.full(len(c_NK), 2 * per_unit[own][0]))
        else:
            rows.append(-c_NK @ np.where(own if kind == "collapse" else ~own, per_unit, 0.0))
    return np.stack(rows)


def shift_effect(result: Result, direction: int, quantity: str, source: str = "observed") -> np.ndarray:
    """Effect of shifting a direction on a quantity, for every start [N]."""
    effect: np.ndarray = result.arrays[f"{source}/{quantity}"][
        result.notes["hypotheses"].index(f"shift {name_of('planted', direction)} by +2")
    ]
    return effect


def accused(rows: Sequence[Mapping[str, Any]], direction: int) -> bool:
    """Whether an effect of a direction is said to exist in the real world, or confirmed, but that on what it is itself
    later; not of keeping it alone, which changes everything else."""
    name = name_of("planted", direction)
    said = [r for r in rows if r["direction"] == name and r["kind"] != "keep_only" and "verdict" in r]
    return any(
        r["exists"] == verdicts.YES or r["verdict"] == verdicts.CONFIRMED
        for r in said
        if not is_own(r["quantity"], (direction,))
    )


def interventions_job(kind: Kind, seed: int) -> Found:
    """Is the effect of a change what was predicted, and only where and when it should be?"""
    scene, method = draw(kind, seed), "paired interventions"
    causal, cause = scene.known.causal, scene.known.basis.names[scene.known.causal]
    horizon = 3 if kind == "linear" else DELAY  # the length of its chain
    result = intervene(scene, (causal, scene.known.nuisance), 32, horizon, seed)
    if result is None:
        return {} if kind == "confounded" else {Key(kind, method, ACCUSED): [0.0]}
    late = [q for q in (f"value@{horizon}", f"reward@{horizon}") if q not in result.notes["without_spread"]]
    errors = []
    for dose in result.tables["doses"]:
        if dose["quantity"] in late and dose["direction"] == cause:  # the nuisance's are 0 on both sides
            errors.append(abs(dose["predicted_simulated"] - dose["observed"]) / dose["spread"])
    out: Found = {Key(kind, method, EFFECT_ERROR): [float(np.mean(errors))]}
    if kind != "confounded":  # accusation_job asks it there, of more worlds
        out[Key(kind, method, ACCUSED)] = [float(accused(result.tables["effects"], scene.known.nuisance))]
    if kind in ("linear", "delayed"):
        value = f"value@{horizon}"
        broken = intervene(scene, (causal,), 32, horizon, seed, Flipped)
        assert broken is not None  # unaltered, it is the same simulator
        for name, study_of in ((method, result), (f"{CONTROL}sign flipped", broken)):
            first, seen = (study_of.arrays[f"{source}/{value}"] for source in ("jacobian", "observed"))
            out[Key(kind, name, FIRST_ORDER)] = [float(np.abs(first - seen).max())]
        exact = closed_form(scene, result, horizon)
        out[Key(kind, method, CLOSED_FORM)] = [float(np.abs(result.arrays[f"observed/{value}"] - exact).max())]
    if kind == "delayed" and (early := intervene(scene, (causal,), 32, DELAY - 1, seed)) is not None:
        out[Key(kind, method, ELSEWHERE)] = [float(np.abs(shift_effect(early, causal, f"value@{DELAY - 1}")).max())]
    if kind == "gated" and (soon := intervene(scene, (causal,), 32, 1, seed)) is not None:
        context_N = scene.known.basis.project(torch.from_numpy(soon.arrays["h"]))[:, CONTEXT].numpy()
        effect_N = np.abs(shift_effect(soon, causal, "value@1"))
        out[Key(kind, method, ELSEWHERE)] = [float(effect_N[context_N < 0].max(initial=0.0))]
        out[Key(kind, f"{CONTROL}behaviours pooled", ELSEWHERE)] = [float(effect_N.mean())]
    return out


def behaviours_job(seed: int) -> Found:
    """Are the behaviours found, as well as they can be, and told apart by the effect sizes they have?"""
    from sklearn.metrics import adjusted_rand_score

    out: Found = {}
    for name, effect in (("k-means of h", 1.0), (f"{CONTROL}no behaviours", 0.0)):
        scene = draw("mixture", seed, episodes=100, steps=64, effect=effect)
        late = scene.index_N2[:, 1] > 0
        label_N = behaviour_of(scene.options, scene.x_NX)[late]
        h_NH, episode_N = scene.h_NH[late], scene.episode_N[late]
        z_NH = (h_NH - h_NH.mean(0)) / h_NH.std(0)
        found_N, _ = clusters.nearest_centre(z_NH, clusters.k_means(z_NH, scene.known.behaviours, seed))
        out[Key("mixture", name, AGREEMENT)] = [float(adjusted_rand_score(label_N, found_N))]
        if not effect:
            continue
        rng = np.random.default_rng(seed)

        def agreement(rows: np.ndarray, label_N: np.ndarray = label_N, found_N: np.ndarray = found_N) -> float:
            return float(adjusted_rand_score(label_N[rows], found_N[rows]))

        ari, *ends = jackknife(agreement, episode_N, rng=rng)
        standard_error = (ends[1] - ends[0]) / (2 * 1.96)
        out[Key("mixture", name, AGREEMENT_ERROR)] = [float((ari - scene.known.cluster_agreement()) / standard_error)]
        exact, holds = scene.known.cohens_d(), []
        for b in range(scene.known.behaviours):
            _, low, high = cohens_d_interval(scene.c_NK[late], label_N == b, episode_N, rng=rng)
            holds.append((low <= exact[b]) & (exact[b] <= high))
        out[Key("mixture", "effect sizes", D_COVERAGE)] = [float(np.mean(holds))]
    lags = BehaviourOptions().lags
    for name, dwell, apart, ahead, measure in (
        ("clear behaviours, one lag", 0, 2.0, lags[:1], AGREEMENT),
        ("clear behaviours of histories", 0, 2.0, lags, HISTORIES),
        ("behaviours of histories", 0, 1.0, lags, HISTORIES),
        ("histories with switches", 64, 1.0, lags, HISTORIES),
    ):
        scene = draw("mixture", seed, episodes=100, steps=64, dwell=dwell, effect=apart)
        first = scene.index_N2[:, 1] < 64
        nothing = np.zeros(first.sum(), np.int64)
        value, policy = scene.c_NK[first, 0], np.zeros((len(nothing), 1))
        steps = Steps(scene.h_NH[first], None, value, nothing, policy, scene.index_N2[first])
        options = BehaviourOptions(
            clusters=scene.known.behaviours, lags=ahead, filmstrips=0, videos=0, surrogates=0, first_step=0
        )
        result = cluster([steps, None], options, seed, ["any"])
        where = {(int(e), int(t)): n for n, (e, t) in enumerate(scene.index_N2)}
        rows = [where[int(e), int(t)] for e, t in result.arrays["index_real"]]
        label_M, found_M = behaviour_of(scene.options, scene.x_NX)[rows], result.arrays["labels_real"]
        out[Key("mixture", name, measure)] = [float(adjusted_rand_score(label_M, found_M))]
        if measure is AGREEMENT:
            z_NH = (steps.h_NH - steps.h_NH.mean(0)) / steps.h_NH.std(0)
            truth_N = behaviour_of(scene.options, scene.x_NX)[first]
            # Density means little in eight dimensions: as in the stage, HDBSCAN gets three.
            others: tuple[tuple[str, clusters.Method, np.ndarray], ...] = (
                ("Ward", "ward", z_NH), ("HDBSCAN", "hdbscan", principal_scores(z_NH, 3)[0]),
            )  # fmt: skip
            for title, method, points in others:
                other_N, _ = clusters.find_clusters(points, method, clusters=scene.known.behaviours, seed=seed)
                out[Key("mixture", f"{title}, clear behaviours", AGREEMENT)] = [
                    float(adjusted_rand_score(truth_N, other_N))
                ]
            shuffled_M = np.random.default_rng(seed).permutation(found_M)
            out[Key("mixture", f"{CONTROL}labels shuffled", AGREEMENT)] = [
                float(adjusted_rand_score(label_M, shuffled_M))
            ]
    return out


def accusation_job(permutations: int, seed: int) -> Found:
    """A nuisance that every probe decodes: which methods take it for a cause?"""
    scene = draw("confounded", seed, episodes=24)
    known, simulator = scene.known, scene.simulator
    cause, nuisance = known.causal, known.nuisance
    others = [k for k in range(SIZE) if k not in (cause, nuisance)]
    coupled = couple(scene, seed, permutations)
    a = coupled.result.arrays
    quantities = find_quantities(["value", "action"], simulator.world.spec, lambda _: known.basis)
    with torch.no_grad():
        chosen_E = simulator.rollout(scene.z_EZ, 3).action[:, 3]
    sizes = [
        known.basis.pullback(g.h).abs().mean((0, 1)).numpy()
        for (g,) in gradients.gradients(simulator, scene.z_EZ, chosen_E, quantities, 3, steps=3, paths=(True,))
    ]
    options = StudyOptions(
        amounts=(2.0,), starts=32, horizon=3, controls=FEWEST, latest_start=8, seed=seed, first_order=False
    )
    benches = benches_of(simulator, lambda slots: PlantedWorld(scene.options, slots), known.basis, options)
    plan = [Family((ways_of(known.basis.kind, i, options),)) for i in (cause, nuisance)]
    accuses = names_cause = False
    try:
        ((claimed, quantity), _), rows = judged_claims(benches, plan, options)
        row = next(r for r in rows if (r["hypothesis"], r["quantity"]) == (claimed.name, quantity))
        accuses = accused(rows, nuisance)
        names_cause = row["exists"] == verdicts.YES and row["size"] == verdicts.FORETOLD
    except NothingToChooseError:  # it claims nothing
        pass
    rng = np.random.default_rng(seed)
    decoded = {
        i: linear_probe(scene.h_NH, scene.x_NX[:, i], scene.episode_N, rng=rng, shuffles=19).r2
        for i in (cause, nuisance)
    }

    def named(found: np.ndarray, direction: int = nuisance) -> list[float]:
        return [float(found[..., direction, others].any())]

    def seen(direction: int) -> list[float]:
        return [float(any(s[direction] > 0.01 * s.max() for s in sizes))]

    world = "confounded"
    return {
        Key(world, "Jacobian coupling", ACCUSED): named(coupled.found()),
        Key(world, "Jacobian coupling", CAUSE_FOUND): named(coupled.found(), cause),
        Key(world, "gradient", ACCUSED): seen(nuisance),
        Key(world, "gradient", CAUSE_FOUND): seen(cause),
        Key(world, "paired interventions", ACCUSED): [float(accuses)],
        Key(world, "paired interventions", CAUSE_FOUND): [float(names_cause)],
        Key(world, f"{CONTROL}correlation as cause", ACCUSED): named(a["q_correlation"] <= ALPHA),
        Key(world, f"{CONTROL}decodable as cause", ACCUSED): [float(decoded[nuisance].low > 0.5)],
        Key(world, "linear probe", R2_CAUSE): [decoded[cause].value],
        Key(world, "linear probe", R2_NUISANCE): [decoded[nuisance].value],
    }


def experiments(scene: Scene, runs: int) -> Iterator[tuple[np.ndarray, correlation.Labelled]]:
    """A drawn world's episodes as ``runs`` experiments: (rows, steps) of each, with step 0 kept."""
    episode_N = scene.episode_N
    for part in np.array_split(np.arange(episode_N.max() + 1), runs):
        rows = np.flatnonzero((episode_N >= part[0]) & (episode_N <= part[-1]))
        index = scene.index_N2[rows] - [part[0], 0]
        yield rows, correlation.Labelled(index, index[:, 0], np.zeros(len(rows), np.int64), scene.c_NK[rows])


def correlation_job(runs: int, episodes: int, permutations: int, seed: int) -> Found:
    """Correlations where there are none: how many tests call one, how many intervals leave 0 out; and how often
    Jacobians of no consequence seem to agree with them."""
    rng, lags = np.random.default_rng(seed), (1, DELAY)
    scene = draw("null", seed, episodes=episodes * runs, steps=24)
    uneven = experiments(draw("null", seed, episodes=episodes * runs, steps=24, hazard=HAZARD), runs)
    off = ~np.eye(SIZE, dtype=bool)
    by_step = f"{CONTROL}single steps permuted"
    out: Found = {}

    def note(method: str, measure: Measure, value: float) -> None:
        out.setdefault(Key("null", method, measure), []).append(value)

    other_NK = scene.c_NK[-len(scene.c_NK) // runs :]
    for run, (_, steps) in enumerate(experiments(scene, runs)):
        found = correlation.correlate(steps, [0], lags, permutations, 399, rng)
        low, high = found["ends"]
        note("lagged correlation", FALSE_ALARMS, float(significant(found["p"][..., off]).mean()))
        note("lagged correlation", MISSES, float(((low > 0) | (high < 0))[..., off].mean()))
        # Jacobians whose two ways are unrelated, the same, or opposite (then alike at all lags, too).
        J_M = rng.standard_normal((TRIES, 1, len(lags), SIZE, SIZE))
        alike_M = np.broadcast_to(J_M[:, :, :1], J_M.shape)
        across_M = alike_M.swapaxes(3, 4)
        kinds = {"": J_M, ", symmetric": alike_M + across_M, ", antisymmetric": alike_M - across_M}
        for measure, name in (("sign_agreement", "signs"), ("magnitude_rank_correlation", "magnitudes")):
            for kind, of_kind in kinds.items():
                p_M = [agreement_p(found, np.where(off, J, 0.0), off, measure, episodes) for J in of_kind]
                note(f"agreement of {name}{kind}", FALSE_ALARMS, float(significant(np.array(p_M)).mean()))
        shorter = correlation.correlate(next(uneven)[1], [0], lags, permutations, 2, rng)
        note("lagged correlation, unequal episodes", FALSE_ALARMS, float(significant(shorter["p"][..., off]).mean()))
        # Another experiment's directions cannot be read off this one's states.
        shuffles = least_permutations(ALPHA)
        p_M = [
            linear_probe(steps.c_NK, y_N, steps.unit_N, rng=rng, shuffles=shuffles, resamples=2).p
            for y_N in other_NK.T[:TRIES]
        ]
        note("linear probe", FALSE_ALARMS, float(significant(np.array(p_M)).mean()))
        other_NK = steps.c_NK
        if run % 10 == 0:
            alone = steps._replace(unit_N=np.arange(len(steps.unit_N)))
            p_of_steps = correlation.correlate(alone, [0], (1,), permutations, 2, rng)["p"]
            note(by_step, FALSE_ALARMS, float(significant(p_of_steps[..., off]).mean()))
    return out


def agreement_p(
    correlated: dict[str, np.ndarray], J: np.ndarray, off: np.ndarray, measure: str, episodes: int
) -> float:
    """p of analysis.coupling's agreement of correlations with a Jacobian [1, lags, K, K]."""
    none, nothing = np.zeros((2, *J.shape)), np.zeros(1, np.int64)
    coupled = estimates.Coupling(
        correlated["correlation"], correlated["p"], correlated["null"], none, {"": J}, {"": J}, {"": J}, {"": none},
        nothing, nothing, nothing, np.array([episodes]), 0.0, (),
    )  # fmt: skip
    return coupling_agreement.agreement(coupled, np.broadcast_to(off, J.shape), measure).p


def weak_correlation_job(runs: int, episodes: int, permutations: int, seed: int) -> Found:
    """Small lagged effects: how many correlations are noticed, and how many intervals miss the closed form."""
    rng = np.random.default_rng(seed)
    scene = draw("linear", seed, episodes=episodes * runs, steps=24, effect=WEAK)
    there, exact = scene.known.effects((1,))[0] != 0, scene.known.lagged_correlation(1, 25)
    off = ~np.eye(SIZE, dtype=bool)
    power, misses = (
        Key("linear", f"lagged correlation, {episodes} episodes", POWER),
        Key("linear", "lagged correlation", MISSES),
    )
    out: Found = {power: [], misses: []}
    for _, steps in experiments(scene, runs):
        found = correlation.correlate(steps, [0], (1,), permutations, 399, rng)
        low, high = found["ends"][:, 0, 0]
        out[power].append(float(significant(found["p"][0, 0][there & off]).mean()))
        out[misses].append(float(((low > exact) | (high < exact))[off].mean()))
    return out


def effect_job(runs: int, episodes: int, permutations: int, lean: float, seed: int) -> Found:
    """Effects that differ from episode to episode and are nothing on average (or, with ``lean``, a little): how often
    is a mean Jacobian, or a mean effect in the world, called one?"""
    rng, lags, count = np.random.default_rng(seed), (1, 2), runs * episodes
    scene = draw("null", seed, episodes=count, steps=8, fickle=1.0, lean=lean)
    simulator, known = scene.simulator, scene.known
    world = f"null, lean {lean:g}" if lean else "null"
    rate, size = (POWER, f", {episodes} episodes") if lean else (FALSE_ALARMS, "")
    parts = jacobian.jacobians(simulator, scene.z_EZ, known.basis, lags)
    found = (parts["direct"] + parts["through_world"]).numpy()
    off = ~np.eye(SIZE, dtype=bool)
    acts = off & (np.abs(found).max((0, 1)) > 0) if not lean else known.in_agent_KK
    out: Found = {}

    def note(method: str, measure: Measure, value: float) -> None:
        out.setdefault(Key(world, method, measure), []).append(value)

    for part in np.array_split(np.arange(count), runs):
        entries = found[part][:, :, acts].reshape(episodes, -1)
        over = estimates.mean_effect(entries, np.arange(episodes), permutations, rng)
        note(f"mean Jacobian{size}", rate, float(significant(over.p_X).mean()))
        if not lean:
            low, high = over.ends_2X
            note("mean Jacobian", MISSES, float(((low > 0) | (high < 0)).mean()))

    change = shift_of(known.basis.kind, 0, 1.0)
    rows = many_claims(simulator, scene.options, known.basis, change, "value@1", episodes, runs, seed)
    for row in rows:
        note(f"paired interventions{size}", rate, float(significant(np.array(row["p"]))))
        if not lean:
            note("paired interventions", MISSES, float(row["low"] > 0 or row["high"] < 0))
            note("paired interventions", CONFIRMED, float(row["verdict"] == verdicts.CONFIRMED))
    return out
