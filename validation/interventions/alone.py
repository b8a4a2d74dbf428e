"""A study without a simulator: the real world alone is asked what a change of the hidden state does.

No world foretells, so that three of the statements of verdicts.py are about the real world only and are tested as
there: *exists*, *special*, and *through_world*, the effect beyond what runs through the agent's memory.  *needed* is
"not asked".  *size* is asked only of a claim that says what its quantity becomes ("on prob:right as 0.4": foretold at a
start is that less what it is there unaltered), which is then confirmed or refuted as elsewhere; no other claim is.
What a simulator would choose (which amount, which quantity) the real world chooses, on starts of their own.

Pairs are by snapshot, or by the seed where a world has none.  So the unaltered run is played twice: where its twin is
not the same, effects have to be larger by what the twins differ (the floor).

N starts, U units (worlds of many agents; else the starts themselves), G hypotheses, Q quantities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from analysis.shared.events import Event
from analysis.shared.truths import told_by
from core.artefacts import Result
from core.contracts import Agent, EnvSpec, UserError, VecEnv
from core.directions import Basis
from core.roll import action_noise
from core.stats import few
from core.when import Rule
from envs.registry import agents_a_world, renewed
from validation.hypotheses.grammar import Hypothesis, timed
from validation.interventions import verdicts
from validation.interventions.bench import AGE, Bench, effects_in
from validation.interventions.claims import about_starts, against_controls, beyond_memory, claims_of, parts_of
from validation.interventions.options import StudyOptions, check_options, in_time, note_directions, parse_study
from validation.interventions.start_when import started_in, where_started
from validation.interventions.statistics import (
    Controls,
    Trial,
    bands_of,
    judge,
    judge_special,
    of_change,
    scale_of,
    seen_of,
    special_of,
    through_memory,
)
from validation.interventions.study import (
    BRANCHES,
    CHOOSING_SEED,
    controls_of,
    decide,
    find_starts,
    without_controls,
)
from validation.interventions.verdicts import NOT_ASKED, OPEN, YES
from validation.interventions.world_edits import WorldEdit, world_edit_rows
from validation.paired.course import (
    Measures,
    in_words,
    is_late,
    quantities,
    unit_of,
    with_claimed,
    with_named,
)
from validation.paired.real import RealWorld, note_unshared
from validation.paired.shared import SharedWorld, shared_world
from validation.paired.starts import Starts, distinct_actions

FOUND = "found"  # it exists and is special; without a simulator nothing more is asked
CRITERIA = (
    "Without a simulator nothing was foretold but what a claim says itself ('as NUMBER'). Exists: the 95 % interval of "
    "the mean effect lies beyond the smallest size of interest and what unaltered twins differ by, and q <= 0.05 (no: "
    "its 90 % interval lies inside, also if the change acts at as large a share of the starts as these can all have "
    "missed). Special: further than directions that occur in the data, and than mixtures of the "
    "basis's own, chosen in the same way. Found: these two. Of a claim that says what its quantity becomes, size: more "
    "than half and less than twice the change that is said, each with a one-sided 95 % bound; confirmed: all three. "
    "Through the world: the effect beyond what runs through the agent's memory alone, with the actions of the "
    "unaltered run. Not asked: whether the size of any other claim is as foretold, and whether a world was needed to "
    "foretell it."
)
NOT_FORETOLD = {"size": "there is no simulator that foretold a size", "needed": "there is no simulator to compare with"}
Pool = Callable[[int], VecEnv]  # slots -> a world with so many


@dataclass
class Asked:
    """Real starts with the agent run on from them."""

    world: RealWorld | SharedWorld
    starts: Starts
    unit_N: np.ndarray
    envs: tuple[VecEnv, ...]

    def close(self) -> None:
        for env in self.envs:
            env.close()


def alone(
    agent: Agent, pools: tuple[Pool, Pool], basis: Basis, options: StudyOptions, device: torch.device,
    rule: Rule | None = None, who: str = "one", truth: Sequence[str] = (), edits: Sequence[WorldEdit] = (),
) -> Result:  # fmt: skip
    """The whole study.  pools: make the world that claims are tested in, and the one whose starts choose; who: the
    agents that are altered where a world has many, one a world or all; truth: the columns that this world tells of
    itself (``names_told``), for events and donors; edits: of numbers of the world itself,
    whose effects are table ``world_edits``.

    Table ``effects``, a row a (hypothesis, quantity); arrays of per-start effects; ``notes["claims"]``.  Raises
    UserError for what ``check_options`` and ``parse_study`` refuse, and for claims of events, which need a foretelling.
    Starts lie before a time limit (``in_time``).
    """

    def once(some: StudyOptions) -> Result:
        return _alone(agent, pools, basis, some, device, rule, who, truth, edits)

    return in_time(once, options)


def _alone(
    agent: Agent, pools: tuple[Pool, Pool], basis: Basis, options: StudyOptions, device: torch.device,
    rule: Rule | None, who: str, truth: Sequence[str], edits: Sequence[WorldEdit],
) -> Result:  # fmt: skip
    """``alone`` on one draw of starts; CutShort where a time limit cuts a run."""
    check_options(options, basis)
    hypotheses, events = parse_study(options, basis, agent.spec, rule, truth)
    for h in hypotheses:
        if h.role:
            raise UserError(f"hypothesis {h.name!r}: '{h.role} for' needs a simulator; say 'on event:{h.event}'")
    if options.start_when and agents_a_world(agent.spec) > 1:
        raise UserError("--start_when asks for starts of one agent; in a world of many say it in the hypothesis: "
                        "'shift ica:5 by +2 when behaviour=3'")  # fmt: skip
    rng = np.random.default_rng(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    made: list[Asked] = []
    try:
        parts = (options, options.seed), (options.to_choose(), options.seed + CHOOSING_SEED)
        for make, (asks, seed) in zip(pools, parts, strict=True):
            known = made[0].world.measures if made else None
            made.append(
                asked_in(agent, make, basis, events, asks, seed, generator, who, device, hypotheses, known, rule)
            )
            made[-1].world.run()  # a time limit is met here, before hours are spent
        asked, before = made
        choosing = Bench(basis, before.starts, before.world, rule)
        bench = Bench(basis, asked.starts, asked.world, rule, asked.world)
        explicit = bool(hypotheses)
        plan, chosen, hypotheses = decide(choosing, bench, hypotheses, options, events, rng)
        floor = twin_floor(asked.world)
        unaltered = {q: v[0] for q, v in asked.world.measure([None]).items()}
        own = effects_in(bench, asked.world, hypotheses, None, "real world")
        memory = effects_in(bench, asked.world, hypotheses, "memory", "real world, through memory")
        controls, picked = controls_of(choosing, bench, plan, chosen, options, generator, isotropic=False)
        picked += without_controls(bench, hypotheses) if explicit else []
        set_rows: list[dict[str, Any]] = []
        if edits:
            if isinstance(asked.world, SharedWorld):
                raise UserError("--world_edits and --shown_edits are for worlds of one agent, which have snapshots")
            set_rows = world_edit_rows(asked.world, edits, rng)
    finally:
        for one in made:
            one.close()
    rows = table_of(hypotheses, unaltered, own, memory, floor, asked.unit_N, controls, events, options, rng)
    result = Result(tables={"effects": rows, "paths": [], "doses": [], "needs": []})
    if set_rows:
        result.tables["world_edits"] = set_rows
    result.arrays = {"h": asked.starts.h_NH.cpu().numpy(), "age": asked.starts.age_N, "unit": asked.unit_N}
    result.arrays |= {f"observed/{q}": v for q, v in own.items()}
    result.arrays |= {f"observed, through memory/{q}": v for q, v in memory.items()}
    result.arrays |= {f"unaltered/{q}": v for q, v in unaltered.items()}
    said = "No simulator was given, so that nothing was foretold, and whether a world was needed was not asked."
    result.notes = {
        "verdicts": 2, "gate": {"answer": NOT_ASKED, "text": said, "rows": 0, "against": {}}, "warnings": [],
        "hypotheses": [h.name for h in hypotheses], "events": {e.name: e.text for e in events},
        "paired_by": asked.starts.paired_by, "criteria": CRITERIA, "chosen": [one.words for one in picked], "who": who,
        "claims": claims_of(rows, picked, explicit, verdict_of, claim_of),
    }  # fmt: skip
    note_directions(result, hypotheses, basis)
    result.notes["starts_in"] = started_in(options.start_when, basis, rule)
    about_starts(result.notes["claims"], result.notes["starts_in"])
    result.notes["claim"] = " ".join(c["text"] for c in result.notes["claims"] if c["headline"])
    if asked.starts.paired_by == "seed":
        result.notes["paired"] = "The world has no snapshots: pairs replay the same seed and actions up to the start."
    most = max(float(v.max()) for v in floor.values())
    result.scalar("twin_difference", most, "largest difference of two unaltered runs", len(asked.starts))
    if most:
        result.notes["warnings"].append(
            f"Two unaltered runs from the same starts differ, by up to {most:.3g}; effects count only beyond that."
        )
    zero = [g for g, h in enumerate(hypotheses) if h.is_nothing]
    if zero:
        result.scalar("zero_change_real", max(float(np.nanmax(np.abs(v[zero]))) for v in own.values()),
                      "largest effect of amount 0")  # fmt: skip
    return result


def names_told(make: Pool, spec: EnvSpec, slots: int = 1) -> tuple[str, ...]:
    """The truth columns that a world tells of itself as it goes.  slots: of a world of one agent; as many as are played
    later, where each number of slots has to be compiled (Craftax)."""
    agents = agents_a_world(spec)
    env = make(agents if agents > 1 else slots)
    try:
        return tuple(told_by(env.reset(0).truth))
    finally:
        env.close()


def matched_in(hypotheses: Sequence[Hypothesis]) -> tuple[str, ...]:
    """The truth columns by which donors are matched."""
    return tuple(dict.fromkeys(name for h in hypotheses for name in h.matched if name != AGE))


def asked_in(
    agent: Agent, make: Pool, basis: Basis, events: tuple[Event, ...], options: StudyOptions, seed: int,
    generator: torch.Generator, who: str, device: torch.device, hypotheses: Sequence[Hypothesis] = (),
    known: Measures | None = None, rule: Rule | None = None,
) -> Asked:  # fmt: skip
    """Starts in a world that is made anew, and the agent that can be run on from them.  known: what is measured, where
    other starts have told it (which actions do the same is looked up at starts); rule: of the behaviours that starts
    may have to be in."""
    agents, spec = agents_a_world(agent.spec), renewed(agent.spec)
    parts = spec.parts if spec.action_parts else ()
    words = spec.action_words or {name: (name,) for name in spec.action_names}
    actions = {word: [spec.action_names.index(name) for name in names] for word, names in words.items()}
    directions = with_claimed(options.directions, basis, (h.on for h in hypotheses))
    measures = known or Measures(
        actions, basis, directions, events, parts, matched_in(hypotheses), timed(hypotheses)
    )  # fmt: skip
    if agents > 1:
        env = make(options.starts * agents)
        shared = shared_world(
            agent, env, measures, horizon=options.horizon, latest=options.latest_start, seed=seed, who=who,
            greedy=options.greedy, device=device, limit=options.time_limit, whole=True,
        )  # fmt: skip
        return Asked(shared, shared.starts, shared.world_N, (env,))
    starts = find_starts(agent, 1, make, options, seed, device, where_started(options.start_when, basis, rule))
    env, branching = make(len(starts)), make(min(len(starts), BRANCHES))
    if known is None:
        note_unshared(env, starts)
    if known is None and not parts:
        named = with_named(distinct_actions(env, starts), env.spec, (h.on for h in hypotheses))
        measures = replace(measures, actions=named)
    shape = (len(starts), options.horizon + 1, agent.spec.n_actions)
    noise_NTA = action_noise(shape, generator, options.greedy)
    real = RealWorld(agent, starts.state, noise_NTA.to(device), measures, env, starts, branching, whole=True)
    return Asked(real, starts, np.arange(len(starts)), (env, branching))


@torch.no_grad()
def twin_floor(world: RealWorld | SharedWorld) -> dict[str, np.ndarray]:
    """{quantity: [N]}: by how much two unaltered runs from the same starts differ; 0 where a seed or a snapshot says
    everything."""
    one, other = (quantities(world.course(), world.measures) for _ in range(2))
    return {q: (one[q] - other[q]).abs().cpu().double().numpy() for q in one}


def by_unit(x_N: np.ndarray, unit_N: np.ndarray) -> np.ndarray:
    """Means of the starts of every unit that has any, [U] (or [U, Q] of [N, Q])."""
    return np.stack([x_N[unit_N == u].mean(0) for u in np.unique(unit_N)])


def table_of(
    hypotheses: Sequence[Hypothesis], unaltered: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray],
    memory: Mapping[str, np.ndarray], floor: Mapping[str, np.ndarray], unit_N: np.ndarray,
    controls: Mapping[Hypothesis, Controls], events: Sequence[Event], options: StudyOptions, rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a (hypothesis, late quantity that varies and is not what a changed direction is itself later), with what
    may be said without a simulator."""
    rows: list[dict[str, Any]] = []
    tests: list[Trial] = []
    draws = verdicts.draws_for(len(hypotheses) * sum(map(is_late, own)))
    for g, h in enumerate(hypotheses):
        own_h, memory_h = of_change(own, g), of_change(memory, g)
        scale = scale_of(h, unaltered, own_h, options.smallest)
        judged, here, size = scale
        if h.is_nothing or not judged:
            continue
        told = [h.says is not None and q.partition("@")[0] == h.on for q in judged]
        foretold = np.zeros((len(here), len(judged)))
        for j in np.flatnonzero(told).tolist():
            foretold[:, j] = (h.says - unaltered[judged[j]][here]) / size[judged[j]].unit
        each = scale.sample(own_h, foretold, through_memory(scale, h, memory_h, events), {}, unaltered, own_h)
        seen, foretold, through = (by_unit(x, unit_N[here]) for x in (each.seen, foretold, each.memory))
        tested = verdicts.test(each._replace(seen=seen, foretold=foretold, memory=through), rng, draws)
        for j, q in enumerate(judged):
            unit, twins = size[q].unit, float(floor[q][here].mean())
            least = size[q].smallest * unit + twins
            row: dict[str, Any] = {
                "world": "real", "hypothesis": h.name, "kind": h.kind, "direction": h.direction, "amount": h.amount,
                "quantity": q, "unit": unit_of(q), "path": h.through, **seen_of(tested, j, size[q]),
                "smallest": least, "twin_difference": twins, "special_p": float("nan"), "by_choice": False,
            }  # fmt: skip
            if told[j]:
                row |= {"foretold": float(foretold[:, j].mean()) * unit}
            row |= tested.paths(j, unit)
            if (mine := controls.get(h)) is not None:
                mean = float(own_h[q][here].mean())
                row |= special_of(q, mean, mine, memory_h[q][here]) | bands_of(q, mine)
            rows.append(row)
            tests.append(Trial(row, tested, j, size[q]._replace(smallest=least / unit), told[j]))
    judge(tests)
    judge_special(tests)
    for row in rows:
        row["verdict"] = verdict_of(row)
    return rows


