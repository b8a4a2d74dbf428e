"""Train an agent: ``python train.py`` (Procgen) or ``python train.py nmmo`` (Neural MMO).  See agents/train.py."""

import sys

from agents.train import choose

if __name__ == "__main__":
    choose(sys.argv[1:])
