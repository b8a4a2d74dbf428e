"""What is asked live: the agent run on from a start, with and without a change of its hidden state or of the world, in
the simulator and in the real game with the same action noise; and what drives a quantity there.

A start is of the real world (N = 1 row of validation.paired's).  T = horizon + 1 steps, A actions, K directions.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from analysis.saliency.maps import of_pixels, quantised
from analysis.shared import edit_starts
from analysis.shared.edit_starts import EditStarts
from analysis.shared.gradients import gradients, reading_at, unroll
from analysis.shared.quantities import find_quantities
from core import config as cli, pages
from core.contracts import EnvSpec, Intervention, Shown, UserError, VecEnv, World
from core.directions import Basis, far_outside
from core.figures import as_bytes
from core.interventions import OnRows
from core.roll import Moment, Noise, Simulator, gumbel, index_of, probabilities, roll
from core.trees import Tree, flatten, joined, rows_of
from envs.procgen import ProcgenEnv
from envs.procgen_edits import parse_edit
from envs.registry import held_out_facts, held_out_pool, make
from generative.starts import from_known, started
from validation.edits.course import EditedWorld, shown_with
from validation.hypotheses.grammar import parse_edit_hypothesis, parse_hypothesis
from validation.paired.course import Course, Measures, course_along
from validation.paired.real import RealWorld
from validation.paired.simulated import SimulatedWorld
from validation.paired.starts import Starts, collect_starts
from validation.panel.contents import COLUMNS, most
from validation.panel.work import Job

LONGEST = 64  # steps that may be asked
LONGEST_TEXT = 300  # characters of a change in words
FORCED = 1e6  # noise that makes an action the agent's
FIELDS = {"start": int, "change": str, "edit": str, "horizon": int, "donor": int, "actions": list, "quantity": str,
          "target": int}  # fmt: skip
ANYTHING = "set velocity 0 0"  # an edit that can be made at any start
DRAWN = 4  # starts that are drawn at once
MOST_STARTS = 64
LATEST = 32  # step of its episode up to which a start is taken


@dataclass(frozen=True)
class Asked:
    """A question, checked."""

    start: int
    change: str = ""
    edit: str = ""
    horizon: int = 16
    donor: int = -1
    actions: tuple[str, ...] = ()  # forced from the start on
    quantity: str = ""
    target: int = 4


def asked_of(values: Mapping[str, Any], starts: int) -> Asked:
    """A question from JSON; UserError on anything it must not be."""
    for name, value in values.items():
        if name not in FIELDS:
            raise UserError(f"nothing called {name!r} can be asked; there are: {', '.join(FIELDS)}")
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise UserError(f"{name} must be {FIELDS[name].__name__}")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise UserError(f"{name} has more than {LONGEST_TEXT} characters")
    actions = values.get("actions", [])
    if len(actions) > LONGEST or not all(isinstance(a, str) for a in actions):
        raise UserError(f"actions must be at most {LONGEST} names")
    asked = Asked(**{**values, "actions": tuple(actions)}) if "start" in values else None
    if asked is None or not 0 <= asked.start < starts:
        raise UserError(f"start must be a number from 0 to {starts - 1}")
    if not -1 <= asked.donor < starts:
        raise UserError(f"donor must be another start, from 0 to {starts - 1}")
    if "target" not in values:  # of a short run its last step
        asked = replace(asked, target=min(asked.target, max(asked.horizon, 0)))
    if not 1 <= asked.horizon <= LONGEST or not 0 <= asked.target <= asked.horizon:
        raise UserError(f"horizon must be from 1 to {LONGEST}, and target from 0 to it")
    if asked.change and asked.edit:
        raise UserError("a change of the hidden state and an edit of the world: ask for one at a time")
    return asked


@dataclass(frozen=True)
class Ticking:
    """The intervention that changes nothing, counts the steps of a job, and ends it where it was given up."""

    job: Job

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        self.job.step(len(h_BH))
        return h_BH


class Watched:
    """A world whose steps, forward and back, end a job that was given up."""

    def __init__(self, world: World, job: Job) -> None:
        self.world, self.job, self.spec = world, job, world.spec

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._watched(*self.world.start(z_BZ, noise))

    def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._watched(*self.world.step(state, action_BA, noise))

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        return self.world.draw_noise(batch, generator)

    def _watched(self, state: Tree, shown: Shown) -> tuple[Tree, Shown]:
        self.job.step(0)
        for x in shown.obs.values():
            if x.requires_grad:
                x.register_hook(lambda _: self.job.step(0))  # type: ignore[no-untyped-call]
        return state, shown


class Replayed:
    """What a world has shown, shown again whatever is done: ``state`` is the step, int64 [B]."""

    def __init__(self, spec: EnvSpec, shown: Sequence[Shown]) -> None:
        self.spec, self.shown = spec, shown

    def begin(self) -> tuple[Tree, Shown]:
        return torch.zeros(len(self.shown[0].reward_B), dtype=torch.int64), self.shown[0]

    def step(self, state: Tensor, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return state + 1, self.shown[int(state[0]) + 1]


class Change(NamedTuple):
    """What is changed in one row."""

    made: Intervention
    through: str  # the path that it takes
    far: str | None  # what is to be said of one that leads far from what was recorded


class Picture(NamedTuple):
    """What a run of the simulator begins with, one row of each."""

    window: Mapping[str, np.ndarray]  # observations [1, I, ...]
    state: Tree  # the agent's, after the last of them


@dataclass(frozen=True)
class Drawn:
    """Starts that were drawn at once."""

    starts: Starts
    editable: EditStarts | None = None  # the same, where the world can be edited

    def __len__(self) -> int:
        return len(self.starts)


@dataclass
class Live:
    """The agent, its simulator and the real world, at some starts."""

    simulator: Simulator[Any]
    bases: Mapping[str, Basis]  # the one that courses are told in, first
    drawn: list[Drawn]
    more: Callable[[int, int], Drawn]  # (count, seed) -> other starts
    worlds: Callable[[], VecEnv]  # makes the real world with one slot
    seed: int
    _known: dict[str, VecEnv] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def basis(self) -> Basis | None:
        return next(iter(self.bases.values()), None)

    @property
    def game(self) -> str:
        return self.simulator.world.spec.env_id.partition("/")[2]

    @property
    def shows_pictures(self) -> bool:
        """Whether the field that is shown is a picture."""
        return self.simulator.world.spec.picture is not None

    def facts(self) -> dict[str, Any]:
        """What the page is told: the starts' pictures, and what can be asked."""
        drawn = list(self.drawn)  # the worker may draw more
        spec = self.simulator.world.spec
        frames = np.concatenate([d.starts.window[spec.main_field][:, -1] for d in drawn])
        picture = self.shows_pictures
        return {
            "starts": len(frames), "age": [int(t) for d in drawn for t in d.starts.age_N],
            "more": len(frames) < MOST_STARTS, "edits": drawn[0].editable is not None, "longest": LONGEST,
            "actions": list(spec.action_names), "choices": list(spec.distinct_actions()),
            "by_hand": not spec.action_parts,
            "directions": [name for i, b in enumerate(self.bases.values()) for name in b.names[: most(i)]],
            "picture": base64.b64encode(pages.sheet(frames, COLUMNS)).decode() if picture else "",
            "height": frames.shape[1] if picture else 0, "width": frames.shape[2] if picture else 0,
        }  # fmt: skip

    def __len__(self) -> int:
        return sum(map(len, self.drawn))

    def at(self, start: int) -> tuple[Drawn, int]:
        """Where a start is: with which others it was drawn, and its row."""
        for drawn in self.drawn:
            if start < len(drawn):
                return drawn, start
            start -= len(drawn)
        raise IndexError(start)

    def draw(self) -> dict[str, Any]:
        """More starts, of other episodes; what the page is told then."""
        if len(self) >= MOST_STARTS:
            raise UserError(f"there are {len(self)} starts, and no more are kept; serve again for others")
        self.drawn.append(self.more(DRAWN, self.seed + len(self.drawn)))
        return {"facts": self.facts()}

    def world(self, name: str) -> VecEnv:
        """A real world with one slot, made once: ``env`` plays, ``drawer`` draws."""
        if name not in self._known:
            self._known[name] = self.worlds()
        return self._known[name]

    def close(self) -> None:
        for env in self._known.values():
            cast(Any, env).close()
        self._known = {}

    def answer(self, values: Mapping[str, Any], job: Job) -> dict[str, Any]:
        """Runs without and with the change, in both worlds, as JSON.  UserError on what cannot be asked."""
        if values == {"draw": True}:
            return self.draw()
        asked = asked_of(values, len(self))
        change = self._change(asked)
        drawn, row = self.at(asked.start)
        here = drawn.starts.some([row])
        noise = self._noise(asked)
        job.total = (2 + 2 * bool(asked.change or asked.edit)) * (asked.horizon + 1)
        runs: dict[str, Any] = {}
        with torch.no_grad():
            runs["real"] = self._real(here, noise, (), "", job)
            other = None
            if change is not None:
                runs["real, changed"] = self._real(here, noise, (change.made,), change.through, job)
            if asked.edit:
                runs["real, changed"], other = self._edited(asked, noise, job)
            dreamed = self._dreamed(here, noise, change, other, job)
            runs |= dict(zip(("simulator", "simulator, changed"), dreamed, strict=False))
        out: dict[str, Any] = {"asked": dict(values), "runs": runs, "warning": change.far if change else None}
        if asked.quantity:
            last = min(asked.target, runs["simulator"]["steps"] - 1)  # what follows the end is none of the episode
            out["saliency"] = self._saliency(replace(asked, target=last), here, noise, job)
        return out

    def _change(self, asked: Asked) -> Change | None:
        if not asked.change:
            return None
        if self.basis is None:
            raise UserError("no directions were fitted, so nothing can be changed along one; see the view Directions")
        basis = next((b for kind, b in self.bases.items() if re.search(rf"\b{kind}:", asked.change)), self.basis)
        (hypothesis, *more) = parse_hypothesis(asked.change, basis)
        if more or hypothesis.when:
            raise UserError("say 'resample' with another start in place of 'patch'; 'when' is for studies")
        donors = None
        if hypothesis.kind == "resample":
            if asked.donor < 0:
                raise UserError("resample takes its values from another start: choose it")
            drawn, row = self.at(asked.donor)
            donors = drawn.starts.h_NH[row : row + 1]
        far = far_outside({hypothesis.name: hypothesis.amounts})
        return Change(hypothesis.build(basis, donors), hypothesis.through, far)

    def _noise(self, asked: Asked) -> Tensor:
        """[1, T, A]: the start's own, and the actions that are taken by hand."""
        spec = self.simulator.world.spec
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + asked.start)
        noise = gumbel((1, LONGEST + 1, spec.n_actions), generator, torch.zeros(()))[:, : asked.horizon + 1].clone()
        for t, name in enumerate(asked.actions[: asked.horizon + 1]):
            if not name:
                continue
            if spec.action_parts:
                raise UserError("an action of several parts cannot be taken by hand; leave out actions")
            if name not in spec.action_names:
                raise UserError(f"no action is called {name!r}{cli.nearest(name, spec.action_names)}")
            noise[0, t, spec.action_names.index(name)] = FORCED
        return noise.to(self.drawn[0].starts.h_NH.device)

    def _measures(self) -> Measures:
        spec = self.simulator.world.spec
        return Measures(spec.distinct_actions(), self.basis, parts=spec.parts)

    def _dreamed(
        self, here: Starts, noise: Tensor, change: Change | None, other: Picture | None, job: Job
    ) -> list[dict[str, Any]]:
        """In the simulator: unaltered, and with a change or from another picture, if there is one.  Both at once, which
        takes little longer than one; through memory the second sees what the first was shown, and does what it did."""
        intervention, through = (change.made, change.through) if change else (None, "")
        plain = Picture(here.window, here.state)
        pictures = [plain] + ([] if other is None else [other])
        made: list[Intervention] = [Ticking(job)]
        if through == "memory":
            assert intervention is not None
            moments = self._moments([plain], noise, made)
            seen = Replayed(self.simulator.world.spec, [m.shown for m in moments])
            actions = torch.stack([m.action for m in moments], 1)
            again = roll(
                self.simulator.agent, seen, seen.begin(), state=plain.state, steps=len(moments) - 1, actions=actions,
                intervene=(*made, intervention),
            )  # fmt: skip
            return self._each(moments) + self._each(list(again))
        if intervention is not None:
            pictures.append(plain)
            made.append(OnRows((intervention,), torch.arange(len(pictures)) == len(pictures) - 1))
        return self._each(self._moments(pictures, noise, made, through))

    def _moments(
        self, pictures: Sequence[Picture], noise: Tensor, made: Sequence[Intervention], through: str = ""
    ) -> list[Moment]:
        """A simulated course of R pictures with the same action noise."""
        known = {k: torch.from_numpy(np.concatenate([p.window[k] for p in pictures])) for k in pictures[0].window}
        begun: tuple[Tree, Shown] = started(self.simulator.world, known)
        world = SimulatedWorld(
            self.simulator.agent, joined([p.state for p in pictures]), noise.expand(len(pictures), -1, -1),
            self._measures(), world=self.simulator.world, start_N=begun,
        )  # fmt: skip
        return world.moments(torch.arange(len(pictures)), made, through)

    def _each(self, moments: Sequence[Moment]) -> list[dict[str, Any]]:
        """Every row of a simulated course as JSON."""
        name = self.simulator.world.spec.main_field
        seen = [as_bytes(m.shown.obs[name].cpu().numpy()) for m in moments]
        course = course_along(moments)
        return [self._told(course, [x[row] for x in seen], row) for row in range(len(seen[0]))]

    def _real(
        self, here: Starts, noise: Tensor, change: Sequence[Intervention], through: str, job: Job
    ) -> dict[str, Any]:
        """In the real world."""
        world = RealWorld(self.simulator.agent, here.state, noise, self._measures(), self.world("env"), here)
        seen: list[np.ndarray] = []
        course = world.course((Ticking(job), *change), through, seen)
        return self._told(course, [x[0] for x in seen[: noise.shape[1]]])

    def _edited(self, asked: Asked, noise: Tensor, job: Job) -> tuple[dict[str, Any], Picture | None]:
        """The real game with an edit, and what shows it to the simulator, if something does."""
        drawn, row = self.at(asked.start)
        if drawn.editable is None:
            raise UserError(f"edits are of Procgen's states; this agent's world is {self.simulator.world.spec.env_id}")
        hypothesis = parse_edit_hypothesis(asked.edit, self.game)
        if hypothesis.since == "episode" or hypothesis.when or hypothesis.role:
            raise UserError("'since episode', 'when', 'necessary' and 'sufficient' are for studies: "
                            "python -m validation.edits")  # fmt: skip
        start = _one(drawn.editable, row)
        fixed = edit_starts.fits(hypothesis.edit, start.states[0])
        if fixed is None:
            raise UserError(f"{hypothesis.edit.words!r} cannot be made at this start, or to nothing in its picture")
        env, drawer = (cast(ProcgenEnv, self.world(name)) for name in ("env", "drawer"))
        world = EditedWorld(self.simulator.agent, env, drawer, start, noise)
        run = world.course([fixed], hypothesis.through or "whole", intervene=(Ticking(job),))
        told = self._told(run.course, list(run.frames[0]))
        if hypothesis.through:  # the simulator, shown the edited picture, foretells what goes every way
            return told, None
        window, fine_N = shown_with(start, [fixed], drawer)
        if not fine_N[0]:
            return told, None
        agent = self.simulator.agent
        seen = agent.encode({k: torch.from_numpy(v[:, -1]) for k, v in window.items()})
        return told, Picture(window, agent.advance(seen, start.before, torch.zeros(1, dtype=torch.bool)))

    def _told(self, course: Course, frames: Sequence[np.ndarray], row: int = 0) -> dict[str, Any]:
        """A row of a course as JSON."""
        spec = self.simulator.world.spec
        assert course.action_RTA is not None and course.h_RTH is not None and course.ended_RT is not None
        probs = probabilities(course.logits_RTA, spec.parts)[row]
        choices = spec.distinct_actions()
        action = index_of(course.action_RTA[row], spec.parts).tolist()
        said = [spec.in_words(a) for a in action]
        if not spec.action_parts:  # of actions that do the same, the one that stands for them
            stands = {i: name for name, ids in choices.items() for i in ids}
            said = [stands[a] for a in action]
        over = (course.ended_RT[row] > 0.5).cumsum(0)
        length = 1 + int((over == 0).sum())
        sheet = pages.sheet(np.stack(frames[:length]), COLUMNS, effort=0) if self.shows_pictures else b""
        return {  # of this episode alone: the real world has begun another one after it
            "steps": length, "value": _rounded(course.value_RT[row, :length]),
            "reward": _rounded(course.reward_RT[row, :length]),
            "prob": _rounded(torch.stack([probs[:length, ids].sum(-1) for ids in choices.values()], -1)),
            "action": said[:length],
            "c": [] if self.basis is None else _rounded(self.basis.project(course.h_RTH[row, :length])),
            "frames": base64.b64encode(sheet).decode(),
        }  # fmt: skip

    def _saliency(self, asked: Asked, here: Starts, noise: Tensor, job: Job) -> dict[str, Any]:
        """Maps of a quantity at the target step of the unaltered run in the simulator: whole and agent only."""

        def basis_of(kind: str) -> Basis:
            if kind not in self.bases:
                raise UserError(f"no {kind} directions are shown here")
            return self.bases[kind]

        spec = self.simulator.world.spec
        (quantity,) = find_quantities((asked.quantity,), spec, basis_of, next(iter(self.bases), "ica"))
        if asked.target < quantity.first_step:
            raise UserError(
                f"{quantity.name} needs a target step of at least {quantity.first_step}, here it is {asked.target} (of "
                "an episode that ends before, its last step); choose another start or quantity"
            )
        known = from_known(self.simulator)
        window = {k: torch.from_numpy(v) for k, v in here.window.items()}
        z = known.world.pack(window, flatten(here.before))
        known = replace(known, world=Watched(known.world, job))
        drawn = [Noise(action_BA=noise[:, t]) for t in range(asked.target + 1)]
        with torch.no_grad():
            moments = unroll(known, z, asked.target, noise=drawn)
            chosen = moments[asked.target].action
            y = float(quantity.read(reading_at(moments, asked.target, chosen))[0])
        (found,) = gradients(known, z, chosen, [quantity], asked.target, steps=asked.target, noise=drawn)
        name = spec.picture
        if name is None:
            raise UserError(
                "saliency is shown on pictures, and this world shows none: choose no quantity here; python -m "
                "analysis.saliency has the numbers of every field"
            )
        out: dict[str, Any] = {"quantity": quantity.name, "unit": quantity.unit, "target": asked.target, "y": y}
        for part, grad in zip(("whole", "agent"), found, strict=True):
            levels, step = quantised(of_pixels(grad.of(name).detach().cpu().numpy()))
            out |= {part: base64.b64encode(levels.tobytes()).decode(), f"{part}_step": float(step[0])}
        return out


