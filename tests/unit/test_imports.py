"""Who imports whom, read from the source: rooms point one way, nobody opens another's door; importing does nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "envs", "agents", "generative", "analysis", "validation")  # each may import itself and those before
SCRIPTS = ("train.py", "record.py", "train_gen_model.py")
# Optional or slow stacks; they are imported inside the function that needs them.
HEAVY = (
    "captum", "craftax", "flax", "gym", "gym3", "hdbscan", "imageio", "imageio_ffmpeg", "jax", "matplotlib", "numba",
    "pandas", "picard", "plotly", "procgen", "sklearn", "tensorboard", "umap", "wandb",
)  # fmt: skip


@cache
def parsed(source: str) -> ast.Module:
    """The tree of a file, which many tests walk."""
    return ast.parse(source)


def imports_of(source: str) -> list[tuple[int, str]]:
    """(line, module) of every import statement, also of those inside functions."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, "." * node.level + (node.module or "")))
    return found


def violations(name: str, source: str) -> list[str]:
    """What a file at ``name`` (relative to the root) imports although it may not."""
    room = Path(name).parts[0]
    allowed = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ROOMS
    out = []
    for line, module in imports_of(source):
        top = module.partition(".")[0]
        if module.startswith("."):
            out.append(f"{name}:{line}: relative import {module}")
        elif top in ROOMS and top not in allowed:
            out.append(f"{name}:{line}: {room} may not import {module}")
    return out


def modules() -> list[Path]:
    return [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))]


def test_imports_point_downwards() -> None:
    files = modules()
    assert len(files) > 20
    wrong = [v for p in files for v in violations(p.relative_to(ROOT).as_posix(), p.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "source", "bad"),
    [
        ("core/x.py", "from envs.procgen import ProcgenEnv", True),
        ("envs/x.py", "def f():\n    import agents.ppo", True),
        ("agents/x.py", "from core import stats", False),
        ("generative/x.py", "from analysis.shared.directions import fit_pca", True),
        ("validation/x.py", "import analysis.coupling", False),
        ("analysis/x.py", "from . import directions", True),
    ],
)
def test_the_reader_itself_can_fail(name: str, source: str, bad: bool) -> None:
    assert bool(violations(name, source)) == bad


STAGES = ("analysis", "validation")  # where a folder is a room of its own


def dotted(path: Path) -> str:
    """A module's name; a package's is that of its folder."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """{module: modules among these that it imports anywhere}."""
    out: dict[str, set[str]] = {name: set() for name in sources}
    for name, source in sources.items():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Import):
                asked = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                asked = [one if one in sources else str(node.module) for one in whole]
            else:
                continue
            out[name] |= {one for one in asked if one in sources} - {name}
    return out


@cache
def is_door(source: str) -> bool:
    """Whether ``python -m`` runs it."""
    return any(isinstance(n, ast.If) and "__name__" in ast.unparse(n.test) for n in parsed(source).body)


def opened_doors(sources: Mapping[str, str]) -> list[str]:
    """Imports of a module that is a command."""
    found = arrows(sources)
    return [f"{a} imports the door {b}" for a in found for b in sorted(found[a]) if is_door(sources[b])]


def between_rooms(found: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows from room to room: a folder below analysis or validation, or a file that stands there by itself."""
    out: dict[str, set[str]] = {}
    for name, others in found.items():
        room = ".".join(name.split(".")[:2])
        out.setdefault(room, set()).update({".".join(one.split(".")[:2]) for one in others} - {room})
    return out


