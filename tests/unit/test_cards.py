"""What model cards and docs/simulator.md say of a simulator whose table ships, column by column, is in that table."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.markdown_tables import table_below
from validation.fidelity.summary import SCORECARD

BUNDLES = Path(__file__).resolve().parents[2] / "bundles"
SCRATCH = "benchmarks/measured/fidelity_context_from_scratch_{}.csv"
ENSEMBLE = "benchmarks/measured/fidelity_context_ensemble.csv"
SOURCES = {  # of columns that no bundle has
    "seed 2 [95 %]": SCRATCH.format(2), "seed 3 [95 %]": SCRATCH.format(3), "around B": SCRATCH.format("b"),
    "of full length [95 %]": ENSEMBLE,
}  # fmt: skip

# The rows of cards' tables, by the measures that they tell.
ROWS = {
    "same action": ("action_agreement",),
    "same action, in effect": ("action_agreement_in_effect",),
    "the same beyond chance, kappa": ("action_kappa",),
    "the same beyond chance, kappa, in effect": ("action_kappa_in_effect",),
    "same action of another agent that looks on": ("judge_agreement",),
    "same action of A, who looks on": ("judge_agreement",),
    "hidden-state error, variances": ("h_error",),
    "value error": ("value_error",),
    "PSNR of the mean squared error, dB": ("frame_psnr",),
    "PSNR, dB": ("frame_psnr",),
    "SSIM": ("frame_ssim",),
    "held actions recognised": ("counterfactual_top1",),
    "worth of right actions, dB": ("delta_psnr",),
    "sign of effects through the world, on actions": ("effect_sign_action",),
    "the same, on the value": ("effect_sign_value",),
    "reward, terminal average precision, free-running": ("reward_average_precision", "terminal_average_precision"),
    "average precision of rewards, of endings": ("reward_average_precision", "terminal_average_precision"),
    "reward average precision, free-running": ("reward_average_precision",),
    "terminal average precision, free-running": ("terminal_average_precision",),
    "endings without a reward, average precision": ("unpaid_ending_average_precision",),
    "calibration error of reward, of ending": ("reward_calibration_error", "terminal_calibration_error"),
    "dreams alive": ("dreams_alive",),
    "error ratio under random actions": ("policy_dependence",),
    "real and simulated states told apart": ("h_classifier",),
    "the same, where the agent acts as it likes": ("h_classifier_dreamed",),
    "ranking of 12 policies": ("ranking_spearman",),
    "real pixels within the 90 % bands of three": ("ensemble_coverage_frame",),
    "real values within them": ("ensemble_coverage_value",),
    "rank correlation of spread and error over windows, frames": ("ensemble_rank_frame",),
    "the same, value": ("ensemble_rank_value",),
    "PSNR of their mean, dB": ("ensemble_frame_psnr",),
    "PSNR of the first, dB": ("frame_psnr",),
}
OWN = ("this one", "simulator", "held frame")
NOT_KEPT = ("first", "second", "before", "the grid", "from A's", "small")  # simulators whose tables are not here
BY_CHANCE = ("effect_sign", "counterfactual_top1", "average_precision")  # a held frame tells nothing of these
FLOOR = r"\((?:bound|real|floor|two real halves) ([^)]*)\)"
NUMBER = r"-?\d*\.?\d+"

Row = Mapping[str, str]


@cache
def fidelity(of: str) -> dict[tuple[str, str], Row]:
    """The rows of a bundle's table, or of this file, by measure and horizon; none of a bundle without a simulator."""
    path = BUNDLES.parent / of if of.endswith(".csv") else BUNDLES / of / "fidelity.csv"
    if not path.exists():
        return {}
    with path.open() as file:
        return {(row["measure"], row["horizon"]): row for row in csv.DictReader(file)}


def table_of(card: str, begins: str = "| measure | at |") -> list[dict[str, str]]:
    """The rows of the table of measures, by its head."""
    head, *rows = table_below(card, begins)
    return [dict(zip(head, row, strict=True)) for row in rows]


def is_told(said: str, have: str) -> bool:
    """Whether a table's number is what is said, in its decimals."""
    decimals = len(said.partition(".")[2])
    return bool(have) and f"{float(have):.{decimals}f}" == f"{float(said):.{decimals}f}"


