"""A recording that was cut off anywhere, and ``--resume``: the recording that nothing stopped, to the last byte.

Here an exception cuts it off, at the place a test names, or one of two processes is killed; tests/faults/test_kills.py
kills the only one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agents import record, recording_state
from agents.play import LiveWorld
from agents.recording_state import STATE
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from agents.shared_recording import SharedWriter
from core import artefacts, config as cli
from core.artefacts import MANIFEST, save_weights
from core.contracts import EnvSpec, UserError
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore, StoreWriter
from core.ranks import Processes
from core.training import load_state
from envs.planted import PlantedOptions, spec_of
from envs.registry import make, spec_of as world_of
from tests.cut_off import Cut, cut_before, outcome, require_alike, without_hashes

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ["--episodes", "12", "--slots", "4", "--shard_steps", "45", "--threads", "1"]


def write_agent(path: Path, spec: EnvSpec, seed: int = 0) -> Path:
    """An untrained agent, and its weights of another time as a checkpoint."""
    torch.manual_seed(seed)
    encoder: Any = "strided" if "frames" in spec.obs else "mlp"
    agent = RecurrentAgent(AgentConfig(encoder=encoder, embedding_size=8, hidden_size=6), spec)
    with torch.no_grad():
        agent.policy.weight.mul_(100)
    with artefacts.new_run(path, "train", {}) as run:
        save_agent(agent, run.path)
        with torch.no_grad():
            agent.policy.weight.neg_()
        save_weights(agent, run.path / "checkpoint_000000005.safetensors")
        run.record("steps", 9, "environment steps")
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """agent/ and other/ in a planted world of short episodes, leaper/ in Procgen, cart/ in Gymnasium; basis/."""
    root = tmp_path_factory.mktemp("worlds")
    planted = spec_of(PlantedOptions(horizon=24, hazard=0.05), 1)
    write_agent(root / "agent", planted)
    write_agent(root / "other", planted, seed=1)
    write_agent(root / "leaper", world_of("procgen/leaper", {"distribution_mode": "easy"}))
    write_agent(root / "cart", world_of("gymnasium/CartPole-v1", {}))
    name = fingerprint(record.load_agent(root / "agent"))
    with artefacts.new_run(root / "basis", "hidden_states", {}) as run:
        Basis("neurons", torch.zeros(6), torch.ones(6), torch.eye(6), torch.eye(6), agent=name).save(run.path)
    return root


def recorded(argv: list[str], out: Path, *more: str) -> Path:
    record.main(cli.parse(record.RecordConfig, [*SMALL, *argv, "--out", str(out), *more], record.STAGE))
    return out


PLACES: dict[str, tuple[Any, str, int]] = {
    "before the first step": (LiveWorld, "step", 1),
    "before a shard": (LiveWorld, "step", 20),
    "later": (LiveWorld, "step", 70),
    "before a shard is written": (StoreWriter, "flush", 2),
    "between shard and state": (recording_state, "save_state", 3),
    "before the state of the end": (record.Saves, "end", 1),
    "before the manifest": (artefacts.Run, "finish", 1),
}
KINDS: dict[str, list[str]] = {
    "plain": [],
    "explored": [
        "--explore_share",
        "0.5",
        "--sticky",
        "0.4",
        "--random",
        "0.2",
        "--temperature",
        "2",
        "--points",
        "all",
    ],
    "greedy": ["--greedy"],
    "steps": ["--num_steps", "60"],
    "altered": ["--shift", "neurons:1=2", "--at_steps", "2", "9"],
    "branches": ["--branches", "3"],
    "leaper": ["--episodes", "6", "--slots", "3", "--truth", "all", "every", "3"],
}


def words(world: Path, kind: str) -> list[str]:
    agent = world / ("leaper" if kind == "leaper" else "agent")
    basis = ["--basis", str(world / "basis"), "--basis_kind", "neurons"] if kind == "altered" else []
    return ["--agent", str(agent), *KINDS[kind], *basis]


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Recordings that nothing stopped."""
    root = tmp_path_factory.mktemp("whole")

    def of(kind: str) -> Path:
        return root / kind if (root / kind).exists() else recorded(words(world, kind), root / kind)

    return of


OFTEN = ("later", "between shard and state", "before the manifest")


