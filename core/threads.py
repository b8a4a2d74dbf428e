"""How many CPU threads a piece of work uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread inside the block: for batches of small matrices, which several threads only wait for.

    The number of threads is a setting of the whole process; it comes back as it was.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
