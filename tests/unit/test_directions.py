"""A basis' chain rule and its way back, in float64 against finite differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from analysis.shared.quantities import find_direction
from core.artefacts import new_run
from core.contracts import UserError
from core.directions import Basis, direction_ids, direction_of, fingerprint, load_basis
from validation.hypotheses.grammar import parse_hypothesis
from validation.panel.first import direction_of as direction_of_claim

H = 6
READS = {"oblique:0": "row", "oblique:1": "achieved_eat_cow", "oblique:2": "health"}


def basis(k: int, seed: int = 0) -> Basis:
    """K oblique directions: project @ lift is the identity of K without either being orthogonal."""
    generator = torch.Generator().manual_seed(seed)
    mean, project = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((H,), (H, k)))
    std = 0.5 + torch.rand(H, generator=generator, dtype=torch.float64)
    return Basis("oblique", mean, std, project, torch.linalg.pinv(project), agent="abc", facts={"seed": seed})


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("ica:5", ("ica", 5)), ("ica_5", ("ica", 5)), ("5", ("pca", 5)), ("direction_5", ("pca", 5)),
        ("direction:5", ("pca", 5)), ("d_pca:12", ("d_pca", 12)), ("d_pca_12", ("d_pca", 12)), ("-1", ("pca", -1)),
        ("value", None), ("ica:", None), ("ica:x", None), ("²", None), ("", None), ("5.0", None), ("ica 5", None),
    ],
)  # fmt: skip
def test_a_direction_has_a_name_and_older_spellings(word: str, found: tuple[str, int] | None) -> None:
    assert direction_of(word, "pca") == found


def test_directions_of_another_basis_or_none_are_refused() -> None:
    assert direction_ids(["ica:5", "ica_4", "3", "direction_2"], "ica", "--shift") == [5, 4, 3, 2]
    with pytest.raises(UserError, match="--shift: 'pca:5' is of another basis than ica; .*--basis_kind pca"):
        direction_ids(["1", "pca:5"], "ica", "--shift")
    with pytest.raises(UserError, match="--shift: 'x' is no direction: neither a name such as ica:5"):
        direction_ids(["x"], "ica", "--shift")


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def readout(h: Tensor) -> Tensor:
    """A curved function of the state."""
    weights = torch.linspace(-1, 1, H, dtype=torch.float64)
    return (torch.tanh(h) * weights).sum(-1) + (h**2).sum(-1) / 7


def test_directions_with_labels_are_named_by_them_too() -> None:
    labelled = replace(basis(3), facts={"targets": READS})
    assert direction_ids(["oblique:health", "oblique:0", "oblique:achieved_eat_cow", "2"], labelled, "x") == [
        2,
        0,
        1,
        2,
    ]
    said = "shift oblique:health by -2 always on event:health and oblique:row, oblique:all"
    assert labelled.numbered(said, "x") == "shift oblique:2 by -2 always on event:health and oblique:0, oblique:all"
    assert labelled.worded("shift oblique:2 by -2 and oblique:9, xoblique:2") == (
        "shift oblique:health by -2 and oblique:9, xoblique:2"
    )
    rows = {"oblique:2@8": [{"direction": "oblique:0", "amount": 2.0}], "none": None}
    assert labelled.worded(rows) == {"oblique:health@8": [{"direction": "oblique:row", "amount": 2.0}], "none": None}
    with pytest.raises(UserError, match="^hypothesis 'shift oblique:health by 2'"), labelled.wording():
        raise UserError("hypothesis 'shift oblique:2 by 2': no event")  # as everything behind the parser calls it
    angle = replace(basis(1), facts={"targets": {"oblique:0": "sin(coin_bearing)"}})  # as it is said it is read
    assert angle.numbered(angle.worded("collapse oblique:0 on value"), "x") == "collapse oblique:0 on value"
    assert find_direction("oblique:sin(coin_bearing)", lambda kind: angle, "oblique") == ("oblique", 0)
    said = ("ica:5", "direction_2", "7", "probe:support", "probe:tile_12", None)  # what claims of any version say
    assert [direction_of_claim({"direction": x}) for x in said] == [
        ("ica", 5),
        ("", 2),
        ("", 7),
        None,
        None,
        None,
    ]
    with pytest.raises(UserError, match=r"x: the oblique basis has no direction oblique:helth \(did you mean health"):
        direction_ids(["oblique:helth"], labelled, "x")
    assert direction_ids(["oblique:1"], basis(3), "x") == [1]
    with pytest.raises(UserError, match=r"'health' is no direction: .*; did you mean oblique:health\?"):
        direction_ids(["health"], labelled, "x")
    with pytest.raises(UserError, match="'oblique:health' is no direction"):
        direction_ids(["oblique:health"], basis(3), "x")


@pytest.mark.parametrize(
    "line",
    [
        "shift oblique:{} by -2 on value",
        "shift oblique:{}=1.5",
        "collapse oblique:{} always",
        "collapse 0 on oblique:{}",
        "swap oblique:{} oblique:0",
    ],
)
def test_a_hypothesis_with_a_label_is_that_with_the_number(line: str) -> None:
    labelled = replace(basis(3), facts={"targets": READS})
    assert parse_hypothesis(line.format("health"), labelled) == parse_hypothesis(line.format(2), labelled)


both = pytest.mark.parametrize("k", [3, H])


@both
def test_project_undoes_lift(k: int) -> None:
    b, c = basis(k), states(4)[:, :k]
    torch.testing.assert_close(b.project(b.lift(c)), c)
    torch.testing.assert_close(b.lift(torch.zeros(k, dtype=torch.float64)), b.mean_H)
    torch.testing.assert_close(b.lift(c + 1) - b.lift(c), b.lift_change(torch.ones_like(c)))
    assert b.size == k


def test_lift_undoes_project_where_the_basis_is_complete() -> None:
    h = states(2, 3)
    torch.testing.assert_close(basis(H).lift(basis(H).project(h)), h)
    once = basis(3).lift(basis(3).project(h))
    assert (once - h).abs().max() > 0.1
    torch.testing.assert_close(basis(3).lift(basis(3).project(once)), once)  # a projection


@both
def test_pullback_is_the_chain_rule(k: int) -> None:
    b, c = basis(k), states(5)[:, :k].requires_grad_()
    h = b.lift(c)
    by_torch = torch.autograd.grad(readout(h).sum(), c)[0]
    leaf = h.detach().requires_grad_()
    grad_h = torch.autograd.grad(readout(leaf).sum(), leaf)[0]
    torch.testing.assert_close(b.pullback(grad_h), by_torch)
    step = 1e-5
    for i in range(k):
        e = torch.zeros(k, dtype=torch.float64).index_fill(0, torch.tensor(i), step)
        slope = (readout(b.lift(c + e)) - readout(b.lift(c - e))) / (2 * step)
        torch.testing.assert_close(b.pullback(grad_h)[:, i], slope, rtol=1e-7, atol=1e-8)


@both
def test_gradcheck(k: int) -> None:
    b = basis(k)
    h = states(2).requires_grad_()
    c = states(2)[:, :k].requires_grad_()
    assert torch.autograd.gradcheck(b.project, (h,))
    assert torch.autograd.gradcheck(b.lift, (c,))
    assert torch.autograd.gradcheck(b.pullback, (h,))


def test_ids_outside_are_user_errors() -> None:
    for bad in ([3], [0, -1]):
        with pytest.raises(UserError, match="does not exist: the oblique basis has 0 to 2"):
            basis(3).check(bad)


def test_save_and_load(tmp_path: Path) -> None:
    b = basis(3)
    transposed = Basis("neurons", b.mean_H, b.std_H, torch.eye(H).double(), torch.eye(H).double().T, agent="abc")
    with new_run(tmp_path / "r", "hidden_states", {}) as run:
        b.save(run.path)
        transposed.save(run.path)
        replace(b, kind="holed", lift_KH=b.lift_KH * torch.tensor([1.0, torch.nan, 1.0])[:, None]).save(run.path)
    back = load_basis(tmp_path / "r", "oblique", "abc")
    for name in ("mean_H", "std_H", "project_HK", "lift_KH"):
        assert torch.equal(getattr(back, name), getattr(b, name)) and getattr(back, name).dtype == torch.float64
    assert (back.kind, back.agent, back.space, back.facts) == ("oblique", "abc", "h", {"seed": 0})
    assert load_basis(tmp_path / "r", "neurons").size == H
    with pytest.raises(
        UserError, match=r"no 'oblik' basis \(did you mean oblique\?\); it has: holed, neurons, oblique"
    ):
        load_basis(tmp_path / "r", "oblik")
    with pytest.raises(UserError, match="fitted on agent abc, not on xyz"):
        load_basis(tmp_path / "r", "oblique", "xyz")
    with pytest.raises(UserError, match="the holed basis has NaN"):
        load_basis(tmp_path / "r", "holed")
    with pytest.raises(UserError, match="no such run directory"):
        load_basis(tmp_path / "none", "oblique")


def test_to_changes_the_tensors_and_keeps_the_rest() -> None:
    b = basis(3).to(dtype=torch.float32)
    assert b.project_HK.dtype == b.std_H.dtype == torch.float32 and b.facts == {"seed": 0} and b.agent == "abc"


def test_fingerprint_names_the_weights() -> None:
    torch.manual_seed(0)
    a = torch.nn.Linear(3, 2)
    b = torch.nn.Linear(3, 2)
    assert fingerprint(a) == fingerprint(a) != fingerprint(b)
    b.load_state_dict(a.state_dict())
    assert fingerprint(a) == fingerprint(b) and len(fingerprint(a)) == 16
    with torch.no_grad():
        b.weight[1, 2] = torch.nextafter(b.weight[1, 2], torch.tensor(9.0))
    assert fingerprint(a) != fingerprint(b)