def _one(starts: EditStarts, row: int) -> EditStarts:
    """One of the starts."""
    return EditStarts(
        frames={k: v[row : row + 1] for k, v in starts.frames.items()},
        before=rows_of(starts.before, slice(row, row + 1)), past=starts.past[row : row + 1],
        begin=starts.begin[row : row + 1], actions=starts.actions[row : row + 1], age_N=starts.age_N[row : row + 1],
    )  # fmt: skip


def _rounded(x: Tensor) -> Any:
    """As JSON, which has no number for what is not finite: null."""
    rounded = np.round(x.detach().cpu().double().numpy(), 5)
    out = rounded.astype(object)
    out[~np.isfinite(rounded)] = None
    return out.tolist()


def live_of(
    simulator: Simulator[Any], bases: Mapping[str, Basis], count: int, seed: int, threads: int
) -> Live:  # fmt: skip
    """Starts in the agent's world, of levels that nothing was trained on.  UserError where the world cannot be put
    back to a state."""
    spec = simulator.world.spec
    if not spec.can_snapshot:
        raise UserError(f"{spec.env_id} cannot be put back to a state, so nothing is live in it; give --starts 0")
    pool = held_out_pool(spec, 700_000_000, 100_000)
    held_out_facts(spec)
    device = torch.device("cpu")
    agent, frames = simulator.agent, simulator.world.initial_frames

    def more(count: int, seed: int) -> Drawn:
        env = make(spec, min(count, 8), threads=threads, **pool)
        try:
            if not isinstance(env, ProcgenEnv):
                return Drawn(collect_starts(
                    agent, env, count, initial_frames=frames, latest=LATEST, seed=seed, device=device
                ))  # fmt: skip
            editable = edit_starts.collect(
                agent, env, [parse_edit(ANYTHING, spec.env_id.partition("/")[2])], count, initial_frames=frames,
                latest=LATEST, seed=seed, greedy=False, device=device,
            )  # fmt: skip
            return Drawn(_as_starts(simulator, editable, seed), editable)
        finally:
            cast(Any, env).close()

    return Live(simulator, bases, [more(count, seed)], more, lambda: make(spec, 1, threads=1, **pool), seed)


@torch.no_grad()
def _as_starts(simulator: Simulator[Any], found: EditStarts, seed: int) -> Starts:
    """Starts that can be edited, as those of paired runs."""
    agent = simulator.agent
    seen = agent.encode({k: torch.from_numpy(v[:, -1]) for k, v in found.frames.items()})
    first = torch.from_numpy(found.age_N == 0)
    state = agent.advance(seen, found.before, first)
    return Starts(
        window=found.frames, before=found.before, state=state, h_NH=agent.read("h", seen, state), age_N=found.age_N,
        states=found.states, offset_N=np.zeros(len(found), np.int64), actions=np.zeros((0, len(found)), np.int64),
        seed=seed,
    )  # fmt: skip