def verdict_of(row: Mapping[str, Any]) -> str:
    """found, no effect or open; where the claim says a size, confirmed, refuted, no effect or open."""
    there, special = row["exists"], row["special"]
    if "foretold" in row:
        return verdicts.verdict(there, row["size"], special, row["foretold"], row["smallest"])
    if there == YES and special == YES:
        return FOUND
    return verdicts.NO_EFFECT if there == verdicts.NO else OPEN


def claim_of(row: Mapping[str, Any], how: str, headline: bool) -> dict[str, Any]:
    """A claim in words from its row."""
    unit = row["unit"]
    asked = ("exists", "size", "special") if "foretold" in row else ("exists", "special")
    undecided = [verdicts.NAMES[name] for name in asked if row[name] not in (YES, verdicts.FORETOLD)]
    said = {
        FOUND: "it exists and is special; nothing was foretold",
        verdicts.CONFIRMED: "it exists, is special, and is as large as was said",
        verdicts.REFUTED: verdicts.refuted(row["exists"], "said"),
        verdicts.NO_EFFECT: "no effect, alone, at this dose"
        + (", and none was said" if "foretold" in row else "; nothing was foretold"),
    }.get(row["verdict"], "open: " + ", ".join(undecided))
    if row["exists"] == YES and row["through_world"] == verdicts.NO:
        said += "; it is of the memory alone, not through the world"  # such as a value that is read from pushed states
    foretold = f"said {row['foretold']:+.3g}, " if "foretold" in row else ""
    text = (
        f"'{row['hypothesis']}' changes {in_words(row['quantity'])}: {foretold}seen {row['observed']:+.3g} "
        f"[{row['low']:+.3g}, {row['high']:+.3g}] {unit} in the real world (n = {row['n']}{few(row['n'])}): {said}"
        f"{verdicts.too_few(row['n'], row['starts_for_no'], row['verdict'])}."
    )
    words = {
        "exists": f"the smallest of interest is {row['smallest']:.2g}, of which unaltered twins differ by "
        f"{row['twin_difference']:.2g}; q = {row['q']:.2g}",
        "special": "it has no controls" if row.get("random_n") is None else against_controls(row, how),
        "through_world": beyond_memory(row), **NOT_FORETOLD,
    }  # fmt: skip
    if "foretold" in row:
        words["size"] = f"the claim says {row['foretold']:+.3g} {unit} on the mean"
    return {**row, "headline": headline, "sentence": said, "text": text, "parts": parts_of(row, words)}
