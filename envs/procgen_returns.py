"""The lowest and highest return of Procgen's games, with which returns are normalised (Cobbe et al. 2020,
arXiv:1912.01588, appendix C): what a policy that sees nothing gets, and the most there is or a long training got."""

from __future__ import annotations

from core.config import nearest
from core.contracts import UserError

RETURNS: dict[str, dict[str, tuple[float, float]]] = {  # mode -> game -> (lowest, highest)
    "easy": {
        "coinrun": (5, 10), "starpilot": (2.5, 64), "caveflyer": (3.5, 12), "dodgeball": (1.5, 19),
        "fruitbot": (-1.5, 32.4), "chaser": (0.5, 13), "miner": (1.5, 13), "jumper": (1, 10), "leaper": (1.5, 10),
        "maze": (5, 10), "bigfish": (1, 40), "heist": (3.5, 10), "climber": (2, 12.6), "plunder": (4.5, 30),
        "ninja": (3.5, 10), "bossfight": (0.5, 13),
    },
    "hard": {
        "coinrun": (5, 10), "starpilot": (1.5, 35), "caveflyer": (2, 13.4), "dodgeball": (1.5, 19),
        "fruitbot": (-0.5, 27.2), "chaser": (0.5, 14.2), "miner": (1.5, 20), "jumper": (1, 10), "leaper": (1.5, 10),
        "maze": (4, 10), "bigfish": (0, 40), "heist": (2, 10), "climber": (1, 12.6), "plunder": (3, 30),
        "ninja": (2, 10), "bossfight": (0.5, 13),
    },
}  # fmt: skip


def returns_of(game: str, mode: str) -> tuple[float, float]:
    """(lowest, highest) return of a game; UserError where there is no table of it."""
    if mode not in RETURNS:
        raise UserError(f"no range of returns is known for the mode {mode!r}; there are: {', '.join(RETURNS)}")
    if game not in RETURNS[mode]:
        raise UserError(f"no range of returns is known for {game!r}{nearest(game, RETURNS[mode])}")
    return RETURNS[mode][game]
