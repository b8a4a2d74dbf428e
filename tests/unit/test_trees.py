"""States are nested tuples of tensors: every helper keeps structure, rows and dtypes, and refuses anything else."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from core.trees import (
    detached,
    each,
    flatten,
    floats,
    joined,
    leaves,
    on,
    rows_of,
    unflatten,
    unstacked,
    where,
    with_rows,
)  # fmt: skip

B = 4


class Pair(NamedTuple):
    h: Tensor
    rest: tuple[Any, ...]


def a_tree(seed: int = 0, rows: int = B) -> Pair:
    """Several shapes and dtypes: a vector, a map, a number a row, a flag a row, half precision, and nothing."""
    draw = torch.Generator().manual_seed(seed)
    vector, map_, half = (torch.randn(rows, *n, generator=draw) for n in ((3,), (2, 3, 2), (2,)))
    count, flag = (torch.randint(0, top, (rows, *n), generator=draw) for top, n in ((99, ()), (2, (2, 2))))
    return Pair(vector, ((map_, count), (), flag.bool(), half.half()))


def same(a: Any, b: Any) -> bool:
    equal = [x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True)]
    return all(equal) and shape_of(a) == shape_of(b)


def shape_of(tree: Any) -> Any:
    """Its types, nested."""
    return Tensor if isinstance(tree, Tensor) else (type(tree), *map(shape_of, tree))


def test_flatten_and_unflatten_are_inverse() -> None:
    tree = a_tree()
    flat = flatten(tree)
    assert flat.shape == (B, 3 + 12 + 1 + 4 + 2) and flat.dtype == torch.float32
    assert torch.equal(flat[:, :3], tree.h) and torch.equal(flat[:, 15], tree.rest[0][1].float())
    assert same(unflatten(flat, a_tree(1)), tree)
    assert same(unflatten(flat, a_tree(1, rows=1)), tree)  # of how many rows ``like`` is does not matter
    assert same(unflatten(flat, a_tree(1, rows=0)), tree)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (2, 1, 3)])
def test_one_tensor_is_a_tree(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tree = torch.randint(0, 2, (B, *shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    flat = flatten(tree)
    assert flat.ndim == 2 and flat.is_floating_point()
    assert flat.dtype == (dtype if dtype.is_floating_point else torch.float32)
    assert same(unflatten(flat, tree[:1]), tree)
    none = flatten(tree[:0])
    assert none.shape == (0, flat.shape[1]) and same(unflatten(none, tree), tree[:0])


def test_gradients_pass_through_flatten_and_back() -> None:
    x, y = (torch.randn(B, *n, dtype=torch.float64, requires_grad=True) for n in ((3,), (2, 2)))
    assert torch.autograd.gradcheck(lambda x, y: flatten((x, (y,))), (x, y))
    assert torch.autograd.gradcheck(
        lambda f: tuple(leaves(unflatten(f, (x, (y,))))), (flatten((x, (y,))).detach().requires_grad_(),)
    )


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="a state of 22 numbers cannot be made of 21"):
        unflatten(torch.zeros(B, 21), a_tree())


def test_structure_survives_every_helper() -> None:
    tree = a_tree()
    for made in (each(lambda x: x, tree), detached(tree), on(tree, "cpu"), rows_of(tree, slice(None))):
        assert same(made, tree) and isinstance(made, Pair) and type(made.rest) is tuple
    assert [x.shape for x in leaves(tree)] == [(B, 3), (B, 2, 3, 2), (B,), (B, 2, 2), (B, 2)]
    assert list(leaves(())) == [] and each(lambda x: x, ()) == () and joined([(), ()]) == ()


def test_rows_are_picked_joined_and_chosen() -> None:
    a, b = a_tree(0), a_tree(1)
    mask = torch.tensor([True, False, True, True])
    for rows in (slice(1, 3), mask, torch.tensor([2, 2, 0])):
        assert all(torch.equal(x[rows], y) for x, y in zip(leaves(a), leaves(rows_of(a, rows)), strict=True))
    assert same(joined([rows_of(a, slice(0, 1)), rows_of(a, slice(1, None))]), a)
    assert same(rows_of(joined([a, b]), slice(B, None)), b)
    mixed = where(mask, a, b)
    assert same(rows_of(mixed, mask), rows_of(a, mask)) and same(rows_of(mixed, ~mask), rows_of(b, ~mask))


def test_detached_has_no_graph() -> None:
    x = torch.ones(B, 2, requires_grad=True)
    (y, (z,)) = detached((x * 2, (x * 3,)))
    assert not y.requires_grad and not z.requires_grad and (x * 2).requires_grad


@pytest.mark.parametrize("wrong", [[torch.zeros(B)], {"h": torch.zeros(B)}, 1.0, None, "h"])
def test_anything_else_is_no_state(wrong: object) -> None:
    for tree in (wrong, (torch.zeros(B, 1), wrong)):
        for use in (lambda t: list(leaves(t)), flatten, detached, lambda t: rows_of(t, 0), lambda t: on(t, "cpu")):
            with pytest.raises(TypeError, match=f"nested tuples of tensors, not {type(wrong).__name__}"):
                use(tree)


def test_trees_of_other_shapes_do_not_go_together() -> None:
    x = torch.zeros(B, 1)
    for a, b in (((x, x), (x,)), ((x, (x,)), (x, ()))):
        with pytest.raises(ValueError, match="shorter|longer"):
            where(torch.ones(B, dtype=torch.bool), a, b)


def test_rows_are_put_back() -> None:
    tree, other, rows = a_tree(), a_tree(1, rows=2), torch.tensor([3, 0])
    put = with_rows(tree, rows, other)
    assert same(rows_of(put, rows), other) and same(rows_of(put, [1, 2]), rows_of(tree, [1, 2]))
    assert same(tree, a_tree()) and isinstance(put, Pair)


def test_steps_are_taken_apart() -> None:
    steps = [a_tree(seed) for seed in range(3)]
    together = each(lambda *x: torch.stack(x), *steps)
    apart = list(unstacked(together))
    assert len(apart) == 3 and all(same(a, b) for a, b in zip(apart, steps, strict=True))


def test_floats_are_single_and_the_rest_is_as_it_was() -> None:
    tree = a_tree()
    out = floats(tree)
    assert [x.dtype for x in leaves(out)] == [torch.float32, torch.float32, torch.int64, torch.bool, torch.float32]
    assert out.h is tree.h and torch.equal(out.rest[2], tree.rest[2].float())
