"""Any Gymnasium environment behind the VecEnv contract: an id, or a user's module with ``make_env``.

Supported are one discrete action (``Discrete``) or several (``MultiDiscrete``, ``MultiBinary``); observations that
are a vector (one-dimensional ``Box`` of any numeric dtype, ``MultiBinary``), a category (``Discrete``) or several
(``MultiDiscrete``), an image (``Box`` of uint8 [height, width, channels], any size), or a flat ``Dict`` of these.
Vectors come out as float32, categories as float32 one-hot, one after the other.  The one field of an environment
without names is ``frames`` (an image) or ``x`` (all else).

Environments are stepped one after the other and reset on the same step, so the last observation of an episode is always
known.  Every episode begins with a reset to a seed of its own: even ones belong to the split "train", odd ones to
"held_out", so that the two never share a start.  (An environment whose starts do not depend on its seed is the same in
both; the option ``held_out`` gives it other arguments there, and ``starts_in_both`` says what is seen of it.)

What an environment tells beside its observations, in ``info``, are its labels: see ``labels_in``.
"""

from __future__ import annotations

import copy
import importlib.machinery
import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from core.config import ROOT, from_json, nearest
from core.contracts import REWARD, EnvSpec, Field, Step, UserError
from core.plugins import agreed_source, read_source

Split = Literal["train", "held_out"]
PACKAGES = {"MiniGrid": "minigrid", "BabyAI": "minigrid", "ALE": "ale_py"}  # an id's first word -> what registers it
SUPPORTED = (
    "supported are vectors (one-dimensional Box, MultiBinary), categories (Discrete, one-dimensional MultiDiscrete), "
    "images (Box of uint8 [height, width, channels]) and flat Dicts of these"
)
TRIED_STARTS = 16  # of either split, to see whether they begin alike
TRIED_STEPS = 5  # of a copy against its original, to see whether it goes on alike


@dataclass(frozen=True, kw_only=True)
class GymnasiumOptions:
    """What else makes it this world; JSON values only."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """arguments of gymnasium.make, or of the module's make_env"""
    wrappers: list[Any] = field(default_factory=list)
    """from the inside out: "package.module:Class", or ["package.module:Class", {arguments}]"""
    action_names: list[str] = field(default_factory=list)
    """a name for each choice, part after part (default: what the environment calls them, or their numbers)"""
    held_out: dict[str, Any] = field(default_factory=dict)
    """arguments that replace those of ``kwargs`` in the split "held_out\""""
    sha256: str = ""
    """hash of a user's module"""


# What an environment's spaces say


def _fields_of(space: Any, env_id: str) -> dict[str, Field]:
    """Observation fields by name; UserError for a space that is not supported."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        found = _field_of(space, f"the observation of {env_id}")
        return {"frames" if found.dtype == "uint8" else "x": found}
    if not space.spaces:
        raise UserError(f"the observation of {env_id} has no field; {SUPPORTED}")
    _check_names(list(space.spaces), env_id)
    return {name: _field_of(s, f"the observation field {name!r} of {env_id}") for name, s in space.spaces.items()}


def _check_names(names: Sequence[Any], env_id: str) -> None:
    """UserError for names of fields that a recording cannot have as columns obs/NAME."""
    for name in names:
        if not isinstance(name, str) or not all(part.strip(".") for part in name.split("/")) or "\0" in name:
            raise UserError(f"{env_id} names an observation field {name!r}; a name is a text: rename it with a wrapper")
        if within := [other for other in names if str(other).startswith(f"{name}/")]:
            raise UserError(
                f"{env_id} names an observation field {name!r} and another {within[0]!r}, as if it lay within: rename "
                "one with a wrapper"
            )


def _field_of(space: Any, what: str) -> Field:
    """A field like a space that has numbers; UserError for one that is not supported."""
    if 0 in (getattr(space, "shape", None) or ()):
        raise UserError(f"{what} is {list(space.shape)}, which holds no number: leave it out with a wrapper")
    return _field_of_numbers(space, what)


def _field_of_numbers(space: Any, what: str) -> Field:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Field(shape=(int(space.n),), dtype="float32", kind="one_hot", start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        sizes, starts = _choices(space)
        if len(set(starts.tolist())) > 1:
            raise UserError(f"{what} has categories that begin at {starts.tolist()}: shift them with a wrapper")
        return Field(shape=(sum(sizes),), dtype="float32", kind="one_hot", groups=sizes, start=int(starts[0]))
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return Field(shape=tuple(space.shape), dtype="float32", kind="binary")
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise UserError(f"{what} is nested ({type(space).__name__}); {SUPPORTED}: flatten it with a wrapper")
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        kind = f"{type(space).__name__} {list(space.shape)}"
        raise UserError(f"{what} is a {kind}; {SUPPORTED}: flatten it with a wrapper")
    if not isinstance(space, spaces.Box):
        kind = type(space).__name__
        raise UserError(f"{what} is a {kind}, whose size has no bound or meaning here; {SUPPORTED}: drop or encode it")
    shape = tuple(int(n) for n in space.shape)
    if len(shape) == 1:
        return Field(shape=shape, dtype="float32")
    if len(shape) != 3 or space.dtype != np.uint8:
        raise UserError(f"{what} is {space.dtype} {list(shape)}; {SUPPORTED}: reshape or rescale it with a wrapper")
    if shape[0] in (1, 3, 4) and min(shape[1:]) > 16:
        raise UserError(f"{what} is an image {list(shape)} with its channels first; they must come last: transpose it")
    return Field(shape=shape, dtype="uint8")


def _choices(space: Any) -> tuple[tuple[int, ...], np.ndarray]:
    """Choices of each part of a MultiDiscrete, and the number of each part's first one."""
    sizes = tuple(int(n) for n in space.nvec)
    return sizes, np.asarray(getattr(space, "start", np.zeros(len(sizes))), np.int64)