def circle(found: Mapping[str, set[str]]) -> list[str]:
    """Names that import each other round and round; [] if there are none."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in done:
            for other in sorted(found.get(name, ())):
                if ring := follow(other, [*way, name]):
                    return ring
            done.add(name)
        return []

    return next((ring for name in found if (ring := follow(name, []))), [])


def stage_sources() -> dict[str, str]:
    return {dotted(p): p.read_text() for p in modules() if p.relative_to(ROOT).parts[0] in STAGES}


def test_no_stage_imports_the_door_of_another() -> None:
    sources = stage_sources()
    assert sum(map(is_door, sources.values())) > 20
    assert not (wrong := opened_doors(sources)), "\n".join(wrong)


def test_no_file_and_no_room_imports_itself_in_a_circle() -> None:
    found = arrows(stage_sources())
    assert sum(map(len, found.values())) > 100
    assert not (ring := circle(found)), " -> ".join(ring)
    assert not (ring := circle(between_rooms(found))), " -> ".join(ring)


DOOR = 'if __name__ == "__main__":\n    run()'
PLANTED = {
    "analysis.a.__main__": f"from analysis.a import work\n{DOOR}",
    "analysis.a.work": "import analysis.b.more",
    "analysis.b": "",
    "analysis.b.more": "def f():\n    from analysis.shared.ground import x",
    "analysis.shared.ground": "",
    "analysis.c": f"from analysis.b.more import f\n{DOOR}",
}


@pytest.mark.parametrize(
    ("changed", "door", "of_files", "of_rooms"),
    [
        ({}, False, False, False),
        ({"analysis.b.more": "from analysis.a.__main__ import main"}, True, True, True),
        ({"analysis.b.more": "from analysis import c"}, True, True, True),
        ({"analysis.shared.ground": "def f():\n    import analysis.b.more"}, False, True, True),
        ({"analysis.a.rest": "", "analysis.b.more": "from analysis.a.rest import x"}, False, False, True),
    ],
)
def test_the_reader_of_rooms_can_fail(changed: dict[str, str], door: bool, of_files: bool, of_rooms: bool) -> None:
    sources = {**PLANTED, **changed}
    found = arrows(sources)
    assert bool(opened_doors(sources)) == door
    assert bool(circle(found)) == of_files
    assert bool(circle(between_rooms(found))) == of_rooms


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_only_parse_and_call_main(script: str) -> None:
    tree = parsed((ROOT / script).read_text())
    assert len(tree.body) <= 5 and not any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) for n in ast.walk(tree))
    names = {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    if script == "train.py":
        assert names == {"choose"}  # which asks for a world by the first word
    else:
        assert {"main", "STAGE", "run"} < names and len(names) == 4  # and the config class


PROBE = """
import core, importlib, json, os, sys, warnings
import numpy, torch
names, heavy = json.loads(sys.argv[1])
before = (os.getcwd(), list(warnings.filters), torch.get_num_threads(), torch.initial_seed(),
          torch.get_default_dtype(), torch.random.get_rng_state().tolist(), numpy.random.get_state()[1].tolist())
found = {}
for name in names:
    importlib.import_module(name)
    for top in heavy:
        if top in sys.modules:
            found.setdefault(top, name)
after = (os.getcwd(), list(warnings.filters), torch.get_num_threads(), torch.initial_seed(),
         torch.get_default_dtype(), torch.random.get_rng_state().tolist(), numpy.random.get_state()[1].tolist())
print(json.dumps({"heavy": found, "changed": [i for i, (a, b) in enumerate(zip(before, after)) if a != b]}))
"""


def test_importing_does_nothing() -> None:
    """No heavy stack, no chdir, no warning filter, no seeding, no output: every module in one fresh process."""
    names = [dotted(p) for p in modules()]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([names, HEAVY])], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == {"heavy": {}, "changed": []}


FORKS = """
import importlib, json, os, runpy, sys, traceback
directory, loaded, commands = json.loads(sys.argv[1])
for name in loaded:
    importlib.import_module(name)

class AtTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            with open("/proc/self/maps") as maps:
                known = "libgomp" in maps.read()
            print("AT TORCH", os.environ.get("OMP_WAIT_POLICY"), known, flush=True)
            os._exit(0)

sys.meta_path.insert(0, AtTorch())
ends = []
for i, (first, *words) in enumerate(commands):
    child = os.fork()
    if not child:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{directory}/{i}.{name}", os.O_CREAT | os.O_WRONLY), number)
        code = 0
        try:
            if first == "-m":
                sys.argv = words
                runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            else:
                sys.argv = [first, *words]
                runpy.run_path(first, run_name="__main__")
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)  # at once: to take torch apart takes longer than the command
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""


