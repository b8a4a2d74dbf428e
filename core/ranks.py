"""The processes that do one stage together: the only one, or those that torchrun starts (torch.distributed).

Every process runs the whole of a stage on the same inputs.  What costs time is a row of independent blocks, and
``each`` shares these out: a process computes the blocks whose turn is its own, and all get all results, in order.
The blocks are those of a single process, and what is drawn for them is drawn before or by their names, so that the
results are a single process's to the last bit.  The first process alone writes, prints and draws: the others' run
directories are scratch (core.artefacts), their output goes nowhere (core.config.run).

A training shares its batches out instead (``Processes``).  Without torchrun nothing here does anything.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from core.contracts import UserError
from core.words import counted

X = TypeVar("X")
Items = TypeVar("Items", Tensor, list[Any])
PATIENCE = 1800.0  # seconds that a process waits for another before the run is given up
GRACE = 10.0  # seconds that the others leave the first one to say what all have found wrong
LOST = "another process of this run died or did not answer for half an hour; run the same command again"


FIRST, ENDED = "first", "ended"  # keys of the store: the first process's host and number; set once it ends in order
_heard: dict[str, Any] = {}  # the store, and under FIRST what it says, once this process has connected
_alone: ContextVar[bool] = ContextVar("alone", default=False)  # inside a block, which is this process's own


def count() -> int:
    """How many processes do this together, as torchrun says; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this one among them, from 0."""
    return int(os.environ.get("RANK", "0"))


def first() -> bool:
    """Whether this is the one that writes, prints and draws."""
    return rank() == 0


def place_on_gpu() -> None:
    """Give this process of its machine a GPU of its own, where there are enough."""
    if count() > 1:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


@contextmanager
def _connected() -> Iterator[None]:
    """To speak with the other processes, which are found at the first time: gloo between CPUs, NCCL between GPUs.
    UserError where one is gone."""
    try:
        if not torch.distributed.is_initialized():
            # Its functions take the group of all processes as a default when they are imported (torch._dynamo, and so
            # every optimiser, imports them).  A group that is held has threads that outlive it, and one of them that
            # waits for the interpreter as that ends aborts the process: so they are imported before there is a group.
            from torch.distributed.nn import functional  # noqa: F401

            backend, wait = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timedelta(seconds=PATIENCE)
            # torchrun's store outlives a restart, and with it the addresses of those who died.
            found, _, _ = next(torch.distributed.rendezvous("env://", rank(), count(), timeout=wait))
            store = torch.distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), found)
            torch.distributed.init_process_group(backend, store=store, rank=rank(), world_size=count(), timeout=wait)
            atexit.register(torch.distributed.destroy_process_group)
            if first():
                store.set(FIRST, f"{socket.gethostname()} {os.getpid()}")
            _heard.update(store=store, first=store.get(FIRST).decode().split())
        yield
    except RuntimeError as error:  # torch's own, also of gloo and NCCL
        raise UserError(LOST) from error


# Independent blocks


def each(items: Sequence[X], do: Callable[[X], Any], said: str = "") -> Iterator[Any]:
    """``do(item)`` of every item, in order, each computed by one of the processes and given to all.

    Results are numbers, text, None, bytes, arrays and tensors, in dicts, lists and tuples (a NamedTuple comes back as a
    tuple, a GPU's tensor on this process's GPU).  A UserError of ``do`` is raised by all processes, at the item where a
    single one would have raised it.  What ``do`` shares out itself it does alone.  said: how the blocks are made
    smaller, for a note where there are fewer of them than processes.
    """
    size, me = count(), rank()
    if size == 1 or _alone.get():
        yield from map(do, items)
        return
    if said and len(items) < size and first():
        blocks = counted(len(items), "block")
        print(f"note: {blocks} of work for {size} processes: the others wait; {said}", file=sys.stderr)
    for start in range(0, len(items), size):
        mine: Any = None
        if start + me < len(items):
            before = _alone.set(True)
            try:
                mine = {"done": do(items[start + me])}
            except UserError as error:
                mine = {"error": str(error)}
            finally:
                _alone.reset(before)
        for source in range(min(size, len(items) - start)):
            got = _from(source, mine)
            if "error" in got:
                raise UserError(got["error"])
            yield got["done"]


def _from(source: int, value: Any) -> Any:
    """What process ``source`` has; its own copy there."""
    data = _packed(value) if rank() == source else None
    length = torch.tensor([0 if data is None else len(data)])
    with _connected():
        torch.distributed.broadcast(length, source)
        data = torch.empty(int(length), dtype=torch.uint8) if data is None else data
        torch.distributed.broadcast(data, source)
    return value if rank() == source else _unpacked(data)


def _bytes_of(x: Tensor) -> Tensor:
    """A tensor of any dtype as uint8 [bytes], in its own memory where that lies in order."""
    flat = x.detach().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # a single number may lie at any stride


def _packed(value: Any) -> Tensor:
    """A value as uint8 [bytes]: the length of a JSON text, that text, which says how the value is built, and the arrays
    one after the other."""
    arrays: list[Any] = []  # uint8 arrays and bytes

    def keep(x: np.ndarray) -> int:
        arrays.append(np.ascontiguousarray(x).reshape(-1).view(np.uint8))
        return len(arrays[-1])

    def of(x: Any) -> Any:
        if isinstance(x, (np.ndarray, np.generic)):
            number = isinstance(x, np.generic)
            return {"array": x.dtype.str, "shape": list(x.shape), "size": keep(np.asarray(x)), "number": number}
        if x is None or isinstance(x, (bool, int, float, str)):
            return x
        if isinstance(x, dict):
            return {"dict": [[of(k), of(v)] for k, v in x.items()]}
        if isinstance(x, (list, tuple)):
            return {"list" if isinstance(x, list) else "tuple": [of(v) for v in x]}
        if isinstance(x, bytes):
            arrays.append(x)
            return {"bytes": len(x)}
        if isinstance(x, Tensor):
            size = keep(_bytes_of(x.cpu()).numpy())
            return {
                "tensor": str(x.dtype).removeprefix("torch."),
                "shape": list(x.shape),
                "size": size,
                "gpu": x.is_cuda,
            }
        raise TypeError(f"a {type(x).__name__} cannot be given to other processes")

    built = json.dumps(of(value)).encode()
    return torch.frombuffer(bytearray().join([len(built).to_bytes(8, "little"), built, *arrays]), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    """What ``_packed`` packed."""
    at = 0

    def take(size: int) -> Tensor:
        nonlocal at
        at += size
        return data[at - size : at].clone()

    def of(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        if "dict" in x:
            return {of(k): of(v) for k, v in x["dict"]}
        if "list" in x:
            return [of(v) for v in x["list"]]
        if "tuple" in x:
            return tuple(of(v) for v in x["tuple"])
        if "bytes" in x:
            return take(x["bytes"]).numpy().tobytes()
        if "tensor" in x:
            flat = take(x["size"]).view(getattr(torch, x["tensor"]))
            return flat.reshape(x["shape"]).to("cuda" if x["gpu"] else "cpu")
        array = take(x["size"]).numpy().view(np.dtype(x["array"])).reshape(x["shape"])
        return array[()] if x["number"] else array

    built = take(int.from_bytes(take(8).numpy().tobytes(), "little"))
    return of(json.loads(built.numpy().tobytes()))


# What only the first one does


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for what a process writes that is not the first; it goes when the block ends."""
    with tempfile.TemporaryDirectory(prefix="dreamlens-") as folder:
        yield Path(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Output goes nowhere inside the block, but the first process's."""
    with ExitStack() as stack:
        if not first():
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


def speaks() -> bool:
    """Whether this process says how the run ends: the first one, or the second where that was killed."""
    return first() or (rank() == 1 and _first_was_killed())


def ends() -> None:
    """To be called before this process ends, whatever it has said; one that is killed does not come to it."""
    if first() and _heard:
        with suppress(RuntimeError):  # the store is gone: so are those who would ask
            _heard["store"].set(ENDED, "1")


def _first_was_killed() -> bool:
    """Whether the first process is gone from this machine without a word, as far as it was heard of."""
    if not _heard or _heard[FIRST][0] != socket.gethostname():
        return False
    try:
        os.readlink(f"/proc/{_heard[FIRST][1]}/exe")  # of one that ended and was not yet taken note of there is none
        gone = False
    except OSError:
        gone = Path("/proc/self").exists()
    try:
        return gone and not _heard["store"].check([ENDED])
    except RuntimeError:  # the store went with it
        return False


def let_the_first_speak() -> str:
    """To be called before an error is printed: '' in the process that ``speaks``.  The others wait, and are ended by
    torchrun where the first one ends with the same error; else they say which they are."""
    if speaks():
        return ""
    time.sleep(GRACE)
    return f"process {rank()} of {count()}: "


# Trainings


@dataclass(frozen=True)
class Processes:
    """The processes that train one model together, each on its part of every batch: one, or torchrun's."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    @property
    def here(self) -> int:
        """How many of them are on this machine, as torchrun says."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.count))

    def threads_of(self, machine: int) -> int:
        """This process's, of so many CPU threads of its machine."""
        return max(1, machine // self.here)

    def part(self, batch: int) -> slice:
        """The rows of a batch that are this process's; ``count`` divides ``batch``."""
        rows = batch // self.count
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def share(self, items: Items) -> Items:
        """This process's of a minibatch: every ``count``-th, so that the first few of it are shared out, too."""
        return items[self.rank :: self.count]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            with _connected():
                torch.distributed.barrier()

    def joined(self, x: Tensor, dim: int = 0) -> Tensor:
        """The processes' tensors, all of one shape, one after the other along ``dim``."""
        if self.count == 1:
            return x
        own = x.movedim(dim, 0).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.count)]
        with _connected():
            torch.distributed.all_gather([_bytes_of(p) for p in parts], _bytes_of(own))
        return torch.cat(parts).movedim(0, dim)

    def columns(self, *own: np.ndarray) -> list[np.ndarray]:
        """Arrays [rows of this process], as those of the rows of all."""
        if self.count == 1:
            return list(own)
        rows = np.rec.fromarrays(own)
        packed = torch.frombuffer(bytearray(rows.tobytes()), dtype=torch.uint8).view(len(rows), -1)
        whole = np.frombuffer(self.joined(packed).numpy().tobytes(), rows.dtype)
        return [np.ascontiguousarray(whole[name]) for name in whole.dtype.names or ()]

    def whole(self, x_N: Tensor) -> Tensor:
        """The rows of all processes, for a loss that each takes of all of them and whose gradients are averaged: a
        gradient flows back into the own rows alone, ``count``-fold."""
        out: Tensor = x_N if self.count == 1 else _Whole.apply(x_N, self)  # type: ignore[no-untyped-call]
        return out

    def listed(self, value: Any) -> list[Any]:
        """What every process has (of what ``each`` can give), in order."""
        return [value] if self.count == 1 else [_from(source, value) for source in range(self.count)]

    def folder(self, path: Path) -> Path:
        """Where all can write: the first one's of the run directories that they have open."""
        return Path(self.listed(str(path))[0])

    def gathered(self, value: Any, to: int) -> list[Any]:
        """In process ``to`` what every process has (of what ``each`` can give), in order; [] in the others."""
        if self.rank != to:
            data = _packed(value)
            with _connected():
                torch.distributed.send(torch.tensor([len(data)]), to)
                torch.distributed.send(data, to)
            return []
        out, length = [], torch.zeros(1, dtype=torch.int64)
        for source in range(self.count):
            if source == to:
                out.append(value)
                continue
            with _connected():
                torch.distributed.recv(length, source)
                data = torch.empty(int(length), dtype=torch.uint8)
                torch.distributed.recv(data, source)
            out.append(_unpacked(data))
        return out

    def largest(self, value: int, device: torch.device | str) -> int:
        """The largest of the processes' values."""
        if self.count == 1:
            return value
        all_of_them = torch.tensor(int(value), device=device)
        with _connected():
            torch.distributed.all_reduce(all_of_them, torch.distributed.ReduceOp.MAX)
        return int(all_of_them)

    def average(self, parameters: Sequence[nn.Parameter], values: Tensor) -> Tensor:
        """Average the gradients over the processes, in place, and ``values`` (1-D), which come back.  Where a process
        has none for a parameter it counts as 0, where none has one it stays None."""
        if self.count == 1:
            return values
        has = values.new_tensor([p.grad is not None for p in parameters])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([*(g.flatten() for g in grads), values, has])
        with _connected():
            torch.distributed.all_reduce(flat)
        *parts, mean, some = (flat / self.count).split([*(g.numel() for g in grads), len(values), len(has)])
        for p, grad, part, there in zip(parameters, grads, parts, some.tolist(), strict=True):
            if there:  # in the layout that it had: optimisers may go through memory as it lies
                p.grad = grad.copy_(part.view_as(grad))
        return mean


class _Whole(torch.autograd.Function):
    """``Processes.whole``."""

    @staticmethod
    def forward(ctx: Any, x_N: Tensor, processes: Processes) -> Tensor:  # type: ignore[override]
        ctx.processes = processes
        return processes.joined(x_N)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        processes: Processes = ctx.processes
        return grad[processes.part(len(grad))] * processes.count, None


ALONE = Processes()


def processes() -> Processes:
    """What torchrun says of this process, or the only one."""
    return Processes(rank(), count())


def from_torchrun(batch: int, flag: str = "--batch") -> Processes:
    """``processes``; UserError if ``batch`` cannot be shared equally."""
    if batch % count():
        raise UserError(f"{flag} {batch} cannot be shared equally by {count()} processes; choose a multiple")
    return processes()
