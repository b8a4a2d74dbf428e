"""Record simulated rollouts:
``python -m generative.record_samples --simulator runs/simulator --rollouts runs/rollouts --out runs/samples``.

A sample starts from a latent: one inferred from real frames (--rollouts) or a random one.  It is modal, or
stochastic with noise that is a function of (seed, sample) alone, so that any sample can be made again.
Where the world ends, the sample does.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m generative.record_samples", file=sys.stderr)
    sys.exit(2)

import itertools
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.camera import Camera, Reel, reel
from agents.load import load_agent
from agents.record import keep_unaltered, repr_of
from agents.recording_state import check_whole, made_of, telling
from core import artefacts, config as cli, ranks
from core.artefacts import Result
from core.contracts import EnvSpec, Field, Intervention, LearnedWorld, UserError
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore, StoreWriter, state_column
from core.figures import as_bytes
from core.interventions import InterventionOptions, Tally, build, far_facts, nothing_altered
from core.progress import bar
from core.roll import Noise, Simulator, Trajectory
from core.training import going_on
from core.trees import joined, leaves
from core.video import check_video, write_video
from core.words import counted
from generative.apart import Apart
from generative.finished import FOLDER, Finished, opened
from generative.load import check_world, load_ensemble, members_as_inputs
from generative.simulator import require_finite
from generative.starts import Informed, from_known, informed_by, known_latents, note_forgotten

STAGE = "record_samples"
RECORDED, ALL = "recorded", "all"  # words of --actions
Latents = Callable[[slice], Tensor]  # float32 [n, Z] of the rollouts in a range of numbers
ACROSS, FPS = 5, 8.0  # rollouts in a row of a film; steps a second


@dataclass(frozen=True, kw_only=True)
class RecordSamplesConfig:
    """Let the agent act inside its simulator and record what happens.

    Unaltered samples are never overwritten by altered ones: those go to a directory of their own.
    """

    simulator: tuple[Path, ...] = (Path("runs/simulator"),)
    """run directory of the simulator; of several, which are an ensemble of one agent, every start is simulated in each,
    and members.csv says how far apart they are, step by step"""
    agent: Path | None = None
    """run directory of another agent to put into that world; it begins without a memory; none: the simulator's own"""
    rollouts: Path | None = None
    """real rollouts to start from: random windows of their first frames; none: random latents"""
    start: Informed | None = None
    """how they start there: recorded: with the real frame shown unchanged and what the agent remembered; inferred: from
    the latent and the memory that the simulator makes of the frames; none: as its kind was trained to"""
    out: Path = Path("runs/samples")
    """run directory to write (also --data_save_dir)"""
    samples: int = 128
    """rollouts"""
    steps: int = 32
    """transitions a rollout"""
    stochastic: bool = False
    """draw world states, actions and endings instead of taking their modes"""
    actions: tuple[str, ...] = ()
    """force actions, one a step, by name or number, the last one held to the end (right right up; where an action has
    several parts, one of each, in order: up,jump 0,1); or the single word recorded: those of the real rollouts; or the
    single word all: from one start a rollout for each action that does something of its own, held to the end; none: the
    agent chooses"""
    between: Path | None = None
    """samples of this simulator, for --interpolate"""
    interpolate: tuple[int, ...] = ()
    """two samples of --between: --samples rollouts from latents on the way from one's to the other's, both included"""
    film: bool = False
    """write an MP4 of every rollout, sample_00012.mp4 (members of an ensemble beside each other); --actions all
    and --interpolate are always filmed: one MP4 of all rollouts beside each other, grid.mp4"""
    intervention: InterventionOptions = field(default_factory=InterventionOptions)
    batch: int = 32
    """rollouts side by side"""
    shard_steps: int = 2048
    """steps of a shard (a file of whole batches, one at least): until it is written they are in memory"""
    seed: int = 0
    """seed of starts and noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    resume: bool = False
    """go on, by the command that began it, with a recording in --out that was interrupted: after its finished shards"""
    overwrite: bool = False
    """replace an earlier recording in --out"""


# Where a rollout starts


def random_latents(world: LearnedWorld, count: int, generator: torch.Generator) -> Tensor:
    """Legal z [count, Z] from the prior, on the generator's device."""
    return world.normalise(torch.randn(count, world.latent_size, generator=generator, device=generator.device))


