"""Interventions: algebra, purity, gradients, and every refusal of ``build``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from core.artefacts import new_run
from core.conditions import Condition, Where
from core.contracts import Intervention, UserError
from core.directions import Basis
from core.interventions import (
    AddVector,
    AtSteps,
    InterventionOptions,
    Nullspace,
    Resample,
    Shift,
    Swap,
    Tally,
    When,
    build,
    parse_ids,
)
from core.roll import apply_interventions

B, H, K = 5, 6, 4
ALL = torch.ones(B, dtype=torch.bool)
T0 = torch.zeros(B, dtype=torch.int64)


def oblique(k: int = K) -> Basis:
    generator = torch.Generator().manual_seed(0)
    mean, project = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((H,), (H, k)))
    std = 0.5 + torch.rand(H, generator=generator, dtype=torch.float64)
    return Basis("oblique", mean, std, project, torch.linalg.pinv(project), agent="abc")


def states(seed: int = 1) -> Tensor:
    return torch.randn(B, H, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BASIS = oblique()
TABLE: dict[str, Callable[[], Intervention]] = {
    "swap": lambda: Swap(BASIS, ((0, 2), (3, 1))),
    "nullspace": lambda: Nullspace(BASIS, (1, 3)),
    "shift": lambda: Shift(BASIS, (0, 3), (1.5, -2.0)),
    "add_vector": lambda: AddVector(states(2)[0]),
    "add_rows": lambda: AddVector(states(2)),
    "resample": lambda: Resample(BASIS, (0, 2), states(3)),
    "at_steps": lambda: AtSteps(Swap(BASIS, ((0, 1),)), 0, 2),
}
every = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE.keys())


@every
def test_masked_rows_come_back_bit_for_bit(make: Callable[[], Intervention]) -> None:
    h, mask = states(), torch.tensor([True, False, True, False, False])
    out = make()(h, T0, mask)
    assert torch.equal(out[~mask], h[~mask])
    assert (out[mask] - h[mask]).abs().max() > 1e-3
    torch.testing.assert_close(out[mask], make()(h, T0, ALL)[mask])
    assert torch.equal(make()(h, T0, torch.zeros(B, dtype=torch.bool)), h)


@every
def test_nothing_is_mutated(make: Callable[[], Intervention]) -> None:
    intervene, h, mask = make(), states(), ALL.clone()
    kept, fields = h.clone(), [t.clone() for t in tensors_of(intervene)]
    intervene(h, T0, mask)
    assert torch.equal(h, kept) and mask.all()
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(intervene), fields, strict=True))


def tensors_of(x: object) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    return [t for v in vars(x).values() for t in tensors_of(v)] if dataclasses.is_dataclass(x) else []


@every
def test_gradcheck(make: Callable[[], Intervention]) -> None:
    intervene, h = make(), states().requires_grad_()
    mask = torch.tensor([True, True, False, True, True])
    assert torch.autograd.gradcheck(lambda x: intervene(x, T0 + 1, mask), (h,))


@every
def test_vmap_is_the_loop(make: Callable[[], Intervention]) -> None:
    intervene, many = make(), torch.stack([states(i) for i in range(3)])
    mapped = torch.func.vmap(lambda h: intervene(h, T0, ALL))(many)
    torch.testing.assert_close(mapped, torch.stack([intervene(h, T0, ALL) for h in many]))


def test_swap_exchanges_and_is_an_involution() -> None:
    swap, h = Swap(BASIS, ((0, 2), (3, 1))), states()
    once = swap(h, T0, ALL)
    torch.testing.assert_close(BASIS.project(once), BASIS.project(h)[:, [2, 3, 0, 1]])
    torch.testing.assert_close(swap(once, T0, ALL), h)


def test_collapse_is_idempotent_and_takes_away_just_that() -> None:
    collapse, h = Nullspace(BASIS, (1, 3)), states()
    once = collapse(h, T0, ALL)
    apart = torch.linalg.svd(BASIS.lift_KH).Vh[BASIS.size :] / BASIS.std_H  # what no direction touches
    torch.testing.assert_close(
        (once - h) @ apart.T, torch.zeros(B, len(apart), dtype=torch.float64), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(collapse(once, T0, ALL), once, rtol=0, atol=1e-13)
    c = BASIS.project(once)
    torch.testing.assert_close(c[:, [1, 3]], torch.zeros(B, 2, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(c[:, [0, 2]], BASIS.project(h)[:, [0, 2]])


def test_swap_and_collapse_undo_and_repeat_in_float32_with_fewer_directions_than_neurons() -> None:
    """The shape of a fitted ICA basis: 16 directions of 64 neurons, states of float32."""
    generator = torch.Generator().manual_seed(0)
    project = torch.randn(64, 16, generator=generator) / 8  # coordinates of variance 1, as fitted ones have
    std, mean = 0.5 + torch.rand(64, generator=generator), torch.randn(64, generator=generator)
    basis = Basis("ica", mean, std, project, torch.linalg.pinv(project))
    h, mask = torch.randn(32, 64, generator=generator), torch.ones(32, dtype=torch.bool)
    swap, collapse = Swap(basis, ((10, 12), (3, 4))), Nullspace(basis, (5, 7))
    t = torch.zeros(32, dtype=torch.int64)
    swap_twice = swap(swap(h, t, mask), t, mask)
    assert (swap_twice - h).abs().max() < 1e-5 < (swap(h, t, mask) - h).abs().max()
    once = collapse(h, t, mask)
    assert (collapse(once, t, mask) - once).abs().max() < 1e-5 < (once - h).abs().max()
    inside = basis.lift(basis.project(h))  # what the basis holds of h
    assert (swap(swap(inside, t, mask), t, mask) - inside).abs().max() < 1e-5
    assert basis.project(once)[:, [5, 7]].abs().max() < 1e-5


def test_shift_moves_by_the_amount_and_zero_changes_no_bit() -> None:
    h = states()
    moved = BASIS.project(Shift(BASIS, (2,), (0.7,))(h, T0, ALL)) - BASIS.project(h)
    want = torch.tensor([0, 0, 0.7, 0], dtype=torch.float64).expand(B, -1)
    torch.testing.assert_close(moved, want, rtol=0, atol=1e-12)
    for value in (h, h.float()):
        basis = BASIS.to(dtype=value.dtype)
        assert torch.equal(Shift(basis, (0, 1), (0.0, 0.0))(value, T0, ALL), value)


def test_resample_takes_the_donors_coordinates() -> None:
    h, donors = states(), states(3)
    c = BASIS.project(Resample(BASIS, (0, 2), donors)(h, T0, ALL))
    torch.testing.assert_close(c[:, [0, 2]], BASIS.project(donors)[:, [0, 2]])
    torch.testing.assert_close(c[:, [1, 3]], BASIS.project(h)[:, [1, 3]])


@pytest.mark.parametrize("name", ["swap", "nullspace", "shift", "resample"])
def test_the_orthogonal_complement_stays(name: str) -> None:
    h = states()
    rest = torch.linalg.svd(BASIS.lift_KH).Vh[K:] / BASIS.std_H
    moved = (TABLE[name]()(h, T0, ALL) - h) @ rest.T
    torch.testing.assert_close(moved, torch.zeros_like(moved), rtol=0, atol=1e-12)


def test_at_steps() -> None:
    h, inner = states(), AddVector(torch.ones(H, dtype=torch.float64))
    changed = [bool((AtSteps(inner, 2, 4)(h, T0 + t, ALL) != h).any()) for t in range(6)]
    assert changed == [False, False, True, True, False, False]
    assert [bool((AtSteps(inner, 2)(h, T0 + t, ALL) != h).any()) for t in range(4)] == [False, False, True, True]
    # Each row has its own clock, and its own mask.
    t, mask = torch.tensor([1, 2, 3, 4, 2]), torch.tensor([True, True, True, True, False])
    for stop, rows in ((4, [False, True, True, False, False]), (None, [False, True, True, True, False])):
        out = AtSteps(inner, 2, stop)(h, t, mask)
        assert (out != h).any(-1).tolist() == rows and torch.equal(out[rows], h[rows] + 1)


def test_when_and_tally_go_by_each_row_s_clock() -> None:
    """Only where the rule finds the behaviour, at the steps that are named; what was altered is kept call by call."""

    def rule(h_NH: Tensor) -> Tensor:
        return (h_NH[:, 0] > 0).long()

    h, t = states(), torch.tensor([0, 1, 2, 3, 4])
    inner = AddVector(torch.ones(H, dtype=torch.float64))
    tally = Tally((When((AtSteps(inner, 1, 4),), Where((Condition(behaviour=1),), rule=rule)),))  # type: ignore[arg-type]
    out = tally(h, t, ALL)
    want = (h[:, 0] > 0) & (t >= 1) & (t < 4)
    assert want.any() and torch.equal((out != h).any(-1), want)
    tally(h, T0, ALL)
    assert torch.equal(tally.altered[0], want) and not tally.altered[1].any()


def test_a_tuple_composes_in_order_and_an_empty_one_is_the_identity() -> None:
    h, a, b = states(), Shift(BASIS, (0,), (1.0,)), Swap(BASIS, ((0, 1),))
    assert apply_interventions((), h, T0) is h
    assert torch.equal(apply_interventions((a, b), h, T0), b(a(h, T0, ALL), T0, ALL))
    assert (apply_interventions((a, b), h, T0) - apply_interventions((b, a), h, T0)).abs().max() > 0.1


# build


def options(**fields: object) -> InterventionOptions:
    words = {k: tuple(v.split()) if isinstance(v, str) and k != "basis_kind" else v for k, v in fields.items()}
    return InterventionOptions(**words)  # type: ignore[arg-type]


def test_build_makes_what_the_words_say() -> None:
    got = build(options(swap_directions_from="1 0", swap_directions_to="2 None", shift="3=-1.5 2=0.5"), "abc", BASIS)
    assert got == (Swap(BASIS, ((1, 2),)), Nullspace(BASIS, (0,)), Shift(BASIS, (3, 2), (-1.5, 0.5)))
    assert build(options(), None) == ()
    named = options(swap_directions_from="oblique:1 2", swap_directions_to="oblique_0 None", shift="oblique:3=-2")
    numbers = options(swap_directions_from="1 2", swap_directions_to="0 None", shift="3=-2")
    assert build(named, "abc", BASIS) == build(numbers, "abc", BASIS)
    with pytest.raises(UserError, match="of another basis than oblique"):
        build(options(shift="ica:0=1"), "abc", BASIS)
    timed = build(options(shift="0=1", at_steps="3 5"), "abc", BASIS)
    assert timed == (AtSteps(Shift(BASIS, (0,), (1.0,)), 3, 5),)
    assert build(options(shift="0=1", at_steps="3"), "abc", BASIS) == (AtSteps(Shift(BASIS, (0,), (1.0,)), 3, None),)


def test_build_loads_the_basis_of_the_agent(tmp_path: Path) -> None:
    with new_run(tmp_path / "hs", "hidden_states", {}) as run:
        BASIS.save(run.path)
    (shift,) = build(options(shift="0=1", basis=tmp_path / "hs", basis_kind="oblique"), "abc")
    assert isinstance(shift, Shift) and torch.equal(shift.basis.lift_KH, BASIS.lift_KH)
    with pytest.raises(UserError, match="fitted on agent abc, not on other"):
        build(options(shift="0=1", basis=tmp_path / "hs", basis_kind="oblique"), "other")
    with pytest.raises(UserError, match="no 'ica' basis"):
        build(options(shift="0=1", basis=tmp_path / "hs"), "abc")
    with new_run(tmp_path / "rollouts", "record", {}):
        pass
    with pytest.raises(UserError, match="holds no directions, .*'record' wrote it.*analysis.hidden_states fits some"):
        build(options(shift="0=1", basis=tmp_path / "rollouts"), "abc")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"swap_directions_from": "1 2", "swap_directions_to": "3"}, "from has 2 ids, --swap_directions_to has 1"),
        ({"swap_directions_to": "3"}, "from has 0 ids"),
        ({"swap_directions_from": "1", "swap_directions_to": "4"}, "direction oblique:4 does not exist"),
        ({"swap_directions_from": "-1", "swap_directions_to": "0"}, "direction oblique:-1 does not exist"),
        ({"swap_directions_from": "x", "swap_directions_to": "0"}, "--swap_directions_from: 'x' is no direction"),
        ({"swap_directions_from": "1", "swap_directions_to": "none"}, "--swap_directions_to: 'none' is no direction"),
        ({"swap_directions_from": "1 1", "swap_directions_to": "2 None"}, "direction oblique:1 is named twice"),
        ({"swap_directions_from": "1", "swap_directions_to": "1"}, "direction oblique:1 is named twice"),
        ({"shift": "2"}, "--shift '2': expected DIRECTION=AMOUNT"),
        ({"shift": "2=far"}, "--shift '2=far': expected DIRECTION=AMOUNT"),
        ({"shift": "2=nan"}, "--shift '2=nan': expected DIRECTION=AMOUNT"),
        ({"shift": "2=inf"}, "--shift '2=inf': expected DIRECTION=AMOUNT"),
        ({"shift": "a=1"}, "--shift 'a=1': expected DIRECTION=AMOUNT"),
        ({"shift": "²=1"}, "--shift '²=1': expected DIRECTION=AMOUNT"),
        ({"shift": "1=1 1=2"}, "--shift names direction oblique:1 twice"),
        ({"shift": "9=1"}, "direction oblique:9 does not exist"),
        ({"shift": "1=1", "at_steps": "3 3"}, "0 <= FIRST < STOP"),
        ({"shift": "1=1", "at_steps": "-1"}, "0 <= FIRST < STOP"),
        ({"shift": "1=1", "at_steps": "1 2 3"}, "0 <= FIRST < STOP"),
        ({"shift": "1=1", "at_steps": "soon"}, "--at_steps: 'soon' is not a whole number"),
        ({"at_steps": "1"}, "--at_steps needs an intervention"),
    ],
)
def test_refusals(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError) as error:
        build(options(**fields), "abc", BASIS)
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_a_shift_that_overflows_is_refused() -> None:
    eye = torch.eye(4)
    basis = Basis("neurons", torch.zeros(4), torch.ones(4), eye, eye, agent="abc")  # float32, as all that are stored
    assert len(build(options(shift="2=1e30"), "abc", basis)) == 1
    with pytest.raises(UserError, match="--shift neurons:2=1e\\+39 is more than the hidden state can hold"):
        build(options(shift="2=1e39"), "abc", basis)


def test_refusals_without_a_basis(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run directory"):
        build(options(shift="1=1", basis=tmp_path / "none"), "abc")
    assert build(options(basis=tmp_path / "none"), "abc") == ()  # not needed, not looked for


@pytest.mark.parametrize("word", ["--5", "-", "", "²", "1.0", "1_0"])
def test_odd_numbers_are_user_errors(word: str) -> None:
    with pytest.raises(UserError, match="is not a whole number"):
        parse_ids([word], "--sample_ids")
