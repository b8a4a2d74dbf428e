"""Configuration and command line: frozen dataclasses in, one resolved JSON out.

A stage is a frozen, keyword-only dataclass whose fields are its flags (the docstring under a field
is its ``--help``) and a ``main(config)``.  ``run(Config, main)`` puts them together::

    --preset demo        the stage's section of configs/demo.json
    --config run.json    a resolved config of an earlier run
    --any_flag value     overrides both (underscore and hyphen are the same)
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import difflib
import errno
import io
import itertools
import math
import os
import random
import re
import signal
import sys
import threading
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from core import earlier, figures, precision, ranks, stages
from core.contracts import UserError
from core.files import json_of, read_bytes, refused

C = TypeVar("C")
ROOT = Path(__file__).resolve().parent.parent


def nearest(word: str, words: typing.Iterable[str]) -> str:
    """' (did you mean X?)' or '', of the very word too."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close and close[0] != word else ""


def mistyped(name: str, names: typing.Iterable[str]) -> str:
    """The same for names of settings, many of which are alike and mean different things (noise and noisy, ica_size and
    pca_size): only where one of them is a slip of the keyboard away, and one alone.  A slip is a letter that is missing
    or too many, or two exchanged; after the first letter of names of six or more also a wrong one; two such in names
    of twelve or more.  A single letter is a name of its own."""
    plain = name.lstrip("-")
    most = 0 if len(plain) < 2 else 1 if len(plain) < 12 else 2
    far = sorted((_slips(name, other), other) for other in names)
    if not far or far[0][0] > most or (len(far) > 1 and far[1][0] == far[0][0]):
        return ""
    other = far[0][1].lstrip("-")
    wrong_letter = len(other) == len(plain) and sorted(other) != sorted(plain)
    if wrong_letter and (len(plain) < 6 or other[0] != plain[0]):
        return ""
    return f" (did you mean {far[0][1]}?)"


def _slips(a: str, b: str) -> int:
    """Restricted Damerau-Levenshtein distance."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        above, before = before, row
        row = [i + 1]
        for j, y in enumerate(b):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (x != y)))
            if i and j and x == b[j - 1] and a[i - 1] == y:
                row[-1] = min(row[-1], above[j - 1] + 1)
    return row[-1]


def to_json(config: Any) -> Any:
    """A dataclass config as JSON values; tuples become lists, paths strings."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(k): to_json(v) for k, v in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_json(v) for v in config]
    return str(config) if isinstance(config, Path) else config