@pytest.mark.parametrize(
    ("kind", "place"), [(kind, place) for kind in KINDS for place in (PLACES if kind == "plain" else OFTEN)]
)
def test_a_recording_that_was_cut_off_is_the_recording(
    kind: str, place: str, world: Path, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    argv, out, (owner, name, call) = words(world, kind), tmp_path / "r", PLACES[place]
    call *= 5 if kind == "leaper" and owner is LiveWorld else 1  # whose episodes are longer
    want = outcome(whole(kind))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        cut_before(patch, owner, name, call)
        recorded(argv, out)
    finished = load_state(out / STATE, of="recording")["writer"]
    shards = {f"shard_{i:05d}.h5" for i in range(finished["shards"] if finished else 0)}
    before = {name: (out / name).stat().st_mtime_ns for name in shards}
    assert len(shards) >= {"before the manifest": 2, "later": 1, "between shard and state": 1}.get(place, 0)
    recorded(argv, out, "--resume")
    assert outcome(out) == want
    assert {name: (out / name).stat().st_mtime_ns for name in shards} == before


def test_a_recording_cut_off_again_and_again(world: Path, whole: Callable[[str], Path], tmp_path: Path) -> None:
    """After 30 steps, each time from the last state, until nothing is left."""
    argv, out, more = words(world, "explored"), tmp_path / "r", ["--no-resume"]
    steps = [0]
    while more:
        with pytest.MonkeyPatch.context() as patch:
            cut_before(patch, LiveWorld, "step", 62)
            try:
                recorded(argv, out, *more)
                more = []
            except Cut:
                more = ["--resume"]
                steps.append(load_state(out / STATE)["recorder"]["step"])
    assert len(steps) > 2 and steps == sorted(set(steps))
    assert outcome(out) == outcome(whole("explored"))


def cut_off(world: Path, out: Path, *more: str, call: int = 70) -> Path:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        cut_before(patch, LiveWorld, "step", call)
        recorded(words(world, "plain"), out, *more)
    return out


def test_every_checkpoint_goes_on_where_it_was(world: Path, tmp_path: Path) -> None:
    """The first is whole and stays, the second goes on, the third would begin."""
    argv, out = [*words(world, "plain"), "--all_ckpts", "--npz"], tmp_path / "r"
    recorded(argv, tmp_path / "whole")
    names = ["checkpoint_000000005", "checkpoint_000000009"]
    want = {name: outcome(tmp_path / "whole" / name) for name in names}
    for call in (70, 170):  # in the first, in the second
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
            cut_before(patch, LiveWorld, "step", call)
            recorded(argv, out, "--resume" if out.exists() else "--no-resume")
    first = (out / names[0] / MANIFEST).read_bytes()
    assert not (out / names[1] / MANIFEST).exists()
    recorded(argv, out, "--resume")
    assert {name: outcome(out / name) for name in names} == want
    assert (out / names[0] / MANIFEST).read_bytes() == first
    for name in names:
        assert (out / f"{name}.npz").read_bytes() == (tmp_path / "whole" / f"{name}.npz").read_bytes()


def test_a_whole_recording_stays_as_it_is(
    world: Path, whole: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, out = words(world, "plain"), tmp_path / "r"
    recorded(argv, out)
    before = {p: p.read_bytes() for p in out.rglob("*")}
    (out / STATE).write_bytes(b"of a process killed between manifest and end")
    artefacts.aside_of(out).mkdir()
    recorded(argv, out, "--resume", "--npz")
    assert capsys.readouterr().out.endswith(f"{out} is whole: nothing was left to record\n")
    assert {p: p.read_bytes() for p in out.rglob("*")} == before and (tmp_path / "r.npz").exists()
    assert not artefacts.aside_of(out).exists() and not list(tmp_path.glob(".*.lock"))
    with pytest.raises(UserError, match="--resume: seed was 0 and is now 3; start another run for that"):
        recorded(argv, out, "--resume", "--seed", "3")
    with pytest.raises(UserError, match="other is not what .*r was made of|agent was .* and is now"):
        recorded([*argv, "--agent", str(world / "other")], out, "--resume")


def test_what_a_recording_does_not_go_on_with(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tmp_path / "agent"
    write_agent(agent, spec_of(PlantedOptions(horizon=24, hazard=0.05), 1))
    argv, out = [*words(world, "plain"), "--agent", str(agent)], tmp_path / "r"
    with pytest.raises(UserError, match="has no state to resume from .* without --resume"):
        recorded(argv, out, "--resume")
    assert not out.exists()
    cut_off(world, out, "--agent", str(agent))
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    (tmp_path / "link").symlink_to(agent)
    with monkeypatch.context() as patch:  # named in another way, it is no other agent
        patch.chdir(tmp_path)
        for named in ("agent", "./link/../agent", "link"):
            again = tmp_path / f"again_{named.replace('/', '_')}"
            shutil.copytree(out, again)
            recorded([*argv, "--agent", named], again, "--resume")
    for more, said in (
        (["--seed", "3"], "--resume: seed was 0 and is now 3; start another run for that"),
        (["--explore_share", "0.5", "--random", "0.5"], "exploration.explore_share was 0.0 and is now 0.5"),
        (["--num_steps", "9"], "num_steps was None and is now 9"),
        (["--slots", "3"], "slots was 4 and is now 3"),
        (["--ckpt", "5"], "ckpt was 'last' and is now '5'"),
        (["--overwrite"], "--resume goes on with a run and --overwrite starts anew: choose one"),
    ):
        with pytest.raises(UserError, match=said):
            recorded(argv, out, "--resume", *more)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="was begun by the code .* and this is other"):
        patch.setattr(artefacts, "code_version", lambda: "other")
        recorded(argv, out, "--resume")
    config = cli.parse(record.RecordConfig, [*SMALL, *argv, "--out", str(out)], record.STAGE)
    made = load_state(out / STATE)["made_of"]
    with pytest.raises(UserError, match="was begun by one process and this is 2; go on with as many, or record it"):
        recording_state.saved_in(config, out, record.STAGE, made, Processes(0, 2))
    broken = before[out / STATE][:-1]
    (out / STATE).write_bytes(broken)
    with pytest.raises(UserError, match="broken recording state .*; copy it or start the recording anew"):
        recorded(argv, out, "--resume")
    (out / STATE).write_bytes(before[out / STATE])
    shutil.rmtree(agent)
    write_agent(agent, spec_of(PlantedOptions(horizon=24, hazard=0.05), 1), seed=1)
    with pytest.raises(UserError, match="the agent is not the one that .* was begun with"):
        recorded(argv, out, "--resume")
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_world_without_snapshots_saves_no_state_and_says_so(world: Path, tmp_path: Path) -> None:
    """Gymnasium's are objects, which no file holds."""
    argv, out = ["--agent", str(world / "cart"), "--episodes", "4"], tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        cut_before(patch, LiveWorld, "step", 70)
        recorded(argv, out)
    assert not (out / STATE).exists()
    with pytest.raises(UserError, match="gymnasium/CartPole-v1 gives no snapshots that a file can hold.*--overwrite"):
        recorded(argv, out, "--resume")


def test_long_episodes_are_not_saved_with_every_shard(world: Path, tmp_path: Path) -> None:
    """What states hold together is never more than what was recorded."""
    sizes: list[int] = []
    real = recording_state.save_state

    def counted(path: Path, **parts: Any) -> None:
        if parts["recorder"]:
            sizes.append(sum(parts["recorder"]["lengths"]) + sum(e["steps"] for e in parts["writer"]["episodes"]))
        real(path, **parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_state, "save_state", counted)
        out = recorded(words(world, "plain"), tmp_path / "r", "--shard_steps", "5", "--episodes", "24", "--slots", "8")
    with RolloutStore(out) as store:
        assert 0 < len(sizes) < len(store._shards) and sum(sizes) <= store.steps.sum()


def test_an_interruption_says_how_to_go_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["record.py", "--agent", "a"])
    out = cut_off(world, tmp_path / "r")
    assert capsys.readouterr().err == f"note: {out} is not whole; go on with: python record.py --agent a --resume\n"


@pytest.mark.slow
def test_a_recording_in_craftax_goes_on(tmp_path: Path) -> None:
    agent, out = write_agent(tmp_path / "agent", world_of("craftax/Craftax-Classic-Symbolic-v1", {})), tmp_path / "r"
    argv = ["--agent", str(agent), "--slots", "3", "--num_steps", "400", "--shard_steps", "150"]
    recorded(argv, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        cut_before(patch, LiveWorld, "step", 700)
        recorded(argv, out)
    assert load_state(out / STATE)["recorder"]["step"] > 200
    recorded(argv, out, "--resume")
    assert outcome(out) == outcome(tmp_path / "whole")


# Two processes

TWO = ["--episodes", "1200", "--slots", "8", "--shard_steps", "400", "--explore_share", "0.5", "--sticky", "0.4"]


def test_a_process_that_is_through_with_its_slots_goes_on_as_that(world: Path) -> None:
    agent = record.load_agent(world / "agent")
    env = make(agent.spec, 2)
    recorder = record.Recorder(agent, env, 4, slice(0, 2), seed=0, device=torch.device("cpu"))
    assert sum(map(len, recorder)) == 4
    state = recorder.state()
    again = record.Recorder(agent, env, 4, slice(0, 2), seed=0, device=torch.device("cpu"), saved=state)
    assert again.over and again.t == recorder.t > 0 and again.held == 0


def test_a_shared_writer_goes_on_with_what_waits(world: Path, whole: Callable[[str], Path], tmp_path: Path) -> None:
    """From its state after every second step, without what it wrote since."""
    with RolloutStore(whole("plain")) as store:
        ended = [[store.episode(i)] for i in range(len(store))]
    writer = SharedWriter(tmp_path, Processes(), shard_steps=45)
    for i, some in enumerate(ended):
        writer.add([some])
        if i % 2:
            state, writer = writer.state(), SharedWriter(tmp_path, Processes(), shard_steps=45)
            writer.restore(state)
            assert writer.waiting == sum(about["steps"] for x in state["waiting"].values() for about in x["episodes"])
    with writer:
        pass
    shards = sorted(whole("plain").glob("*.h5"))
    assert [p.name for p in shards] == [p.name for p in sorted(tmp_path.glob("*.h5"))]
    assert [p.read_bytes() for p in shards] == [(tmp_path / p.name).read_bytes() for p in shards]


def torchrun(argv: list[str], out: Path, *flags: str) -> subprocess.Popen[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *flags]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, "record.py", *argv, "--threads", "1", "--out", str(out)]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def after_a_state(process: subprocess.Popen[str], out: Path, step: int) -> dict[str, int]:
    """Wait for a state of a later step; when the shards that it knows were written."""
    while True:
        with contextlib.suppress(UserError):  # there is none yet, or the next one took its place as it was read
            if (found := load_state(out / STATE)["step"]) > step:
                shards = load_state(out / f".state_{found}_0.pt")["writer"]["shards"]
                return {p.name: p.stat().st_mtime_ns for p in sorted(out.glob("*.h5"))[:shards]}
        assert process.poll() is None
        time.sleep(0.01)


def test_a_recording_of_two_processes_goes_on(world: Path, tmp_path: Path) -> None:
    """One of them is killed, and torchrun starts both again."""
    argv, out = ["--agent", str(world / "agent"), *TWO], tmp_path / "r"
    with torchrun(argv, tmp_path / "whole") as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said[-3000:]
    with torchrun(argv, out, "--max-restarts=1") as process:
        shards = after_a_state(process, out, 500)
        assert len(list(out.glob(".state_*_0.pt"))) <= 2  # those of earlier steps are gone
        os.kill(children(process)[-1], signal.SIGKILL)
        said = process.communicate()[0]
    assert process.returncode == 0, said[-3000:]
    assert said.count("going on from its state, as with --resume") == 1, said
    assert shards and {name: (out / name).stat().st_mtime_ns for name in shards} == shards
    assert without_hashes(outcome(out)) == without_hashes(outcome(tmp_path / "whole"))
    require_alike(out, tmp_path / "whole")


def test_parts_of_a_state_that_do_not_hold_are_refused(world: Path, tmp_path: Path) -> None:
    argv, out = [*words(world, "plain"), "--resume"], cut_off(world, tmp_path / "r")
    config = cli.parse(record.RecordConfig, [*SMALL, *argv, "--out", str(out)], record.STAGE)
    state = load_state(out / STATE)
    one, second = {part: state[part] for part in recording_state.OWN}, Processes(1, 2)
    recording_state.save_state(out / STATE, **state | dict.fromkeys(one) | {"processes": 2, "step": 64})

    def found(processes: Processes) -> dict[str, Any]:
        return recording_state.saved_in(config, out, record.STAGE, state["made_of"], processes)

    own = out / ".state_64_1.pt"
    with pytest.raises(UserError, match=f"cannot read the recording state {own}: No such file"):
        found(second)
    recording_state.save_state(own, **one)
    assert found(second)["recorder"]["step"] == one["recorder"]["step"]
    with pytest.raises(UserError, match=r"begun by 2 processes \(torchrun --nproc-per-node=2\) and this is 1; go on"):
        recorded(argv, out)
    data = own.read_bytes()
    own.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match=f"{own}: broken recording state"):
        found(second)