def open_rollouts(path: Path, simulator: Simulator) -> RolloutStore:
    """Real rollouts of the simulator's world, by whatever agent; UserError otherwise."""
    store = RolloutStore(path)
    if store.manifest["facts"].get("source") != "real":
        raise UserError(f"{path} holds no real rollouts to start from")
    check_world(store.spec, simulator.world.spec, str(path))
    return store


@torch.no_grad()
def informed_latents(
    world: LearnedWorld,
    store: RolloutStore,
    starts: np.ndarray,
    device: torch.device,
    generator: torch.Generator | None = None,
    batch: int = 64,
) -> Tensor:
    """z [N, Z] of the windows of initial observations at ``starts`` int64 [N, 2]: the mean, or a draw where a
    generator (on that device) is given.  UserError where the simulator makes no numbers of them."""
    names = list(world.spec.obs)
    found = []
    for i in range(0, len(starts), batch):
        window = store.read_windows([f"obs/{name}" for name in names], starts[i : i + batch], world.initial_frames)
        mean, log_std = world.infer({name: torch.from_numpy(window[f"obs/{name}"]).to(device) for name in names})
        if generator is not None:
            draw = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=device)
            mean = world.normalise(mean + log_std.exp() * draw)
        found.append(mean)
    z = torch.cat(found)
    require_finite({"latents": z})
    return z


# What happens in it


def parse_actions(words: Sequence[str], spec: EnvSpec, steps: int) -> Tensor:
    """The actions at steps 0 ... ``steps``, the last one held, int64 [steps+1] (several parts: [steps+1, parts]);
    UserError for one that this world does not have."""
    if len(words) > steps:
        raise UserError(f"--actions names {len(words)} actions for --steps {steps}")
    names_of = spec.names_of_parts
    rows = []
    for word in words:
        parts = word.split(",") if len(names_of) > 1 else [word]
        if len(parts) != len(names_of):
            raise UserError(
                f"--actions: {word!r} names {len(parts)} of the {len(names_of)} parts of an action "
                f"({', '.join(spec.action_parts)}); write them with commas between"
            )
        rows.append([_choice(part, names) for part, names in zip(parts, names_of, strict=True)])
    ids = torch.tensor(rows + rows[-1:] * (steps + 1 - len(rows)))
    return ids if len(names_of) > 1 else ids[:, 0]


def _choice(word: str, names: Sequence[str]) -> int:
    """An action, or its part, by name or number."""
    i = int(word) if re.fullmatch("[0-9]+", word) else names.index(word) if word in names else -1
    if not 0 <= i < len(names):
        raise UserError(f"--actions: no action {word!r}{cli.nearest(word, names)}; there are: {', '.join(names)}")
    return i


def recorded_actions(store: RolloutStore, starts: np.ndarray, lead: int, steps: int) -> Tensor:
    """int64 [N, steps+1] (several parts: [N, steps+1, parts]): what was done at the ``lead``-th observation of each
    window and after.  The last row leads nowhere and repeats the one before."""
    action = store.read_windows(["action"], starts, lead + steps)["action"][:, lead:]
    return torch.from_numpy(np.concatenate([action, action[:, -1:]], 1))


def noise_of(simulator: Simulator[Any], seed: int, ids: Sequence[int], steps: int, device: torch.device) -> list[Noise]:
    """``steps`` + 1 draws for the samples ``ids``; a sample's noise depends on seed and id alone, whatever is
    beside it."""
    generators = [torch.Generator(device).manual_seed((seed * 1_000_003 + i + 1) % 2**63) for i in ids]
    return [joined([simulator.draw_noise(1, g) for g in generators]) for _ in range(steps + 1)]


def as_recorded(field: Field, shown: Tensor) -> np.ndarray:
    """What a simulator shows of a field as a real recording has it: images uint8, zeros and ones of the field's dtype,
    real numbers float32."""
    if field.means == "image":
        return as_bytes(shown.detach().cpu().numpy())
    return shown.detach().float().cpu().numpy().astype("float32" if field.means == "real" else field.dtype)