def wrong(text: str, rows: Sequence[Row], column: str) -> list[str]:
    """What a text says, number by number with or without intervals, that is not in this column of these rows; a single
    number may be that of all."""
    told = re.findall(rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?", text.replace("−", "-"))
    told = told * len(rows) if len(told) == 1 else told
    if len(told) != len(rows):
        return [f"{len(told)} numbers of {len(rows)} measures"]
    pairs = [(said, row[where]) for numbers, row in zip(told, rows, strict=True)
             for said, where in zip(numbers, (column, "low", "high"), strict=True) if said]  # fmt: skip
    return [f"{said} is said of {have or 'no number'}" for said, have in pairs if not is_told(said, have)]


def bare(text: str) -> str:
    """Without what stands in brackets, and without stars."""
    return re.sub(r" \([^)]*\)", "", text).replace("*", "")


def bundle_of(name: str) -> str:
    """The bundle or the file that a column is of: its name, or where it links to."""
    link = re.search(r"\(\.\./(.*)/README\.md\)", name)
    return SOURCES.get(name, name) if link is None else link[1]


def cells_of(bundle: str, card: str, begins: str = "| measure | at |") -> Iterator[tuple[str, list[str]]]:
    """(what is said, what is wrong with it) of all in the table that the table of a bundle tells."""
    for row in table_of(card, begins):
        label, at, *_ = row.values()
        measures = ROWS[bare(label)]
        keys = [(measure, horizon) for measure in measures for horizon in (at.split(", ") if at else [""])]
        held = "baseline_mean" if any(part in measures[0] for part in BY_CHANCE) else "baseline_copy"
        said = [(bundle, text, "floor") for text in re.findall(FLOOR, label)]
        for name, text in list(row.items())[2:]:
            if name.startswith("asked") or name in NOT_KEPT:
                continue
            of = bundle if name in OWN else bundle_of(name)
            said += [(of, bare(text), held if name == "held frame" else "simulated")]
            said += [(of, beside, "floor") for beside in re.findall(FLOOR, text)]
            said += [(of, beside, held) for beside in re.findall(r"\(held frame ([^)]*)\)", text)]
        for of, text, column in said:
            if text and (rows := [fidelity(of)[key] for key in keys if key in fidelity(of)]):
                yield f"{label} at {at}, {of}'s {column}: {text}", wrong(text, rows, column)


def all_told(bundle: str, page: str, begins: str = "| measure | at |") -> int:
    """How many cells there are, none of which says what the table does not."""
    found = list(cells_of(bundle, page, begins))
    assert not [(said, what) for said, what in found if what]
    return len(found)


@pytest.mark.parametrize(("bundle", "least"), [("coinrun-robust", 75), ("coinrun-context", 48), ("fruitbot", 61)])
def test_a_cards_table_says_what_the_tables_of_bundles_say(bundle: str, least: int) -> None:
    assert all_told(bundle, (BUNDLES / bundle / "README.md").read_text()) >= least


def test_the_table_of_trainings_from_scratch_says_what_was_measured() -> None:
    page = (BUNDLES.parent / "docs" / "simulator.md").read_text()
    assert all_told(SCRATCH.format(2), page, "| measure | at | seed 2") >= 31


def test_the_table_of_the_second_agent_says_what_was_measured() -> None:
    assert all_told(SCRATCH.format("b"), (BUNDLES / "coinrun-robust-b" / "README.md").read_text()) >= 40


def test_the_table_of_ensembles_says_what_was_measured() -> None:
    page = (BUNDLES.parent / "docs" / "simulator.md").read_text()
    assert all_told(ENSEMBLE, page, "| measure | at | of full length") == 6


def test_a_wrong_number_of_any_column_is_found() -> None:
    card = (BUNDLES / "fruitbot" / "README.md").read_text()
    for there, typed in (
        ("| 1 | .90 [.84, .94]", "| 1 | .90 [.84, .95]"), ("| .31 |", "| .32 |"), ("| 6.5 |", "| 6.6 |"),
        ("(bound 1.00, .70)", "(bound 1.00, .71)"), ("(real .33)", "(real .34)"),
    ):  # fmt: skip
        assert card.count(there) == 1, there
        assert len([what for _, what in cells_of("fruitbot", card.replace(there, typed)) if what]) == 1, there


def test_the_example_of_fidelity_is_a_bundles_table() -> None:
    page = (BUNDLES.parent / "docs" / "fidelity.md").read_text()
    own, told = fidelity("coinrun-robust"), table_of(page)
    for row in told:
        name, at, value, *rest = row.values()
        numbers = [re.sub(r"[^\d.e-]", "", x) for x in value.split(" ")] + ["" if x == "-" else x for x in rest]
        columns = ("simulated", "low", "high", "floor", "baseline_copy", "baseline_mean")
        kept = [own[m, "" if at == "all" else at] for m, words in SCORECARD.items() if words == name
                if (m, "" if at == "all" else at) in own]  # fmt: skip
        have = [[f"{float(r[c]):.3g}" if r[c] else "" for c in columns] for r in kept]
        assert numbers in have, (name, at, numbers, have)
    assert len(told) > 50
