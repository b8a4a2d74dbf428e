"""The analyses beside their naive ways: ``python benchmarks/analysis.py``.

One part after the other, each in a process of its own: saliency, jacobian, states.
What the numbers were here: docs/performance.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("saliency", "jacobian", "states")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="only this one")
    only = parser.parse_args().part
    for part in (only,) if only else PARTS:
        print(f"\n== {part}", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"analysis_{part}.py"))], check=True)


if __name__ == "__main__":
    main()