def commands() -> list[list[str]]:
    """What is typed after ``python`` to start every script and every module that can be run."""
    doors = [dotted(p).removesuffix(".__main__") for p in modules() if '__name__ == "__main__"' in p.read_text()]
    return [[s] for s in SCRIPTS] + [["-m", name] for name in doors]


def without_openmp() -> dict[str, str]:
    """This environment without the settings of OpenMP."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}


def helped(directory: Path, loaded: Sequence[str], env: Mapping[str, str]) -> list[tuple[list[str], int, str, str]]:
    """(command, exit code, output, errors) of ``--help``, each command in a fork of one process that has loaded these
    modules.  Who asks for torch, where it was not loaded, says the wait policy and ends."""
    typed = [[*command, "--help"] for command in commands()]
    words = json.dumps([str(directory), loaded, typed])
    done = subprocess.run([sys.executable, "-c", FORKS, words], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [((directory / f"{i}.out").read_text(), (directory / f"{i}.err").read_text()) for i in range(len(typed))]
    return [(c, code, *texts) for c, code, texts in zip(commands(), json.loads(done.stdout), said, strict=True)]


def test_every_command_starts(tmp_path: Path) -> None:
    behind = [dotted(p) for p in modules() if not is_door(p.read_text())]
    found = helped(tmp_path, ["torch", *behind], {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    assert len(found) > 20
    for command, code, out, error in found:
        if command[-1] == "core.artefacts":
            assert code == 2 and "usage: " in error, error
        else:
            said = [line for line in error.splitlines() if "found in sys.modules after import" not in line]
            assert (code, said) == (0, []) and len(out) > 100, (command, code, out, error)


def test_threads_of_every_stage_do_not_spin_while_they_wait(tmp_path: Path) -> None:
    """OpenMP reads its policy once, when torch loads it: by then every command has set it, and loaded no OpenMP."""
    for command, code, out, error in helped(tmp_path, ("numpy", "tyro", "h5py"), without_openmp()):
        assert (code, error) == (0, ""), (command, error)
        if command in (["-m", "analysis"], ["-m", "validation"]):  # they list commands, and load no torch
            assert "AT TORCH" not in out and len(out) > 100
        else:
            assert out == "AT TORCH PASSIVE False\n", (command, out)


@pytest.mark.parametrize("command", [["train.py"], ["-m", "validation.interventions"]], ids=lambda words: words[-1])
def test_openmp_itself_says_that_its_threads_do_not_spin(command: list[str]) -> None:
    env = {**without_openmp(), "OMP_DISPLAY_ENV": "TRUE"}
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, env=env)
    policies = [line for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    assert done.returncode == 0 and policies and all("PASSIVE" in line for line in policies), done.stderr


def test_a_policy_that_is_set_stays_and_a_torch_that_was_there_first_is_said() -> None:
    def run(source: str, **more: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        return subprocess.run(
            [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, env={**clean, **more}
        )

    say = "import os; print(os.environ['OMP_WAIT_POLICY'])"
    kept = run(f"import envs; {say}", OMP_WAIT_POLICY="ACTIVE")
    assert kept.stdout == "ACTIVE\n" and not kept.stderr
    late = run(f"import torch, analysis; {say}")
    assert late.stdout == "PASSIVE\n" and late.stderr.count("OMP_WAIT_POLICY") == 1


def test_every_module_says_what_it_is() -> None:
    for path in modules():
        tree = parsed(path.read_text())
        assert ast.get_docstring(tree), f"{path}: no module docstring"
        if path.name != "__init__.py":
            assert "from __future__ import annotations" in path.read_text(), path


def test_no_junk_drawers() -> None:
    assert not [p for p in modules() if p.stem in ("utils", "util", "common", "helpers", "misc", "stage")]


def test_no_function_is_longer_than_80_lines() -> None:
    long = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in modules()
        for node in ast.walk(parsed(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None and node.end_lineno - node.lineno >= 80
    ]
    assert not long, "\n".join(long)
