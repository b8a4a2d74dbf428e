"""By the name of an earlier system: says what is typed here (docs/coming-from.md)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from core.earlier import say

if __name__ == "__main__":
    say(__file__)