def to_episodes(
    trajectory: Trajectory, z_BZ: Tensor, spec: EnvSpec, meta: Sequence[dict[str, object]]
) -> list[Episode]:
    """Simulated rollouts as episodes; one that ends is cut after its last transition, its final
    observation unknown, just as in the world."""
    obs = {k: as_recorded(field, trajectory.obs[k]) for k, field in spec.obs.items()}
    columns = {
        k: getattr(trajectory, k).detach().cpu().numpy()
        for k in ("d", "h", "state", "logits", "value", "action", "reward")
    }
    # What a rollout can be gone on from anywhere, so that nobody has to simulate it again.
    states = {
        i: x
        for i, x in enumerate(leaves(trajectory.world))
        if not torch.equal(x.reshape(*x.shape[:2], -1), trajectory.d)
    }
    rest = {state_column(i).removeprefix("world/"): x.detach().cpu().numpy() for i, x in states.items()}
    whole_state = not np.array_equal(columns["state"], columns["h"], equal_nan=True)  # it is more than h
    alive = trajectory.alive.cpu().numpy()
    out = []
    for b, about in enumerate(meta):
        ended = not alive[b].all()
        rows = int(alive[b].argmin()) if ended else alive.shape[1]
        steps = rows if ended else rows - 1
        out.append(
            Episode(
                obs={k: x[b, :rows] for k, x in obs.items()},
                h=columns["h"][b, :rows],
                state=columns["state"][b, :rows] if whole_state else None,
                value=columns["value"][b, :rows],
                action=columns["action"][b, :steps],
                logits=columns["logits"][b, :steps],
                reward=columns["reward"][b, :steps],
                terminated=ended,
                truncated=not ended,
                world={"d": columns["d"][b, :rows], **{k: x[b, :rows] for k, x in rest.items()}},
                latent=z_BZ[b].detach().cpu().numpy(),
                meta=about,
            )
        )
    return out


def latents_between(
    config: RecordSamplesConfig, simulator: Simulator[Any], device: torch.device
) -> tuple[Tensor, list[dict[str, Any]]]:
    """(legal latents [N, Z] evenly on the straight way between those of two samples, what is kept about each).  Raises
    UserError."""
    assert config.between is not None
    store = RolloutStore(config.between)
    facts = store.manifest["facts"]
    if facts.get("simulator") != fingerprint(simulator):
        raise UserError(f"--between {config.between} holds no samples of {config.simulator[0]}")
    if facts.get("start") == "recorded":
        raise UserError(f"{config.between} starts from real frames, shown unchanged, which are no latents to "
                        "interpolate; record samples with --start inferred, or without --rollouts")  # fmt: skip
    for i in config.interpolate:
        if not 0 <= i < len(store):
            raise UserError(f"--interpolate {i}: {config.between} has samples 0 to {len(store) - 1}")
    first, last = (torch.from_numpy(np.array(store.episode(i).latent)).to(device) for i in config.interpolate)
    share_N = torch.linspace(0, 1, config.samples, dtype=first.dtype, device=device)
    z = simulator.world.normalise(first + share_N[:, None] * (last - first))
    return z, [{"start": None, "between": [*config.interpolate], "share": float(x)} for x in share_N]


def check_interpolation(config: RecordSamplesConfig) -> None:
    """UserError for options that do not go together."""
    if not config.interpolate and config.between is None:
        return
    if config.between is None or len(config.interpolate) != 2:
        raise UserError("--interpolate takes two samples of --between, a directory of samples: --interpolate 33 39")
    for flag, given in (("rollouts", config.rollouts), ("start", config.start), ("actions", config.actions)):
        if given:
            raise UserError(f"--interpolate starts from latents of --between; leave out --{flag}")
    cli.require(2, samples=config.samples)


def compares(config: RecordSamplesConfig) -> bool:
    """Whether the rollouts differ in one thing alone: they get the same noise, and one film."""
    return config.actions == (ALL,) or bool(config.interpolate)


def check_film(config: RecordSamplesConfig, spec: EnvSpec) -> str | None:
    """The observation that is filmed, if one is.  UserError where it cannot be."""
    picture = spec.picture
    if config.film and picture is None:
        raise UserError(f"--film: a simulator of {spec.env_id} shows no pictures")
    if picture is None or not (config.film or compares(config)):
        return None
    check_video("--no-film" if config.film else "neither --actions all nor --interpolate")
    return picture