def says(data: Any, config: Any) -> bool:
    """Whether JSON values are those of a configuration (``to_json``), or name its paths in another way: relative, by a
    link."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        config = {str(k): v for k, v in config.items()}
        return isinstance(data, dict) and data.keys() == config.keys() and all(says(data[k], config[k]) for k in config)
    if isinstance(config, (list, tuple)):
        return isinstance(data, list) and len(data) == len(config) and all(map(says, data, config))
    if isinstance(config, Path):
        return isinstance(data, str) and Path(data).resolve() == config.resolve()
    return bool(data == config)


def from_json(
    cls: type[C], data: Mapping[str, Any], where: str = "config", missing: Mapping[str, Any] | None = None
) -> C:
    """Build a config dataclass from JSON; keys left out take their defaults.

    An unknown key is a UserError naming the nearest right one; so is a required key left out, unless
    ``missing`` holds a stand-in for it.
    """
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in names:
            raise UserError(f"{where}: unknown key {key!r}{mistyped(key, names)}")
    given = {k: _convert(hints[k], v, f"{where}.{k}") for k, v in data.items()} | dict(missing or {})
    for name in names - set(to_json_defaults(cls)) - set(given):
        raise UserError(f"{where}: the key {name!r} is missing")
    return cls(**given)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is typing.Annotated:
        return _convert(args[0], value, where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: expected an object, got {value!r}")
        return from_json(typing.cast(type, hint), value, where)
    if origin is tuple:
        if args[0] is Path and (value is None or isinstance(value, (str, Path))):
            value = [] if value is None else [value]  # where files of earlier versions name one directory, or none
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{where}: expected a list, got {value!r}")
        words = args[0] is str  # some are whole numbers in the files of earlier versions: ids of directions
        return tuple(str(v) if words and type(v) is int else _convert(args[0], v, where) for v in value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON's 5e6
    if origin is typing.Literal:
        if value not in args:
            raise UserError(f"{where}: {value!r} is not one of {', '.join(map(str, args))}")
        return value
    if hint is Path:
        if not isinstance(value, (str, Path)):
            raise UserError(f"{where}: expected a path, got {value!r}")
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (type(value) is not hint):
        raise UserError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value


def read_json(path: Path) -> Any:
    """Parse a JSON file that no manifest knows (core.artefacts.load_json reads those of a run directory).

    A missing or broken one is a UserError.
    """
    return json_of(read_bytes(path), path)


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``, object by object."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return out


def preset(stage: str, name: str) -> dict[str, Any]:
    """The section ``stage`` of ``configs/NAME.json``; {} where the preset leaves it at its defaults, which is said in
    a line on standard error."""
    folder = ROOT / "configs"
    path = folder / f"{name}.json"
    have = sorted(p.stem for p in folder.glob("*.json"))
    if name not in have:
        raise UserError(f"no preset {name!r}{nearest(name, have)}; there are: {', '.join(have)}")
    sections = read_json(path)
    if stage not in sections:
        print(f"note: configs/{name}.json has no section for {stage}: defaults are used", file=sys.stderr)
    return dict(sections.get(stage, {}))


def parse(cls: type[C], argv: list[str], stage: str, debug: str = "shows where an error came from") -> C:
    """The resolved config of a stage from its command line, in which flags may have the names of the earlier systems
    (core.earlier); debug: what --help says that flag does."""
    import tyro

    base: dict[str, Any] = {}
    rest: list[str] = []
    read: list[str] = []  # a user's files
    bf16_by_preset = False
    typed = argv
    argv, notes, dropped = earlier.translated(typed, stage)
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--preset", "--config"):
            value = value if equals else next(words, "")
            if not value:
                raise UserError(f"{name} needs a value")
            layer = preset(stage, value) if name == "--preset" else _saved(Path(value))
            read += [value] if name == "--config" else []
            # A manifest's or run's config.json holds the whole; it may name its stage.
            if isinstance(layer, dict) and layer.get("stage") and "config" in layer:
                if layer["stage"] != stage:
                    raise UserError(f"{value} is the config of {layer['stage']!r}, this is {stage!r}")
                layer = layer["config"]
            if not isinstance(layer, dict):
                raise UserError(f"{value} holds no configuration: expected an object of flags and values")
            layer = earlier.keys_of_today(layer, stage)
            base = merge(base, layer)
            if "bf16" in _keys(layer):
                bf16_by_preset = name == "--preset"
        else:
            rest.append(word)
    asked_for_help = "-h" in rest or "--help" in rest
    given = {_flag_name(word) for word in rest if word.startswith("--")}
    named = {flag[2:] for flag in given} | set(_keys(base))
    defaults, demo = _defaults(cls, named)
    complete = merge(defaults, base)
    required = {f.name: tyro.MISSING for f in dataclasses.fields(cls) if f.name not in complete}  # type: ignore[arg-type]
    default = from_json(cls, complete, " and ".join([*read, stage]), missing=required)
    description = (cls.__doc__ or "") + (
        "\n\n--preset NAME starts from configs/NAME.json, --config FILE from an earlier run's config.json; "
        f"flags override both.  --figures pdf svg writes every figure in these formats too.  --debug {debug}."
    )
    if not asked_for_help:
        flags = _flags(cls)
        for word in sorted(w.partition("=")[0] for w in rest if w.startswith("--")):
            if _flag_name(word) not in flags:
                raise UserError(f"unknown flag {word}{_meant(word, cls, flags)}; see --help")
        for name in required:
            if f"--{name}" not in given:
                raise UserError(f"--{name} is required; see --help")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _words():
            config = tyro.cli(
                cls,
                args=["--help"] if asked_for_help else rest,  # a place that is filled would be left out
                prog=stage,
                description=description,
                # What flags do is read from source files, which takes as long as all the rest: only to be shown.
                config=(tyro.conf.OmitArgPrefixes, *(() if asked_for_help else (tyro.conf.HelptextFromCommentsOff,))),
                default=default,
            )
    except SystemExit as end:
        if end.code in (None, 0):  # --help
            raise
        raise UserError(earlier.as_typed(_said_in_box(said.getvalue()), typed, stage)) from None
    earlier.check_dropped(dropped, config)
    unread = getattr(config, "unread", ())  # inputs that what it is to make has no use for
    for note in (*notes, *_from_the_demo(to_json(config), {k: v for k, v in demo.items() if k not in unread})):
        print(note, file=sys.stderr)
    for flag, why in getattr(config, "overruled", {}).items():  # by another setting
        if f"--{flag}" in given:
            print(f"note: --{flag} means nothing here: {why}", file=sys.stderr)
    _check_values(config)
    config = precision.settled(config, bf16_by_preset and "--bf16" not in given)
    if getattr(config, "threads", 1) < 1:
        raise UserError(f"--threads {getattr(config, 'threads')}: at least 1")  # noqa: B009  (not every stage has it)
    return config


def _check_values(config: Any) -> None:
    """UserError where a number of a configuration is not finite, or a path leads through links in a circle, which
    pathlib cannot resolve."""
    for name, value in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config)):
        if dataclasses.is_dataclass(value):
            _check_values(value)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                raise UserError(f"--{name} must be a finite number, not {one}")
            try:
                if isinstance(one, Path):
                    one.stat()
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise refused(error, one) or error from None


def whole_number(word: str) -> int:
    """``5000000``, ``5_000_000`` or ``5e6``; ValueError where that is no whole number."""
    with contextlib.suppress(ValueError):
        return int(word)
    try:
        number = Decimal(word)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number.adjusted() > 18 or number != number.to_integral_value():
        raise ValueError(f"{word!r} is not a whole number")
    return int(number)


@contextlib.contextmanager
def _words() -> Iterator[None]:
    """How tyro reads and shows values: whole numbers also as 5e6, and ``none`` for nothing."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    rules, inside = ConstructorRegistry(), False

    @rules.primitive_rule
    def whole(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            1, "INT", lambda words: whole_number(words[0]), lambda x: type(x) is int, lambda x: [str(x)]
        )

    @rules.primitive_rule
    def nothing(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
        if info.type is not type(None):
            return None
        spelled = ("none", "None")
        return PrimitiveConstructorSpec(1, "none", lambda words: None, lambda x: x is None, lambda x: ["none"], spelled)

    @rules.primitive_rule
    def several(info: PrimitiveTypeInfo) -> Any:
        nonlocal inside
        if info.type_origin is not tuple or inside:
            return None
        inside = True
        try:
            spec: Any = ConstructorRegistry.get_primitive_spec(info)
        finally:
            inside = False
        return dataclasses.replace(
            spec,
            instance_from_str=lambda words: () if words == ["none"] else spec.instance_from_str(words),
            str_from_instance=lambda values: spec.str_from_instance(values) or ["none"],
        )

    with rules:
        yield


def _defaults(cls: type, given: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The defaults of a stage as JSON.  An input that was not given and is not there is the demo's, where that has
    been made: the second, by flag."""
    out = to_json_defaults(cls)
    demo: dict[str, str] = {}
    # Options that stand together name an input only where one of them is used.
    for place in [out, *(x for x in out.values() if isinstance(x, dict) and not set(given).isdisjoint(x))]:
        for flag, path in stages.of_the_demo(place, given).items():
            demo[flag] = path
            place[flag] = [path] if isinstance(place[flag], list) else path
    return out, demo


def _from_the_demo(config: Mapping[str, Any], demo: Mapping[str, str]) -> list[str]:
    """What is said of inputs that are the demo's (one may have been given by its place, without a flag)."""
    has = [config, *(x for x in config.values() if isinstance(x, Mapping))]
    taken = {flag: path for flag, path in demo.items() if any(x.get(flag) in (path, [path]) for x in has)}
    missing = ", ".join(str(stages.written(flag)) for flag in taken)
    named = " ".join(f"--{flag} {path}" for flag, path in taken.items())
    return [f"note: there is no {missing}; from the demo: {named}"] if taken else []


def _saved(path: Path) -> Any:
    """The JSON of --config: a user's own file, or the config.json of a whole run, compared with its manifest."""
    from core import artefacts  # which imports this module

    if path.name == "config.json" and (path.parent / artefacts.MANIFEST).exists():
        return artefacts.load_json(path.parent, path.name)
    return read_json(path)


def _said_in_box(text: str) -> str:
    """The first paragraph of tyro's boxed message as one line; a terminal without Unicode gets dashes and a heading."""
    lines = [line.strip("│ ") for line in text.splitlines()]
    below = itertools.dropwhile(lambda line: not _is_frame(line), lines)
    first = itertools.takewhile(
        lambda line: not _is_frame(line), itertools.dropwhile(lambda line: not line or _is_frame(line), below)
    )
    words = " ".join(first).rstrip(".")
    if words.startswith("Unrecognized options: "):  # unknown flags were met before
        words = f"{words.partition(': ')[2]!r} stands behind no flag that takes it: put its flag before it"
    return f"{words}; see --help"


def _is_frame(line: str) -> bool:
    return line.startswith(("╭", "─", "---"))


def to_json_defaults(cls: type) -> dict[str, Any]:
    """The defaults of a config class as JSON; fields without a default are left out."""
    out = {}
    for f in dataclasses.fields(cls):
        if f.default is not dataclasses.MISSING:
            out[f.name] = to_json(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            out[f.name] = to_json(f.default_factory())
    return out


def _keys(config: Mapping[str, Any]) -> Iterator[str]:
    """The flags that a JSON configuration sets, nested ones too."""
    for key, value in config.items():
        yield from _keys(value) if isinstance(value, Mapping) else [key]


def _meant(word: str, cls: type, flags: Collection[str]) -> str:
    """What a flag that does not exist was meant to be; of --no_X, a switch that can be off."""
    name = earlier.name_of(word)
    return mistyped(f"--{name}", [*flags, *(f"--no_{flag[2:]}" for flag in switches(cls))])


def _flag_name(word: str) -> str:
    """--a-flag=3 -> --a_flag; --no-a-flag -> --a_flag."""
    name = word.partition("=")[0][2:].replace("-", "_")
    return "--" + name.removeprefix("no_")


def _flags(cls: type, top: bool = True) -> list[str]:
    out = ["--preset", "--config", "--help", "--debug"] if top else []
    for name, hint in typing.get_type_hints(cls).items():
        out += _flags(hint, False) if dataclasses.is_dataclass(hint) else [f"--{name}"]  # type: ignore[arg-type]
    return out


def switches(cls: type) -> list[str]:
    """The flags that are on or off."""
    out = []
    for name, hint in typing.get_type_hints(cls).items():
        out += switches(hint) if dataclasses.is_dataclass(hint) else [f"--{name}"] * (hint is bool)  # type: ignore[arg-type]
    return out


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch: for scripts, whose whole process is one seeded run."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def tune_allocator() -> None:
    """Let glibc keep freed memory instead of faulting every large temporary in again.

    Worth a factor of several for torch on CPU (docs/performance.md).  The values hold for this
    process only; ``DREAMLENS_ALLOCATOR=system`` leaves glibc's own defaults.
    """
    if os.environ.get("DREAMLENS_ALLOCATOR", "keep") == "system" or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none
        return
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # malloc.h
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 256 * 2**20)


def require(at_least: int, **numbers: float) -> None:
    """UserError naming the first flag whose number is too small."""
    for name, number in numbers.items():
        if number < at_least:
            raise UserError(f"--{name} must be at least {at_least}, not {number}")


def require_positive(**numbers: float) -> None:
    """UserError naming the first flag whose number is not above 0."""
    for name, number in numbers.items():
        if not number > 0:
            raise UserError(f"--{name} must be above 0, not {number:g}")


def require_shares(**numbers: float) -> None:
    """UserError naming the first flag whose number does not lie between 0 and 1."""
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise UserError(f"--{name} must lie between 0 and 1, not {number:g}")


def device_of(name: str) -> torch.device:
    """A torch device, or a UserError where the machine has none: never another one in its place."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: not a device torch knows; use cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu")
    if device.type == "cuda":
        ranks.place_on_gpu()
        # float32 is float32, as on a CPU.  Torch lets convolutions round to TF32's 10 bits; what a pass through the
        # world has over one through the agent alone would be that rounding.
        torch.backends.cudnn.allow_tf32 = False
    return device


# Flags by which a stage holds fewer rows at a time, with the way in which they do.
SMALLER = {
    "--memory_gb": "lower", "--batch_size": "lower", "--batch": "lower", "--envs": "lower", "--slots": "lower",
    "--minibatches": "raise",
}  # fmt: skip


class Terminated(BaseException):
    """SIGTERM: like Ctrl-C's KeyboardInterrupt, so that what is open is closed and what was set aside comes back."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated inside the block (in the main thread, the only one that signals reach)."""

    def terminate(number: int, frame: types.FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_accelerator() -> None:
    """UserError where CUML_ACCEL_ENABLED asks for RAPIDS' cuml.accel, which says nothing where it cannot load."""
    if os.environ.get("CUML_ACCEL_ENABLED", "").lower() in ("1", "true") and "cuml" not in sys.modules:
        raise UserError("CUML_ACCEL_ENABLED is set, but cuml was not loaded: install RAPIDS' cuml, or unset it")


def run(
    cls: type[C],
    main: Callable[[C], Any],
    stage: str,
    argv: list[str] | None = None,
    *,
    small_debug: bool = False,
    shared: bool = False,
) -> None:
    """The body of every script: parse, set the machine up, call main, turn a UserError into one line.

    small_debug: --debug is the preset debug too, over other presets and --config; single flags override it.
    shared: torchrun's processes share its work (core.ranks); it refuses to run in several otherwise.
    Exit codes: 0, 2 after a user's mistake, 130 after Ctrl-C, 143 after SIGTERM.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    says = {}
    before = figures.also.set(())
    if small_debug:
        argv += ["--preset", "debug"] * debug
        says = {"debug": "is --preset debug, after all others, and shows where an error came from"}
    tune_allocator()
    try:
        if ranks.count() > 1 and not shared:
            raise UserError(f"{stage} is the work of one process: start it with python, not with torchrun")
        require_accelerator()
        argv, formats = _figure_formats(argv)
        figures.also.set(formats)
        with terminable(), ranks.quiet():
            main(parse(cls, argv, stage, **says))
    except UserError as error:
        who = ranks.let_the_first_speak()
        if debug:
            traceback.print_exc()
        print(f"error: {who}{error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if debug or not _out_of_memory(error):
            raise
        asked = re.search(r"allocate ([0-9.]+ \w+)", str(error))
        of = "GPU memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
        print(f"error: out of {of}{f' ({asked[1]} more asked for)' if asked else ''}; {_smaller(cls)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        said = refused(error, Path.cwd())
        if debug or said is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Terminated:
        if ranks.speaks():
            why = "" if ranks.count() == 1 else ": another process of this run died, or it was told to end"
            print(f"terminated{why}", file=sys.stderr)
        sys.exit(143)
    finally:
        ranks.ends()
        figures.also.reset(before)


def _out_of_memory(error: BaseException) -> bool:
    """torch's CPU allocator has no exception of its own."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _smaller(cls: type) -> str:
    """What makes a stage need less memory."""
    flags = _flags(cls)
    ways = [f"{way} {flag}" for flag, way in SMALLER.items() if flag in flags]
    return ", or ".join(ways) if ways else "it needs a machine with more"


def _figure_formats(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """(the other words, what follows ``--figures``); UserError for a format that is none of core.figures.ALSO."""
    rest, found, taking = [], [], False
    for word in argv:
        name, equals, value = word.partition("=")
        if name == "--figures":
            taking = not equals
            found += value.split(",") if equals else []
        elif taking and not word.startswith("-"):
            found.append(word)
        else:
            taking = False
            rest.append(word)
    asked = any(word.partition("=")[0] == "--figures" for word in argv)
    if asked and not (found and set(found) <= set(figures.ALSO)):
        raise UserError(
            f"--figures takes {' and '.join(figures.ALSO)}, besides PNG; not {' '.join(found) or 'nothing'}"
        )
    return rest, tuple(dict.fromkeys(found))
