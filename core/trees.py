"""Nested tuples of tensors, batch first: what an agent's state, what it has seen and a world's state are.

A tree is a tensor [B, ...] or a tuple (NamedTuples too) of trees of the same B rows; the empty tuple is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # Tensor | tuple[Tree, ...]


def each(change: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """The tree of ``change`` of the tensors in the same place of every tree; TypeError for anything but tuples and
    tensors."""
    if isinstance(tree, Tensor):
        return change(tree, *others)
    if not isinstance(tree, tuple):
        raise TypeError(f"a state is nested tuples of tensors, not {type(tree).__name__}")
    parts = [each(change, *parts) for parts in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(tree, Tensor):
        yield tree
        return
    if not isinstance(tree, tuple):
        raise TypeError(f"a state is nested tuples of tensors, not {type(tree).__name__}")
    for part in tree:
        yield from leaves(part)


def alike(tree: Tree, like: Tree) -> Tree:
    """The tree with the NamedTuples of another one, in the places of its tuples (another process gives plain ones)."""
    return each(lambda _, x: x, like, tree)


def rows_of(tree: Tree, rows: Any) -> Tree:
    """Some rows, of every tensor: a slice, bool [B] or int64 [R] (or any other index of a tensor)."""
    return each(lambda x: x[rows], tree)


def with_rows(tree: Tree, rows: Tensor, part: Tree) -> Tree:
    """Another tree, in which the rows ``rows`` (int64 [R]) are those of ``part``."""
    return each(lambda whole, some: whole.index_copy(0, rows, some), tree, part)


def unstacked(tree: Tree) -> Iterator[Tree]:
    """The T trees [B, ...] of one [T, B, ...]."""
    unbound = [x.unbind(0) for x in leaves(tree)]
    for row in zip(*unbound, strict=True):
        parts = iter(row)
        yield each(lambda _, parts=parts: next(parts), tree)  # type: ignore[misc]


def floats(tree: Tree) -> Tree:
    """Its floating-point numbers as float32, all others as they are."""
    return each(lambda x: x.float() if x.is_floating_point() else x, tree)


def detached(tree: Tree) -> Tree:
    """Without its graph."""
    return each(lambda x: x.detach(), tree)


def on(tree: Tree, device: torch.device | str) -> Tree:
    """On a device."""
    return each(lambda x: x.to(device), tree)


def joined(trees: Sequence[Tree]) -> Tree:
    """The rows of all, one below the other."""
    return each(lambda *x: torch.cat(x), *trees)


def where(mask_B: Tensor, yes: Tree, no: Tree) -> Tree:
    """Row by row, of two trees of one shape."""
    return each(lambda a, b: torch.where(mask_B.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)


def flatten(tree: Tree) -> Tensor:
    """All of it as one float tensor [B, N], tensor after tensor, for a recorder.  Whole numbers keep what a float of
    that width can hold."""
    # Of shape, not len(), which would fix the number of rows where an agent's step is traced.
    parts = [x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in leaves(tree)]
    flat = torch.cat(parts, 1)
    return flat if flat.is_floating_point() else flat.float()


def unflatten(flat_BN: Tensor, like: Tree) -> Tree:
    """The tree shaped like ``like`` (whose own rows do not matter), of its dtypes, that ``flatten`` makes ``flat`` of;
    ValueError if the widths differ."""
    widths = [math.prod(x.shape[1:]) for x in leaves(like)]
    if flat_BN.shape[1] != sum(widths):
        raise ValueError(f"a state of {sum(widths)} numbers cannot be made of {flat_BN.shape[1]}")
    parts = iter(flat_BN.split(widths, 1))
    return each(lambda x: next(parts).reshape(flat_BN.shape[0], *x.shape[1:]).to(x.dtype), like)