class Films:
    """Writes the films of rollouts: one of each, or of all beside each other, ACROSS in a row."""

    def __init__(self, path: Path, spec: EnvSpec, picture: str | None, of_all: bool) -> None:
        self.path, self.spec, self.picture, self.of_all = path, spec, picture, of_all

    def add(self, number: int, episodes: Sequence[Episode]) -> list[Reel]:
        """episodes: what each simulator made of a start.  Films them, or gives what is shown of them in ``grid``."""
        if self.picture is None:
            return []
        reels = []
        for episode in episodes:
            about = episode.meta
            title = f"{about['share']:.2f} of the way" if "share" in about else about.get("action", f"sample {number}")
            title = f"{title}, simulator {about['simulator']}" if "simulator" in about else title
            reels.append(reel(episode, str(title), self.picture))
        if self.of_all:
            return reels
        self._write(self.names([number])[0], [reels])
        return []

    def names(self, numbers: Iterable[int]) -> list[str]:
        """The films that these samples have of their own."""
        return [] if self.picture is None or self.of_all else [f"sample_{number:05d}.mp4" for number in numbers]

    def grid(self, reels: Sequence[Reel]) -> None:
        """The film of all."""
        if reels:
            self._write("grid.mp4", [list(reels[i : i + ACROSS]) for i in range(0, len(reels), ACROSS)])

    def _write(self, name: str, rows: list[list[Reel]]) -> None:
        write_video(self.path / name, list(Camera(rows, self.spec).frames()), FPS)


def starts_of(
    config: RecordSamplesConfig, simulator: Simulator[Any], device: torch.device
) -> tuple[Latents, list[dict[str, Any]], Tensor | None]:
    """(latents of the rollouts, what is kept about each, forced actions [N, steps+1] or None); the latents of known
    starts are those of generative.starts, which hold frames: they are read when they are asked for.  Raises
    UserError."""
    if config.interpolate:
        between, about_each = latents_between(config, simulator, device)
        return between.__getitem__, about_each, None
    if config.actions == (ALL,):
        if simulator.world.spec.action_parts:
            raise UserError("--actions all is for worlds whose actions have one part; name actions")
        one = replace(config, actions=(), samples=1)
        latents, (about,), _ = starts_of(one, simulator, device)
        tried = {name: ids[0] for name, ids in simulator.world.spec.distinct_actions().items()}
        each = torch.tensor(list(tried.values()), device=device)[:, None].expand(-1, config.steps + 1)
        z = latents(slice(1)).expand(len(tried), -1)
        return z.__getitem__, [{**about, "action": name} for name in tried], each
    world, repeats = simulator.world, config.actions == (RECORDED,)
    forced: Tensor | None = None
    if repeats and config.rollouts is None:
        raise UserError("--actions recorded needs --rollouts, whose actions they are")
    if config.actions and not repeats:
        plan = parse_actions(config.actions, world.spec, config.steps).to(device)
        forced = plan.expand(config.samples, *plan.shape)
    if config.rollouts is None:
        z = random_latents(world, config.samples, torch.Generator(device).manual_seed(config.seed))
        return z.__getitem__, [{"start": None} for _ in range(config.samples)], forced
    store = open_rollouts(config.rollouts, simulator)
    lead, rng = world.initial_frames - 1, np.random.default_rng(config.seed)
    starts = store.window_starts(world.initial_frames, going_on=True)
    if repeats:
        starts = starts[starts[:, 1] + lead + config.steps <= store.steps[starts[:, 0]]]
        if not len(starts):
            raise UserError(
                f"{config.rollouts}: no episode has {lead + config.steps} recorded actions for --steps "
                f"{config.steps} (the longest has {store.steps.max()})"
            )
    starts = starts[rng.choice(len(starts), config.samples, replace=len(starts) < config.samples)]
    if repeats:
        forced = recorded_actions(store, starts, lead, config.steps).to(device)
    meta = [{"start": [int(e), int(t)]} for e, t in starts]
    if informed_by(world, config.start) == "recorded":
        known_latents(simulator, store, starts[:1], device)  # what cannot be is said now
        return lambda rows: known_latents(simulator, store, starts[rows], device), meta, forced
    return informed_latents(world, store, starts, device).__getitem__, meta, forced


def check_ensemble(config: RecordSamplesConfig, members: Sequence[Simulator[Any]]) -> None:
    """UserError where several simulators cannot begin at the same starts."""
    if len(members) == 1:
        return
    if config.rollouts is None:
        raise UserError("several simulators have no latents in common: give --rollouts, whose frames they start from")
    if compares(config):
        raise UserError("--actions all is for one simulator; name one, or force other --actions")