def _sizes_of(space: Any, env_id: str) -> tuple[tuple[int, ...], np.ndarray]:
    """Choices of each part of an action, and the number that each part's first choice has in the environment."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return (int(space.n),), np.array([space.start], np.int64)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return _choices(space)
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return (2,) * int(space.shape[0]), np.zeros(int(space.shape[0]), np.int64)
    what = "continuous" if isinstance(space, spaces.Box) else f"a {type(space).__name__}"
    raise UserError(
        f"the actions of {env_id} are {what}; supported are Discrete, MultiDiscrete and MultiBinary: "
        "give them a number of choices with a wrapper"
    )


def _action_names(env: Any, sizes: Sequence[int], given: Sequence[str], env_id: str) -> tuple[str, ...]:
    """As given, else as the environment has them (Atari's meanings, MiniGrid's enumeration), else numbers."""
    total = sum(sizes)
    if given:
        if len(given) != total or len(set(given)) != total:
            raise UserError(f"action_names has {len(set(given))} different names; {env_id} has {total} actions")
        return tuple(given)
    if len(sizes) > 1:
        return tuple(f"part_{p} {i}" for p, size in enumerate(sizes) for i in range(size))
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    names: list[str] = [str(n).lower() for n in meanings()] if callable(meanings) else []
    members = getattr(getattr(env.unwrapped, "actions", None), "__members__", {})
    names = names or [str(name) for name, value in members.items() if int(value) < total]
    return tuple(names) if len(names) == len(set(names)) == total else tuple(f"action_{i}" for i in range(total))


# What it tells beside them


class Told(NamedTuple):
    """What one environment shows at a step."""

    obs: dict[str, np.ndarray]
    label: tuple[float | None, ...]  # in the order of ``labels_in``; None: not told


def labels_in(info: Any) -> tuple[str, ...]:
    """The labels of a world, given the ``info`` of a reset: the keys in it that are names and hold a single number.

    Lists, texts and what only ``step`` tells are none, and ``seed`` is the seed of the reset.
    """
    pairs = info.items() if isinstance(info, Mapping) else ()
    names = {k for k, value in pairs if isinstance(k, str) and k.isidentifier() and _number(value) is not None}
    return tuple(sorted(names - {"seed"}))


def _number(value: Any) -> float | None:
    """A single number, or a flag, as a float; None for all else."""
    try:
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # a ragged list; a tensor that has a gradient
        return None
    return float(found) if found.ndim == 0 and found.dtype.kind in "biuf" else None


# Making one


def _installed(module: str) -> Any:
    """Import a module of an installed package.  ImportError for one that would come from the current directory or the
    checkout: a run directory that came from elsewhere may lie there, and no code of it runs because its options name
    it."""
    beside = {Path.cwd().resolve(), ROOT.resolve()}
    top, places = module.partition(".")[0], [p for p in sys.path if Path(p).resolve() not in beside]
    finders = [f for f in sys.meta_path if f is not importlib.machinery.PathFinder and hasattr(f, "find_spec")]
    known = importlib.machinery.PathFinder.find_spec(top, places) or any(f.find_spec(top, None) for f in finders)
    if not known:
        raise ImportError(f"no installed package has {module!r}; what lies beside runs is not imported, pip install it")
    with _looking_in(places):  # a file of the package's name may lie beside, too
        return importlib.import_module(module)


@contextmanager
def _looking_in(places: list[str]) -> Iterator[None]:
    """Imports look in these directories alone, and in those that the imported add, which stay."""
    before, sys.path = sys.path, list(places)
    try:
        yield
    finally:
        before += [place for place in sys.path if place not in places]
        sys.path = before


def _wrapper(path: Any) -> Any:
    """The class of "package.module:Name"; UserError if there is none, or it is no wrapper (a spec is data: it may not
    name just any function to be called)."""
    import gymnasium

    module, _, name = str(path).partition(":")
    try:
        found = getattr(_installed(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"no wrapper {path!r} ({error}); write package.module:Name, and install its package") from None
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        raise UserError(f"{path!r} is not a gymnasium.Wrapper")
    return found


def _registered(name: str, kwargs: Mapping[str, Any]) -> Any:
    """gymnasium.make; UserError for an unknown id names the nearest."""
    import gymnasium

    package, _, plain = name.rpartition(":")
    package = package or PACKAGES.get(plain.replace("/", "-").partition("-")[0], "")
    if package and plain not in gymnasium.registry:
        try:
            registers = _installed(package)
        except ImportError as error:
            raise UserError(
                f"{name} needs the package {package!r}, which does not import ({error}); install it"
            ) from None
        assert registers is not None  # imported for what it registers
    if plain not in gymnasium.registry:
        hint = nearest(plain, gymnasium.registry)
        raise UserError(f"no Gymnasium environment {plain!r}{hint}; one of a package is written package:{plain}")
    try:
        return gymnasium.make(plain, disable_env_checker=True, **kwargs)
    except Exception as error:  # whatever a foreign constructor raises
        raise UserError(f"gymnasium.make({plain!r}) fails: {type(error).__name__}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _wrapped(env: Any, wrappers: Sequence[Any]) -> Any:
    arguments: dict[str, Any]
    for entry in wrappers:
        match [entry] if isinstance(entry, str) else entry:
            case [str() as path]:
                arguments = {}
            case [str() as path, dict() as arguments]:
                pass
            case _:
                raise UserError(
                    f'wrappers: {entry!r} is no wrapper; write "package.module:Name", or '
                    '["package.module:Name", {"argument": value}]'
                )
        wrapper = _wrapper(path)
        try:
            env = wrapper(env, **arguments)
        except Exception as error:  # whatever a foreign constructor raises
            said = f"{type(error).__name__}: {_line(error)}".rstrip(": ")
            raise UserError(f"the wrapper {path!r} cannot be put on: {said}") from error
    return env


def _checked(env: Any, env_id: str) -> Any:
    """UserError unless it is one environment that shows its episodes' last observations."""
    import gymnasium

    if isinstance(env, gymnasium.vector.VectorEnv):
        raise UserError(
            f"{env_id} is a vector of environments, whose last observations (final_obs) are not sure to be shown; "
            "give one environment: it is put side by side here"
        )
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{env_id} is a {type(env).__name__}, not a gymnasium.Env")
    inner: Any = env
    while inner is not None:
        if type(inner).__name__ in ("Autoreset", "AutoResetWrapper"):
            raise UserError(
                f"{env_id} resets itself and hides the last observation of an episode (no final_obs); "
                f"take {type(inner).__name__} off: it is reset here"
            )
        inner = getattr(inner, "env", None) if isinstance(inner, gymnasium.Wrapper) else None
    return env


