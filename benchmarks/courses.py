"""The course of a recording, as small as a repository takes it: which actions were taken, so that it is played again.

``python -m benchmarks.courses write RECORDING FILE.npz`` keeps the actions of every slot, with a checksum of what was
seen; ``python -m benchmarks.courses play FILE.npz --agent AGENT --out DIR`` takes them again in the real game, with the
agent looking on, so that simulators which were trained on different machines are measured on the same windows.  Where
an agent chooses for itself, sums that another processor rounds otherwise lead to other courses.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from core.episodes import Episode

PLACE = ("episodes", "slots", "seed", "start_level", "num_levels", "split")  # what of a recording says where it was


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="keep the actions of a recording (record.py)")
    write.add_argument("recording", type=Path)
    write.add_argument("file", type=Path)
    again = commands.add_parser("play", help="record them anew")
    again.add_argument("file", type=Path)
    again.add_argument("--agent", type=Path, required=True)
    again.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    if args.command == "write":
        keep(args.recording, args.file)
    else:
        play_again(args.file, args.agent, args.out)


def keep(recording: Path, to: Path) -> None:
    """Write the file: ``action`` int64 [slots, steps] (0 after a slot's last step); ``slot``, ``steps`` and ``seen``
    (``checksum``) of every episode, in the order of the recording; ``place``, JSON.  An episode is in memory at a
    time."""
    from core import artefacts
    from core.episodes import RolloutStore

    config = artefacts.read_manifest(recording)["config"]
    actions: list[list[np.ndarray]] = [[] for _ in range(config["slots"])]
    rows = []
    with RolloutStore(recording) as store:
        for episode in store:
            slot = episode.meta["slot"]
            actions[slot].append(episode.action)
            rows.append((slot, episode.steps, checksum(episode)))
    slot_E, steps_E, seen_E = np.array(rows, np.int64).T
    played = [np.concatenate(of_slot) for of_slot in actions]
    action_BT = np.zeros((len(played), max(map(len, played))), np.int64)
    for b, action_T in enumerate(played):
        action_BT[b, : len(action_T)] = action_T
    place = json.dumps({k: config[k] for k in PLACE})
    np.savez_compressed(to, action=action_BT, slot=slot_E, steps=steps_E, seen=seen_E, place=np.array(place))


def checksum(episode: Episode) -> int:
    """Of all that an episode shows and pays, CRC-32."""
    found = 0
    for _, x in sorted({**episode.obs, "reward": episode.reward}.items()):
        found = zlib.crc32(np.ascontiguousarray(x).tobytes(), found)
    return found


@dataclass
class Given:
    """Chooses what was chosen before, in place of ``agents.play.Chooser``."""

    action_BT: np.ndarray  # int64 [slots, steps]
    explores_B: np.ndarray
    t: int = 0

    def __call__(self, logits_BA: np.ndarray, is_first_B: np.ndarray) -> np.ndarray:
        self.t += 1
        return self.action_BT[:, self.t - 1]


def play_again(file: Path, agent_path: Path, out: Path) -> None:
    """Record the course anew.  SystemExit where the game goes otherwise than it went."""
    import torch

    from agents.load import load_agent
    from agents.record import STAGE, RecordConfig, Recorder, changes_in, where_played
    from core import artefacts
    from core.directions import fingerprint
    from core.episodes import StoreWriter
    from envs.registry import make

    with np.load(file) as read:
        kept: Mapping[str, Any] = {k: read[k] for k in read.files}
    config = RecordConfig(agent=agent_path, out=out, **json.loads(str(kept["place"])))
    agent, device = load_agent(agent_path), torch.device("cpu")
    env = make(agent.spec, config.slots, threads=1, **where_played(config, agent.spec))
    recorder = Recorder(agent, env, config.episodes, slice(0, config.slots), seed=config.seed, device=device)
    recorder.chooser = Given(kept["action"].astype(np.int64), np.zeros(config.slots, bool))  # type: ignore[assignment]
    with artefacts.new_run(out, STAGE, config, artefacts.Inputs({"agent": agent_path})) as run:
        artefacts.write_json(run.path / "spec.json", env.spec.to_json())
        run.facts = {"agent": fingerprint(agent), "source": "real", **changes_in(config, (), True)}
        played = []
        with StoreWriter(run.path) as writer:
            for episode in (e for ended in recorder for e in ended):
                writer.add(episode)
                played.append((episode.meta["slot"], episode.steps, checksum(episode)))
        asked = list(zip(*(kept[k].tolist() for k in ("slot", "steps", "seen")), strict=True))
        other = sum(a != b for a, b in zip(asked, played, strict=False)) + abs(len(asked) - len(played))
        if other:
            raise SystemExit(f"{other} of {len(asked)} episodes went otherwise than they went")
    env.close()
    print(f"played {len(played)} episodes again: {out}")


if __name__ == "__main__":
    main()
