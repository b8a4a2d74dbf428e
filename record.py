"""Record real rollouts.  See agents/record.py."""

from agents.record import STAGE, RecordConfig, main
from core.config import run

if __name__ == "__main__":
    run(RecordConfig, main, STAGE, shared=True)
