"""A video of every code: runs of steps at which the agent was in it.

What there is bounds it: a code that no state has is said to be dead, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.semantics.states import States
from analysis.shared.units import stretches
from core import config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from core.figures import fitted, font_of
from core.video import write_video
from envs.procgen_returns import returns_of

SIDE = 256  # pixels
RETURN_SHARE, RETURN_STEPS = 0.8, 200  # what --select_returns asks of an episode


@dataclass(frozen=True, kw_only=True)
class FilmOptions:
    """The videos."""

    run_least: int = 5
    """steps in a code that are shown at least, one after the other"""
    run_most: int = 20
    """and at most"""
    video_frames: int = 480
    """frames of a video at most"""
    fps: int = 8
    """frames a second"""
    select_returns: bool = False
    """only episodes above 80 % of the game's highest return and of at most 200 steps, as published: they show what a
    code is where all goes well"""

    def check(self) -> None:
        """UserError for settings that mean nothing."""
        cli.require(1, run_least=self.run_least, video_frames=self.video_frames, fps=self.fps)
        if self.run_most < self.run_least:
            raise UserError(f"--run_most {self.run_most} is less than --run_least {self.run_least}")


def write_films(
    store: RolloutStore, states: States, names: Mapping[int, str], path: Path, options: FilmOptions,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """``code_C.mp4`` of every code that has runs long enough, of runs drawn at random; a row a code, with why it has
    none.  UserError where the observations are no pictures."""
    field = store.spec.picture
    if field is None:
        raise UserError(f"{store.path}: videos need an observation that is a picture")
    chosen = np.ones(len(store), bool)
    if options.select_returns:
        game = store.spec.env_id.partition("/")[2]
        _, highest = returns_of(game, str(store.spec.options.get("distribution_mode", "easy")))
        score_E = np.array([store.pooled("reward", episodes=[e])[0]["reward"].sum() for e in range(len(store))])
        whole_E = np.array([store.whole(e) for e in range(len(store))])  # of others it is not known
        chosen = whole_E & (score_E > RETURN_SHARE * highest) & (np.asarray(store.steps) <= RETURN_STEPS)
    runs_R2 = np.stack(stretches(states.code_N, states.index_N2[:, 0]), 1)
    long_R = (runs_R2[:, 1] >= options.run_least) & chosen[states.index_N2[runs_R2[:, 0], 0]]
    rows: list[dict[str, Any]] = []
    for c in range(states.codes):
        of_code = states.code_N[runs_R2[:, 0]] == c
        mine = rng.permutation(runs_R2[of_code & long_R])
        why = "" if len(mine) else "no run is long enough" if of_code.any() else "dead: no state has it"
        if of_code.any() and not len(mine) and options.select_returns:
            why = "no run of an episode of such a return is long enough"
        frames: list[np.ndarray] = []
        shown = 0
        for first, length in mine.tolist():
            if len(frames) >= options.video_frames:
                break
            episode, t = states.index_N2[first]
            take = min(length, options.run_most, options.video_frames - len(frames))
            window = store.read_windows([f"obs/{field}"], np.array([[episode, t]]), take)
            frames += [_captioned(x, names[c], int(t) + i) for i, x in enumerate(window[f"obs/{field}"][0])]
            shown += 1
        if frames:
            write_video(path / f"code_{c}.mp4", frames, options.fps)
        rows.append(
            {"code": c, "frames": len(frames), "runs": shown, "runs_there": int(of_code.sum()), "why_none": why}
        )
    return rows


def _captioned(frame: np.ndarray, name: str, step: int) -> np.ndarray:
    """A frame enlarged, in its shape, with its code and step in a corner; a name that leaves no room for it is cut."""
    from PIL import ImageDraw

    image, font = fitted(frame, SIDE), font_of(11)
    pen = ImageDraw.Draw(image)
    text, room = f"{name}  {step}", SIDE - 8
    for end in range(len(name) - 1, 0, -1):
        if pen.textlength(text, font) <= room:
            break
        text = f"{name[:end].rstrip()}…  {step}"
    pen.rectangle((0, 0, SIDE, 17), fill="white")
    pen.text((4, 2), text, fill="black", font=font)
    return np.asarray(image)