def maker_of(env_id: str, options: GymnasiumOptions) -> Callable[[Split], Any]:
    """A function that makes one environment of a split.  Raises UserError."""
    if importlib.util.find_spec("gymnasium") is None:
        raise UserError(f"{env_id} needs the package gymnasium: pip install 'gymnasium>=0.29'")
    kind, _, name = env_id.partition("/")
    make: Callable[..., Any]
    if kind == "module":
        module = agreed_source(name, options.sha256).run(("make_env",))

        def make(**kwargs: Any) -> Any:
            try:
                return module.make_env(**kwargs)
            except Exception as error:  # whatever a user's code raises
                raise UserError(f"make_env of {name}.py fails: {type(error).__name__}: {_line(error)}") from error
    else:

        def make(**kwargs: Any) -> Any:
            return _registered(name, kwargs)

    def one(split: Split) -> Any:
        kwargs = {**options.kwargs, **options.held_out} if split == "held_out" else options.kwargs
        return _checked(_wrapped(make(**kwargs), options.wrappers), env_id)

    return one


class GymnasiumEnv:
    """``slots`` environments, each with a generator of its own for the seeds of its episodes.

    truth: ``seed`` int64 [B], of the reset that the episode on show began with, and float64 [B] for each of
    ``labels_in`` the first environment's reset to seed 0; NaN where it is not told or not finite.  A snapshot holds
    copies of the environments, not bytes; there are some where an environment's copy goes on as it does itself.
    """

    def __init__(self, env_id: str, options: GymnasiumOptions, slots: int, split: Split = "train") -> None:
        for name, kind in (("kwargs", dict), ("wrappers", list), ("action_names", list), ("held_out", dict)):
            if not isinstance(getattr(options, name), kind):
                raise UserError(
                    f"the option {name!r} of {env_id} must be a JSON {'object' if kind is dict else 'list'}"
                )
        self._odd = split == "held_out"
        make = maker_of(env_id, options)
        self._envs = [make(split) for _ in range(slots)]
        first = self._envs[0]
        space = first.observation_space
        self._obs = _fields_of(space, env_id)
        self._flat = not hasattr(space, "spaces")  # one observation without a name
        sizes, self._start = _sizes_of(first.action_space, env_id)
        self._labels = labels_in(self._begin(first, 0)[1])
        self.spec = EnvSpec(
            env_id=env_id,
            obs=self._obs,
            action_names=_action_names(first, sizes, options.action_names, env_id),
            slots=slots,
            options=_stored(options),
            action_parts={f"part_{p}": size for p, size in enumerate(sizes)} if len(sizes) > 1 else {},
            can_snapshot=self._copies_go_on_alike(first),
        )
        self._rngs = [np.random.default_rng(0) for _ in range(slots)]
        self._seed = np.zeros(slots, np.int64)
        self._age = np.zeros(slots, np.int64)
        self._row: list[Told] = []  # by every slot

    def _copies_go_on_alike(self, env: Any) -> bool:
        """Whether a deep copy of an environment that was reset, stepped first, leaves the original alone, which then
        does the same.  Not where its steps draw from generators that all share: a copy has none of its own, and what it
        draws may show later than here."""
        rng = np.random.default_rng(0)
        sizes, start = _sizes_of(env.action_space, "")
        actions = [start + rng.integers(sizes) for _ in range(TRIED_STEPS)]

        def outcome(one: Any) -> list[Any]:
            seen: list[Any] = []
            for action in actions:
                obs, reward, terminated, truncated, _ = _stepped(one, action)
                seen += [self._fields(obs), reward, terminated, truncated]
                if terminated or truncated:
                    break
            return seen

        shared = _shared_generators()
        try:
            ahead = outcome(copy.deepcopy(env))
        except Exception:  # whatever a foreign copy raises, made or stepped (EzPickle's is a new one, not yet reset)
            return False
        return _same(ahead, outcome(env)) and _same(shared, _shared_generators())

    def _begin(self, env: Any, seed: int) -> tuple[dict[str, np.ndarray], Any]:
        """(observation, info) of a reset."""
        try:
            shown = env.reset(seed=seed)
        except UserError:
            raise
        except Exception as error:  # whatever a foreign environment raises
            raise UserError(f"the environment's reset fails: {type(error).__name__}: {_line(error)}") from error
        if not (isinstance(shown, tuple) and len(shown) == 2):
            raise UserError(
                "reset gives an observation alone, as old gym's does; Gymnasium's gives (observation, info)"
            )
        return self._fields(shown[0]), shown[1]

    def _told(self, obs: dict[str, np.ndarray], info: Any) -> Told:
        told = info if isinstance(info, Mapping) else {}
        return Told(obs, tuple(_number(told.get(name)) for name in self._labels))

    def _fields(self, obs: Any) -> dict[str, np.ndarray]:
        """An observation as arrays of the spec's shapes and dtypes.  UserError if it is not what its space says."""
        named = dict.fromkeys(self._obs, obs) if self._flat else obs
        out = {}
        for name, about in self._obs.items():
            try:
                value = np.asarray(named[name])
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"the observation has no array {name!r}, as its space says ({error!r})") from None
            what = f"the observation field {name!r}"
            if about.start is not None and value.shape == about.numbers and value.dtype.kind in "biuf":
                value = about.one_hot(value, what)
            if (
                value.shape != about.shape
                or value.dtype.kind not in "biuf"
                or (about.dtype == "uint8" and value.dtype != np.uint8)
            ):
                raise UserError(
                    f"{what} is {value.dtype} {list(value.shape)}; its space says {about.dtype} {list(about.shape)}"
                )
            out[name] = about.cast(value, what)
        return out

    def shown_first(self, seed: int) -> bytes:
        """The first observation after a reset of the first slot to a seed, as bytes; what is on show stays."""
        return b"".join(x.tobytes() for x in self._begin(self._envs[0], seed)[0].values())

    # The batch

    def reset(self, seed: int) -> Step:
        self._rngs = [np.random.default_rng([seed, b]) for b in range(self.spec.slots)]
        self._row = [Told({}, ()) for _ in self._envs]
        for b in range(self.spec.slots):
            self._begin_episode(b)
        return self._show_unmoved()

    def _begin_episode(self, b: int) -> None:
        self._seed[b] = 2 * self._rngs[b].integers(2**30) + self._odd
        self._row[b] = self._told(*self._begin(self._envs[b], int(self._seed[b])))
        self._age[b] = 0

    def step(self, action: np.ndarray) -> Step:
        if not self._row:
            raise ValueError("reset or restore the world before stepping it")
        action = np.asarray(action).reshape(self.spec.slots, len(self.spec.parts))
        if (action < 0).any() or (action >= np.array(self.spec.parts)).any():
            raise ValueError(f"an action lies outside 0 to {[n - 1 for n in self.spec.parts]}: {action!r}")
        slots = self.spec.slots
        paid, ended = np.zeros(slots), np.zeros((2, slots), bool)
        for b, env in enumerate(self._envs):
            obs, paid[b], ended[0, b], ended[1, b], info = _stepped(env, self._start + action[b])
            self._row[b] = self._told(self._fields(obs), info)
        reward = REWARD.cast(paid, f"the reward of {self.spec.env_id}")
        self._age += 1
        final_obs, final_truth = self._look()
        for b in np.flatnonzero(ended.any(0)):
            self._begin_episode(int(b))
        obs, truth = self._look()
        return Step(
            obs=obs, reward=reward, terminated=ended[0], truncated=ended[1] & ~ended[0], is_first=self._age == 0,
            final_obs=final_obs, truth=truth, final_truth=final_truth,
        )  # fmt: skip

    def _look(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Fresh arrays of observation and truth."""
        obs = {name: np.stack([row.obs[name] for row in self._row]) for name in self.spec.obs}
        label_BK = np.array([row.label for row in self._row], np.float64)  # None becomes NaN
        label_BK[~np.isfinite(label_BK)] = np.nan
        return obs, {"seed": self._seed.copy(), **{name: label_BK[:, k] for k, name in enumerate(self._labels)}}

    def _show_unmoved(self) -> Step:
        obs, truth = self._look()
        return Step.unmoved(obs, self._age == 0, truth)

    def snapshot(self) -> tuple[Any, ...]:
        """A state a slot: copies of its environment and its generator, its age and seed, and what it shows."""
        if not self._row:
            raise ValueError("reset or restore the world before taking a snapshot")
        if not self.spec.can_snapshot:
            raise ValueError(f"{self.spec.env_id} cannot be copied")
        rows = zip(self._envs, self._rngs, self._seed.tolist(), self._age.tolist(), self._row, strict=True)
        return tuple(copy.deepcopy(row) for row in rows)

    def restore(self, states: Sequence[Any]) -> Step:
        """Works before a reset too.  A restored slot goes on with the restored generator; states stay as they are."""
        if len(states) != self.spec.slots:
            raise ValueError(f"{len(states)} states for {self.spec.slots} slots")
        envs, rngs, seeds, ages, rows = zip(*(copy.deepcopy(s) for s in states), strict=True)
        self._envs, self._rngs, self._row = list(envs), list(rngs), list(rows)
        self._seed, self._age = np.array(seeds, np.int64), np.array(ages, np.int64)
        return self._show_unmoved()

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _stepped(env: Any, action_P: np.ndarray) -> tuple[Any, float, bool, bool, Any]:
    """One step, of an action in the environment's own form.  UserError if it answers in another form."""
    shape = env.action_space.shape
    given = action_P.astype(env.action_space.dtype) if shape else int(action_P[0])
    try:
        answer = env.step(given)
    except UserError:
        raise
    except Exception as error:  # whatever a foreign environment raises
        raise UserError(f"the environment's step fails: {type(error).__name__}: {_line(error)}") from error
    if not (isinstance(answer, tuple) and len(answer) == 5):
        raise UserError(
            "step does not give (observation, reward, terminated, truncated, info), as Gymnasium's does; "
            "old gym's is made so by shimmy"
        )
    obs, reward, terminated, truncated, info = answer
    try:
        return obs, float(np.asarray(reward).item()), bool(terminated), bool(truncated), info
    except (TypeError, ValueError) as error:
        said = " ".join(f"reward {reward!r}, terminated {terminated!r}, truncated {truncated!r}".split())
        raise UserError(f"step gives {said}: the first must be one number, the others flags ({error})") from None


def starts_in_both(env_id: str, options: GymnasiumOptions) -> str | None:
    """What is to be said of starts of the split "held_out" that show what starts of "train" show: a sentence where half
    of those tried or more do, or where one seed begins two ways; None: neither was seen.

    Nothing more is seen than first observations: of a world that shows a part of its state, starts that look alike may
    differ.  The generators that a process shares are left as they were.
    """
    kept = _shared_generators()
    seeds = np.random.default_rng(0).integers(2**30, size=TRIED_STARTS).tolist()
    try:
        one = GymnasiumEnv(env_id, options, 1)
        trained = [one.shown_first(2 * seed) for seed in seeds]
        repeats = one.shown_first(2 * seeds[-1]) == trained[-1]
        one.close()
        other = GymnasiumEnv(env_id, options, 1, "held_out")
        alike = sum(other.shown_first(2 * seed + 1) in trained for seed in seeds)
        other.close()
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(torch.from_numpy(kept[2]))
    said = []
    if 2 * alike >= TRIED_STARTS:
        said.append(
            f"{alike} of {TRIED_STARTS} held-out starts of {env_id} show at first what one of {TRIED_STARTS} training "
            "starts shows (few starts, a seed that is ignored, or a part of the state alone is shown)"
        )
    if not repeats:
        said.append(f"{env_id} begins otherwise when it is reset again with the same seed")
    if not said:
        return None
    return (
        f"{'; '.join(said)}: that held-out results are of starts that no training saw is not shown (draw starts from "
        "self.np_random after super().reset(seed=seed), or name other arguments by the option held_out)."
    )


def _shared_generators() -> tuple[Any, Any, np.ndarray]:
    """The states of the generators that a whole process shares (random, numpy.random, torch)."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return np.array_equal(a, b)


# Specs


def _stored(options: GymnasiumOptions) -> dict[str, Any]:
    """Options as an EnvSpec has them: JSON values.  UserError if they are not."""
    try:
        out: dict[str, Any] = json.loads(json.dumps(vars(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"options of a world must be JSON values ({error})") from None
    return out


def options_of(spec: EnvSpec) -> GymnasiumOptions:
    """The options that make the world of a spec again."""
    return from_json(GymnasiumOptions, dict(spec.options), "options")


def agreed_module(path: Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The user gives a module of his own to be run: (its env_id, the world's options with its hash).  UserError, which
    names his file, where it cannot be."""
    source = read_source(path)
    source.agree()
    source.run(("make_env",))
    return f"module/{source.name}", {**options, "sha256": source.sha256}
