"""Train the simulator.  See generative/train.py."""

from core.config import run
from generative.train import STAGE, GenTrainConfig, main

if __name__ == "__main__":
    run(GenTrainConfig, main, STAGE, shared=True)
