"""Random edits of Procgen's worlds: does any that is accepted kill the game?

    python -m benchmarks.procgen_edits --edits 640        # 10,240 in 16 games

Every game runs in a process of its own, since a state that it cannot go on from ends the process.  Edits are drawn over
all verbs, objects and places, legal or not; those that are refused are not counted; each is followed by 10 steps of
random actions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

import numpy as np

from core.contracts import UserError
from envs.procgen import GAMES, ProcgenEnv, ProcgenOptions
from envs.procgen_edits import VERBS, parse_edit
from envs.procgen_state import THINGS, State, snapshot_of, state_of

SLOTS, TRIES, AFTER = 16, 20, 10


def random_edit(rng: np.random.Generator, state: State) -> str:
    """Words for any edit, legal or not."""
    things, (h, w) = list(THINGS[state.game]), state.cells.shape
    verb = str(rng.choice(VERBS))
    thing = str(rng.choice([*things, "agent"] if verb == "move" else things))
    place = f"{rng.integers(w) + 0.5} {rng.integers(h) + 0.5}"
    which = str(rng.choice(["", "nearest "]))
    if verb == "remove":
        return f"remove {thing} {which}"
    if verb == "move":
        by = f"by {rng.integers(-3, 4)} {rng.integers(-3, 4)}"
        return f"move {thing} {which}" + str(rng.choice([f"to {place}", by]))
    if verb == "add":
        return f"add {thing} " + str(rng.choice([f"at {place}", f"ahead {rng.integers(1, 5)} up {rng.integers(3)}"]))
    setting = str(rng.choice(["velocity", "agent_theme", "wall_theme", "background"]))
    values = rng.normal(size=2) if setting == "velocity" else rng.integers(12, size=1)
    return f"set {setting} {' '.join(f'{v:g}' for v in values)}"


def edit_at_random(game: str, mode: str, count: int, seed: int) -> None:
    """``count`` random edits that are accepted, 10 steps on from each."""
    rng = np.random.default_rng(seed)
    env = ProcgenEnv(ProcgenOptions(game=game, distribution_mode=mode), SLOTS, threads=1)  # type: ignore[arg-type]
    env.reset(seed)
    done = 0
    while done < count:
        for _ in range(int(rng.integers(30))):
            env.step(rng.integers(15, size=SLOTS))
        after = []
        for snapshot in env.snapshot():
            for _ in range(TRIES):
                state = state_of(snapshot)
                try:
                    snapshot = snapshot_of(parse_edit(random_edit(rng, state), game).apply(state), snapshot)
                except UserError:
                    continue
                done += 1
                break
            after.append(snapshot)
        env.restore(after)
        for _ in range(AFTER):
            env.step(rng.integers(15, size=SLOTS))
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES)
    parser.add_argument("--mode", default="hard")
    parser.add_argument("--edits", type=int, default=640, help="of each game")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    env = ProcgenEnv(ProcgenOptions(), 1, threads=1)
    env.reset(0)  # which loads the pictures, once for all
    env.close()
    crashes = 0
    for game in args.games:
        own = multiprocessing.get_context("fork").Process(
            target=edit_at_random, args=(game, args.mode, args.edits, args.seed)
        )
        own.start()
        own.join()
        crashes += own.exitcode != 0
        print(f"{game} {args.mode}: {args.edits} edits, exit {own.exitcode}", flush=True)
    print(f"{len(args.games) * args.edits:,} edits in {len(args.games)} games, {AFTER} steps each: {crashes} crashes")
    sys.exit(crashes > 0)


if __name__ == "__main__":
    main()
