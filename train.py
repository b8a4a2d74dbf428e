"""Train an agent.  See agents/train.py."""

from agents.train import STAGE, TrainConfig, main
from core.config import run

if __name__ == "__main__":
    run(TrainConfig, main, STAGE)
