"""Run by its path: stages in forks of this process, which has imported them but run nothing (a process that has
computed gradients cannot fork).  A line of JSON in, ``{module, argv, place, kill_at, largest}``; a line out.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def overwrite(out: str, size: str) -> None:
    """A stage of three files."""
    from core.artefacts import new_run, write_atomically

    with new_run(Path(out), "test", {"size": size}, overwrite=True) as run:
        for i in range(3):
            write_atomically(run.path / f"{i}.bin", bytes([i]) * int(size))


def child(module: str, argv: list[str], place: str, kill_at: int, largest: int) -> None:
    """A stage as its script runs it; killed before the ``kill_at``-th file operation below ``place``; where ``largest``
    is not 0 the kernel writes no file beyond so many bytes, as on a full disk."""
    from core import config as cli
    from core.stages import STAGES

    count = 0

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event.partition(".")[0] in ("open", "os", "shutil") and any(place in str(arg) for arg in args[:2]):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    code = 0
    try:
        if largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        if module == "overwrite":
            overwrite(*argv)
        elif module in STAGES:
            of = STAGES[module]
            sys.argv = [f"{module}.py", *argv]
            cli.run(of.cls, of.door.main, module, argv)
        else:
            found = importlib.import_module(module)
            sys.argv = [f"{module}.py", *argv]
            name = next(n for n, v in vars(found).items() if n.endswith("Config") and v.__module__ == module)
            cli.run(vars(found)[name], found.main, found.STAGE, argv)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    print(f"\noperations {count}", flush=True)
    os._exit(code)


def main() -> None:
    # What stages import on their way, so that it is imported once.
    import h5py  # noqa: F401
    import procgen  # type: ignore[import-untyped]  # noqa: F401
    import torch
    import tyro  # noqa: F401
    from torch.utils.tensorboard import SummaryWriter  # noqa: F401

    import agents.record  # noqa: F401
    import agents.train  # noqa: F401
    import generative.record_samples  # noqa: F401

    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    torch.set_num_threads(1)

    for line in sys.stdin:
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            for standard in (1, 2):
                os.dup2(writer, standard)
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            os.close(reader)
            os.close(writer)
            child(**json.loads(line))
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said, _, operations = pipe.read().partition("\noperations ")
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(json.dumps({"code": code, "said": said, "operations": int(operations or 0)}), flush=True)


if __name__ == "__main__":
    main()