def check(config: RecordSamplesConfig) -> None:
    """UserError for settings that cannot go together."""
    cli.require(1, samples=config.samples, steps=config.steps, batch=config.batch, shard_steps=config.shard_steps)
    cli.require(0, seed=config.seed)
    if config.resume and config.overwrite:
        raise UserError("--resume goes on with a run and --overwrite starts anew: choose one")
    check_interpolation(config)
    if config.start is not None and config.rollouts is None:
        raise UserError("--start needs --rollouts to start from; random latents have their own first frames")


def simulated(
    config: RecordSamplesConfig, simulator: Simulator[Any], z_BZ: Tensor, forced: Tensor | None, noises: Sequence[int],
    meta: Sequence[dict[str, Any]], intervene: tuple[Intervention, ...],
) -> list[Episode]:  # fmt: skip
    """Rollouts from latents [B, Z] of a simulator."""
    tally, device = Tally(intervene), z_BZ.device
    trajectory = simulator.rollout(
        z_BZ,
        config.steps,
        actions=forced,
        noise=noise_of(simulator, config.seed, noises, config.steps, device) if config.stochastic else None,
        intervene=(tally,) if intervene else (),
    )
    require_finite(trajectory)
    meta = [dict(about) for about in meta]
    for b, about in enumerate(meta if intervene else ()):
        acted = range(min(config.steps, int(trajectory.alive[b].sum())))
        about["altered"] = [t for t in acted if tally.altered[t][b]]
    return to_episodes(trajectory, z_BZ, simulator.world.spec, meta)


def in_common(episode: Episode, sample: int, member: int) -> Episode:
    """A rollout of a member of an ensemble without what means something in that member alone: its world's state and
    latent."""
    return replace(episode, world={}, latent=None, meta={**episode.meta, "sample": sample, "simulator": member})


