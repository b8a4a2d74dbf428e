"""Doors of stages one after the other in this process, for tests: ``torchrun ... tests/under_torchrun.py FILE.json``,
a list of commands as they would follow ``python``."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

if __name__ == "__main__":
    for command in json.loads(Path(sys.argv[1]).read_text()):
        by_module = command[0] == "-m"
        door, sys.argv[1:] = command[by_module], command[by_module + 1 :]
        run = runpy.run_module if by_module else runpy.run_path
        run(door, run_name="__main__", **({"alter_sys": True} if by_module else {}))