@dataclass(frozen=True)
class Plan:
    """What is simulated: N samples, in each of the members."""

    config: RecordSamplesConfig
    members: Sequence[Simulator[Any]]
    latents: Sequence[Latents]  # of each member
    forced: Sequence[Tensor | None]  # actions [N, steps+1] in each member
    noises: Sequence[int]
    meta: Sequence[dict[str, Any]]
    intervene: tuple[Intervention, ...]
    apart: Apart
    films: Films
    finished: Finished

    @property
    def a_shard(self) -> int:
        """Samples of a shard: whole batches."""
        x = self.config
        return x.batch * max(1, x.shard_steps // (x.batch * (x.steps + 1) * len(self.members)))

    def shard(self, number: int) -> list[dict[str, Any]]:
        """Simulates the samples of a shard, writes and films them, unless that is done; of each sample what the whole
        run tells of it."""
        if (before := self.finished.told(number)) is not None:
            return list(before)
        first, last = number * self.a_shard, min((number + 1) * self.a_shard, len(self.meta))
        written, told = [], []
        for start in range(first, last, self.config.batch):
            part = slice(start, min(start + self.config.batch, last))
            own = [
                simulated(self.config, one, latents(part), None if forced is None else forced[part],
                          self.noises[part], self.meta[part], self.intervene)
                for one, latents, forced in zip(self.members, self.latents, self.forced, strict=True)
            ]  # fmt: skip
            for sample, of_members in enumerate(zip(*own, strict=True), start):
                episodes = list(of_members)
                if len(episodes) > 1:
                    episodes = [in_common(e, sample, m) for m, e in enumerate(episodes, 1)]
                written += episodes
                told.append({
                    "ended": sum(e.terminated for e in episodes),
                    "steps": sum(e.steps for e in episodes),
                    "altered": sum(len(e.meta.get("altered", ())) for e in episodes),
                    "apart": self.apart.of(episodes) if len(episodes) > 1 else {},
                    "reels": [tuple(r) for r in self.films.add(sample, episodes)],
                })  # fmt: skip
        shard = StoreWriter(self.films.path).write(number, written)
        self.finished.keep(number, [shard, *self.films.names(range(first, last))], told)
        return told


def facts_of(
    config: RecordSamplesConfig, members: Sequence[Simulator[Any]], names: Sequence[str], kinds: Sequence[str]
) -> dict[str, Any]:
    """What the manifest says of the rollouts.  names: the simulators' fingerprints; kinds: of their starts."""
    return {
        "agent": fingerprint(members[0].agent),
        "source": "simulated",
        **({"simulator": names[0]} if len(names) == 1 else {"simulators": list(names)}),
        "start": kinds[0] if len(set(kinds)) == 1 else list(kinds),
        "first_shown": None if config.rollouts is None else members[0].world.initial_frames - 1,
        "stochastic": config.stochastic,
    }


def main(config: RecordSamplesConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config)
    config = going_on(config, STAGE, FOLDER)
    inputs = artefacts.Inputs({
        "simulator": next(iter(config.simulator), None), **members_as_inputs(config.simulator),
        "between": config.between, "agent": config.agent, **config.intervention.inputs, "rollouts": config.rollouts,
    })  # fmt: skip
    members = load_ensemble(config.simulator, device)
    check_ensemble(config, members)
    spec = members[0].world.spec
    picture = check_film(config, spec)
    if config.agent is not None:
        guest = load_agent(config.agent, device)
        members = [one.with_agent(guest) for one in members]
    intervene = build(config.intervention, fingerprint(members[0].agent), device=device)
    altered = [repr_of(i) for i in intervene]
    if config.actions:
        altered.append({"kind": "ForcedActions", "actions": list(config.actions)})
    begins = [starts_of(config, one, device) for one in members]
    meta, of_one = begins[0][1], len(members) == 1
    count = len(meta)
    kinds = ["random" if config.rollouts is None else informed_by(one.world, config.start) for one in members]
    names = [fingerprint(one) for one in members]
    if config.rollouts is not None and config.agent is None:
        note_forgotten(members[0], config.start, "--start")
    members = [from_known(one) if kind == "recorded" else one for one, kind in zip(members, kinds, strict=True)]
    noises = [0] * count if compares(config) else list(range(count))
    if config.stochastic:
        meta = [{**about, "noise": [config.seed, i]} for i, about in zip(noises, meta, strict=True)]
    keep_unaltered(config.out, bool(altered))
    if config.resume and (config.out / artefacts.MANIFEST).exists():
        if ranks.first():
            check_whole(config, config.out, STAGE, inputs)
            shutil.rmtree(config.out / FOLDER, ignore_errors=True)
        print(f"{config.out} is whole: nothing was left to simulate")
        return
    made, processes = made_of(fingerprint(members[0].agent), inputs), ranks.processes()
    with (
        telling(config, config.out, FOLDER, processes) as is_open,
        opened(config, STAGE, inputs, made) as (run, finished),
    ):
        is_open()
        films = Films(finished.path, spec, picture, compares(config))
        apart = Apart(config.steps, spec, spec.picture)
        latents, _, forced = zip(*begins, strict=True)
        plan = Plan(config, members, latents, forced, noises, meta, intervene, apart, films, finished)
        ended = steps = altered_steps = 0
        reels = []
        shards = ranks.each(range(-(-count // plan.a_shard)), plan.shard, "lower --shard_steps or --batch")
        with bar("simulating", count, "rollouts") as progress:
            for told in itertools.chain.from_iterable(shards):
                ended, steps = ended + told["ended"], steps + told["steps"]
                altered_steps += told["altered"]
                reels += [Reel(*r) for r in told["reels"]]
                apart.keep(told["apart"])
                progress.advance()
        if processes.first:
            films.grid(reels)
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        run.facts = facts_of(config, members, names, kinds) | {"interventions": altered}
        run.facts |= far_facts(config.intervention) if processes.first else {}
        if not of_one:
            Result(tables={"members": apart.table(np.random.default_rng(config.seed))}).save(run.path)
        run.record("ended_share", ended / (count * len(members)), "share of rollouts", count * len(members))
        run.record("steps", steps, "steps")
        if intervene:
            run.record("altered_steps", altered_steps, "steps")
        if intervene and not altered_steps:
            run.facts["intervention_warning"] = said = nothing_altered(config.intervention)
            print(f"warning: {said}", file=sys.stderr)
    finished.forget()
    did = f", {altered_steps:,} of {steps:,} steps altered" if intervene else ""
    did = ("" if of_one else f" in each of {len(members)} simulators") + did
    print(
        f"simulated {counted(count, 'rollout')} of up to {counted(config.steps, 'step')}{did}, {ended} ended: "
        f"{config.out}"
    )


if __name__ == "__main__":
    cli.run(RecordSamplesConfig, main, STAGE, shared=True)
