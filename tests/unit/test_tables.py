"""Tables and sentences of pages and cards say what the files that ship say, in the decimals that are printed.

Where the table of a page is a file's, it has a ``Told`` here: where it stands, and what the file has of a cell.
A sentence that quotes a table of ``validation.fidelity`` is a ``Quoted``: the sentence, with rows for its numbers.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest

from analysis.probes.over_agents import judge, row_of
from core.config import ROOT
from tests.markdown_tables import table_below

NUMBER = r"[+-]?\d*\.?\d+"
Cell = Sequence[str | float]  # the numbers of a cell, in order, and the words that stand in it
Row = dict[str, str]


class Told(NamedTuple):
    page: str
    below: str  # the table is the first one from this text on
    have: Callable[[str, str], Cell | None]  # of a row's label and a column's head; None: no file has it
    least: int  # so many cells at least
    brackets: bool = True  # what stands in round ones is of the file, too


@cache
def rows(path: str) -> list[Row]:
    with (ROOT / path).open() as file:
        return list(csv.DictReader(file))


@cache
def data(path: str) -> dict:
    return json.loads((ROOT / path).read_text())


def one(path: str, **where: str) -> Row:
    (row,) = [row for row in rows(path) if all(row[key] == value for key, value in where.items())]
    return row


def cells(table: Told, page: str) -> Iterator[tuple[str, str, Cell]]:
    """(where, what is said, what the file has) of every cell that a file has."""
    head, *body = table_below(page, table.below)
    for label, *row in body:
        for column, cell in zip(head[1:], row, strict=True):
            if cell and (have := table.have(label, column)) is not None:
                yield f"{label}, {column}", cell if table.brackets else re.sub(r" \([^)]*\)", "", cell), have


def is_told(said: str, have: Cell) -> bool:
    """Whether a cell has these words, and in this order these numbers and no others, each in its own decimals."""
    said = re.sub(r"(?<=\d),(?=\d{3}\b)", "", said.replace("−", "-").replace("*", ""))
    for word in (x for x in have if isinstance(x, str)):
        said, there = re.subn(rf"(?<!\w){re.escape(word)}(?!\w)", "", said, count=1)
        if not there:
            return False
    numbers = re.findall(NUMBER, said)
    known = [x for x in have if not isinstance(x, str)]
    return len(numbers) == len(known) and all(
        float(n) == float(f"{x:.{len(n.partition('.')[2])}f}") for n, x in zip(numbers, known, strict=True)
    )


def measured(row: Row, value: str = "value", low: str = "low", high: str = "high") -> list[float]:
    return [float(row[value]), float(row[low]), float(row[high])]


def scalar(path: str, name: str) -> list[float]:
    found = data(f"{path}/result.json")["scalars"][name]
    return [found["value"], *found.get("interval", ())]


# Craftax

CRAFTAX, CELLS = "bundles/craftax-probe", ("masked_normal", "masked_scarce", "visible_normal", "visible_scarce")
OVER = f"{CRAFTAX}/study/over_agents"
CONTRASTS = {
    "masked: scarce less normal": "masked_scarce - masked_normal",
    "normal: masked less visible": "masked_normal - visible_normal",
    "scarce: masked less visible": "masked_scarce - visible_scarce",
    "scarce less normal, masked less visible": "masked_scarce - masked_normal - visible_scarce + visible_normal",
}
CHECKPOINTS = {"1.2 M": "001245184", "2.5 M": "002490368", "5.0 M": "004980736", "7.5 M": "007471104",
               "10 M": "009994240"}  # fmt: skip


def over_agents(row: Row) -> Cell:
    return [*measured(row, "value", "value_low", "value_high"), row["verdict"]]


def each_agent(group: str, target: str, measure: str) -> list[float]:
    return [float(r["value"]) for r in rows(f"{OVER}/agents.csv")
            if (r["group"], r["target"], r["measure"]) == (group, target, measure)]  # fmt: skip


def by_input(target: str, kind: str) -> Cell:
    return [float(one(f"{OVER}/groups.csv", group=kind.replace(", ", "_"), target=target, measure=m)["value"])
            for m in ("h", "obs", "obs+time", "time", "time+actions")]  # fmt: skip


def of_groups(measure: str) -> Callable[[str, str], Cell]:
    def have(target: str, kind: str) -> Cell:
        group = kind.replace(", ", "_")
        row = one(f"{OVER}/groups.csv", group=group, target=target, measure=measure)
        return [*over_agents(row), *each_agent(group, target, measure)]

    return have


@cache
def ahead_of_observation_and_time() -> dict[tuple[str, str], list[str | float]]:
    """{(target, group): h less observation and time}, which the stage was not asked for when the files were made."""
    found, agents = {}, {}
    for target in ("row", "col", "health", "food", "drink", "energy"):
        for group in CELLS:
            h, seen = (np.array(each_agent(group, target, m)) for m in ("h", "obs+time"))
            agents[target, group] = list(h - seen)
            found[target, group] = row_of([h - seen], [1]) | {"measure": "h - obs+time"}
    judge(list(found.values()), 0.02, both_ways=False)
    return {key: [*(row[f"value{end}"] for end in ("", "_low", "_high")), row["verdict"], *agents[key]]
            for key, row in found.items()}  # fmt: skip


def of_contrasts(label: str, column: str) -> Cell:
    measure, target = label.split(": ")
    measure = measure.replace("h less obs", "h - obs")
    return over_agents(one(f"{OVER}/contrasts.csv", contrast=CONTRASTS[column], target=target, measure=measure))


def emergence(target: str, at: str) -> Cell:
    h, *others = (one(f"{CRAFTAX}/study/emergence_10m.csv", recording=f"checkpoint_{CHECKPOINTS[at]}", target=target,
                      input=i) for i in ("h", "obs", "obs+time"))  # fmt: skip
    return [*measured(h, "score", "score_low", "score_high"), *(float(row["score"]) for row in others)]


def craftax_card(label: str, name: str) -> Cell | None:
    of_all, last = data(f"{CRAFTAX}/{name}/manifest.json")["metrics"], rows(f"{CRAFTAX}/{name}/curve.csv")[-1]
    return {
        "parameters": [of_all["parameters"]["value"]],
        "trained: steps, minutes": [float(last["step"]), of_all["training_wall"]["value"] / 60],
        "return in training, last 100 lives": [float(last["return_mean"])],
        "achievements a life, the same": [float(last["achievements_mean"])],
        "steps a life, the same": [float(last["length_mean"])],
    }.get(label)


# Policies that cluster their states

STUDY = "bundles/coinrun-semantic/study"
QUALITY = {  # {how a row begins: measures of quality.csv, of OTHER of another seed}
    "codes in use": ("codes_alive",),
    "silhouette of the codes": ("silhouette",),
    "of k-means of the features": ("silhouette_k_means_of_the_features",),
    "codes over k-means": ("silhouette_against_plain",),
    "trustworthiness": ("trustworthiness", "continuity"),
    "run of a code": ("run_length",),
    "share of the codes' entropy": ("share_from_time",),
    "agreement with the other": ("ari_with_codes_of_OTHER", "nmi_with_codes_of_OTHER"),
    "with k-means of the plain": ("ari_with_k-means_of_the_plain_agent", "nmi_with_k-means_of_the_plain_agent"),
    "with `analysis.behaviours`": ("ari_with_behaviours", "nmi_with_behaviours"),
}
WITH_INTERVAL = {
    "perplexity": "perplexity",
    "neighbours of": "neighbours_features",
    "of VAR(1) surrogates": "run_length_surrogates",
}


def quality(label: str, seed: str) -> Cell | None:
    policy = seed.replace("seed ", "semantic_")
    own = {row["measure"]: row for row in rows(f"{STUDY}/quality.csv") if row["policy"] == policy}
    for begins, measure in WITH_INTERVAL.items():
        if label.startswith(begins):
            return measured(own[measure])
    measures = next((of for begins, of in QUALITY.items() if label.startswith(begins)), ())
    others = [f"semantic_{i}" for i in "123" if f"semantic_{i}" != policy] if "OTHER" in "".join(measures) else [""]
    named = [m.replace("OTHER", other) for other in others for m in measures]
    return [float(own[m]["value"]) for m in named] if named and all(m in own for m in named) else None


def codes(code: str, column: str) -> Cell | None:
    effects = rows(f"{STUDY}/effects_1.csv")
    steps = {c: max(float(row["steps"]) for row in effects if row["code"] == c) for c in "01234567"}
    first = [row for row in effects if row["code"] == code][:3]
    return {
        "share": [steps[code] / sum(steps.values())],
        "most particular": [x for row in first for x in (row["what"], float(row["d"]))],
    }.get(column)


def causes(hypothesis: str, column: str) -> Cell | None:
    quantity = re.sub(r".* on (\S+).*", r"\1", hypothesis)
    row = one(f"{STUDY}/causes_1.csv", hypothesis=hypothesis,
              quantity=quantity + ("@8" if quantity == "value" else "@1..8"))  # fmt: skip
    return {
        "said": [float(row["foretold"])] if row["foretold"] else None,
        "seen [95 %]": measured(row, "observed"),
        "exists": [row["exists"]],
        "size": [row["size"]],
        "special (q)": [row["special"], float(row["special_q"])],
    }.get(column)


def returns(steps: str, groups: dict[str, str], seed: str, column: str) -> Cell | None:
    of = (groups.get(column, ""), seed, steps)
    found = [row for row in rows(f"{STUDY}/returns.csv") if (row["group"], row["seed"], row["steps"]) == of]
    return measured(found[0], "return") if found else None


def matched(situation: str, seed: str) -> Cell | None:
    row = one(f"{STUDY}/matches_{seed.removeprefix('seed ')}.csv", description=situation)
    return [row["verdict"], *measured(row, "phi")]


def semantic_card(label: str, name: str) -> Cell | None:
    path = f"bundles/coinrun-semantic/{name}"
    if label.startswith("trained"):
        last = rows(f"{path}/agent/curve.csv")[-1]
        return [float(last["step"]), float(last["wall_s"]) / 60]
    return scalar(f"{path}/evaluation", "return_mean") if label.startswith("held-out") else None


# Neural MMO

NMMO = "bundles/nmmo-demo/policies"
OF_LIVES = {
    "ticks a life (of 256)": "length",
    "ticks a life": "length",
    "meals a life": "ate",
    "drinks a life": "drank",
    "weighted task score (of 100)": "weighted_score",
}


def lives(world: str) -> Callable[[str, str], Cell]:
    def have(label: str, name: str) -> Cell:
        policy = name.split()[0]
        if label.startswith("rating"):
            return measured(one(f"{NMMO}/metrics_{world}/ratings.csv", policy=policy), "rating")
        return measured(one(f"{NMMO}/metrics_{world}/metrics.csv", policy=policy, metric=OF_LIVES[label]))

    return have


def nmmo_training(label: str, name: str) -> Cell | None:
    facts = data(f"{NMMO}/{name}/manifest.json")["facts"]
    if label.startswith("trained"):
        return [facts["training"]["steps"], facts["training"]["wall_s"] / 60]
    return [facts["size"], facts["parameters"]] if label.startswith("width") else None


# Agents of Procgen and simulators

SCALARS = {
    "the same choice after a shift by one pixel along the row": ("same_choice_shift_horizontal",),
    "... along the column": ("same_choice_shift_vertical",),
    "the same choice after a shift by one pixel along the row, the column": (
        "same_choice_shift_horizontal", "same_choice_shift_vertical"),
    "the same choice after a blur of 3 × 3 pixels": ("same_choice_blur",),
}  # fmt: skip
COLUMNS = {"this agent": "coinrun-robust", "coinrun-context's, with which it began": "coinrun-context", "B":
           "coinrun-robust-b", "A": "coinrun-robust", "": "fruitbot"}  # fmt: skip
JOINT = {
    "endings without a reward, average precision (rate .003), all steps": [("unpaid_ending_average_precision", "")],
    "the same, steps 1 to 4": [("unpaid_ending_average_precision", "4")],
    "the same, teacher-forced": [("unpaid_ending_average_precision_teacher_forced", "")],
    "their calibration error": [("unpaid_ending_calibration_error", "")],
    "rewards, average precision": [("reward_average_precision", "")],
    "endings, average precision": [("terminal_average_precision", "")],
    "calibration error of rewards, of endings": [("reward_calibration_error", ""), ("terminal_calibration_error", "")],
}


def evaluated(label: str, column: str) -> Cell | None:
    path = f"bundles/{COLUMNS[column]}/evaluation"
    if label.startswith("held-out return"):
        return [*scalar(path, "return_mean"), *(scalar(path, "length_mean") if "of 10" in label else [])]
    return [x for name in SCALARS[label] for x in scalar(path, name)] if label in SCALARS else None


def joint_outcome(label: str, column: str) -> Cell:
    of = {"before": "before_joint_outcome", "with a joint outcome": "joint_outcome"}[column]
    path = f"benchmarks/measured/fidelity_1024_{of}.csv"
    return [x for m, h in JOINT[label] for x in measured(one(path, measure=m, horizon=h), "simulated")]


def coin_removed(way: str, column: str) -> Cell:
    """What docs/edits.md has of it: a table that repeats another page's."""
    head, row, *_ = table_below((ROOT / "docs" / "edits.md").read_text(), "| edit | n | return, whole |")
    seen = {"the world and the picture": "return, whole", "the picture alone": "return, pixels alone"}[way]
    cell = row[head.index("foretold" if column == "simulator foretold" else seen)]
    return [float(n) for n in re.findall(NUMBER, cell)] + re.findall("refuted", cell)


TABLES = (
    Told("docs/craftax.md", "R² of linear probes", by_input, 40),
    Told("docs/craftax.md", "*Beyond*: what h adds", of_groups("beyond"), 40),
    Told("docs/craftax.md", "The same for h less the observation", of_groups("h - obs"), 24),
    Told("docs/craftax.md", "And for h less the observation *and time*",
         lambda target, kind: ahead_of_observation_and_time()[target, kind.replace(", ", "_")], 24),
    Told("docs/craftax.md", "Differences of the cells", of_contrasts, 30),
    Told("docs/craftax.md", "| R² from h; obs; obs + time, at |", emergence, 30),
    Told("bundles/craftax-probe/README.md", "| | masked_normal_1", craftax_card, 20),
    Told("docs/semantics.md", "**Return** on held-out levels",
         partial(returns, "3997696", {"plain": "plain", "with the module": "semantic",
                                      "gradient through *p* (`--no-stop_p`)": "gradient"}), 7),
    Told("docs/semantics.md", "**Half as long**",
         partial(returns, "1998848", {"plain": "plain", "gradient through *p*": "gradient",
                                      "and `--ordinal`": "ordinal"}), 8),
    Told("docs/semantics.md", "**Which codes are what people", matched, 24),
    Told("docs/semantics.md", "**What the clusters are**", quality, 37, brackets=False),
    Told("docs/semantics.md", "**What the codes of seed 1 say**", codes, 16),
    Told("docs/semantics.md", "**Are they causes?**", causes, 52),
    Told("bundles/coinrun-semantic/README.md", "| | semantic_1", semantic_card, 6),
    Told("bundles/nmmo-demo/README.md", "| | hybrid", nmmo_training, 10),
    Told("bundles/nmmo-demo/README.md", "| alone on a map", lives("pve"), 24),
    Told("bundles/nmmo-demo/README.md", "| all six in one world", lives("pvp"), 12),
    Told("bundles/coinrun-robust/README.md", "## The agent", evaluated, 8),
    Told("bundles/coinrun-robust-b/README.md", "| | B | A |", evaluated, 8),
    Told("bundles/fruitbot/README.md", "## The agent", evaluated, 3, brackets=False),
    Told("docs/simulator.md", "| foretold | before |", joint_outcome, 14),
    Told("docs/misgeneralisation.md", "| the coin is removed from |", coin_removed, 3),
)  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.page}, {table.below[:30]}")
def test_a_table_says_what_its_file_says_and_another_digit_is_found(table: Told) -> None:
    found = list(cells(table, (ROOT / table.page).read_text()))
    assert not [each for each in found if not is_told(*each[1:])]
    assert len(found) >= table.least, len(found)
    for where, said, have in found:
        for last in (m.end() - 1 for m in re.finditer(rf"(?<![\w:]){NUMBER}", said)):
            typed = said[:last] + str((int(said[last]) + 1) % 10) + said[last + 1 :]
            assert not is_told(typed, have), (where, typed)


def test_words_of_a_cell_are_whole() -> None:
    assert is_told("+.10 [.05, .15] **no**", [0.1, 0.05, 0.15, "no"])
    assert not is_told("+.10 [.05, .15] not asked", [0.1, 0.05, 0.15, "no"])


class Quoted(NamedTuple):
    page: str
    table: str
    sentence: str  # {MEASURE@HORIZON}: a row's value; followed by []: with its interval; by a column's name: that


OWN, W1024 = "bundles/{}/fidelity.csv", "benchmarks/measured/fidelity_1024_joint_outcome.csv"
EVERY1024 = "benchmarks/measured/fidelity_1024_every_rung.csv"
ROBUST, FRUIT = OWN.format("coinrun-robust"), OWN.format("fruitbot")
SENTENCES = (
    Quoted("bundles/coinrun-robust/README.md", W1024,
           "same action {action_agreement@1 []} and {action_agreement@8 []} at 1 and 8; hidden-state error "
           "{h_error@1 []} and {h_error@4 []} at 1 and 4; PSNR {frame_psnr@1 []}, {frame_psnr@4 []}, {frame_psnr@8 "
           "[]} and {frame_psnr@32 []} dB, SSIM {frame_ssim@1}, {frame_ssim@4}, {frame_ssim@8}, {frame_ssim@32}; "
           "value error {value_error@1 []} and {value_error@4 []} at 1 and 4 (held frame {value_error@1 "
           "baseline_copy}, {value_error@4 baseline_copy}: nearer), {value_error@8 []} and {value_error@32 []} at 8 "
           "and 32 ({value_error@8 baseline_copy}, {value_error@32 baseline_copy}: not shown to be nearer); rewards "
           "and endings foretold with average precision {reward_average_precision@ []} and "
           "{terminal_average_precision@ []}."),
    Quoted("bundles/coinrun-robust/README.md", W1024,
           "are foretold with {unpaid_ending_average_precision@ []} where "
           "{unpaid_ending_average_precision@ baseline_mean} of the transitions are such** (steps 1 to 4 "
           "{unpaid_ending_average_precision@4 []}, later ones hardly"),
    Quoted("bundles/coinrun-robust/README.md", EVERY1024,
           "effects that run through the world have the right sign in {effect_sign_action@1 []} of cases at 1 "
           "and {effect_sign_action@4 []} at 4 on actions (bound {effect_sign_action@1 floor}, "
           "{effect_sign_action@4 floor}), {effect_sign_value@1 []} and {effect_sign_value@4 []} on the value, "
           "straight-through {effect_sign_action_straight_through@1 []} and "
           "{effect_sign_action_straight_through@4 []} (actions); held actions are recognised in "
           "{counterfactual_top1@1 []} and {counterfactual_top1@8 []} at 1 and 8 (bound {counterfactual_top1@1 "
           "floor}, {counterfactual_top1@8 floor}); right actions are worth {delta_psnr@4 []} dB at 4; 12 "
           "policies are ranked as two halves of the real returns rank them ({ranking_spearman@64 []}; "
           "{ranking_spearman@64 floor}), and who takes the best in the simulator loses {ranking_regret@64 []} "
           "of return in the game (blindly {ranking_regret@64 baseline_mean}); {dreams_alive@32 []} of dreams "
           "are alive at 32 (real {dreams_alive@32 floor}); the error under random actions is "
           "{policy_dependence@8 []} times the agent's at 8; real and simulated states are told apart in "
           "{h_classifier@ []} (floor {h_classifier@ floor}, a held frame's {h_classifier@ baseline_copy}); of "
           "pixels that come back into view after 8 and 16 steps {there_and_back_share@8 []} and "
           "{there_and_back_share@16 []} do."),
    Quoted("bundles/coinrun-robust/README.md", EVERY1024,
           "Same action {action_agreement@1 []} and {action_agreement@8 []}, beyond chance {action_kappa@1} and "
           "{action_kappa@8}, the judge's {judge_agreement@1 []} and {judge_agreement@8 []}; hidden-state error "
           "{h_error@1 []} and {h_error@4 []} at 1 and 4; PSNR {frame_psnr@1 []}, {frame_psnr@4 []}, "
           "{frame_psnr@8 []} and {frame_psnr@32 []} dB at 1, 4, 8, 32 (of what was in view "
           "{frame_psnr_known@1}, {frame_psnr_known@4}; of what comes into view {frame_psnr_revealed@4} at 4); "
           "value error {value_error@1 []}, {value_error@4 []}, {value_error@8 []} and {value_error@32 []} "
           "(held frame {value_error@1 baseline_copy}, {value_error@4 baseline_copy}, {value_error@8 "
           "baseline_copy}, {value_error@32 baseline_copy}); rewards and endings {reward_average_precision@ []} "
           "and {terminal_average_precision@ []}, deaths {unpaid_ending_average_precision@ []}."),
    Quoted("bundles/coinrun-robust/README.md", "benchmarks/measured/fidelity_640_less_held.csv",
           "Of the value's error it is {value_error_less_copy@1 []} at 1 and {value_error_less_copy@4 []} at 4: "
           "nearer; {value_error_less_copy@8 []} at 8: open; {value_error_less_copy@16 []} at 16 and "
           "{value_error_less_copy@32 []} at 32"),
    Quoted("bundles/coinrun-robust/README.md", "benchmarks/measured/fidelity_640_less_held.csv",
           "by {frame_ssim_less_copy@1 []} at 1 and {frame_ssim_less_copy@32 []} at 32, as asked."),
    Quoted("bundles/coinrun-robust/README.md", EVERY1024,
           "dreams alive ({dreams_alive_difference@32 []} beside the real share, .08 asked)"),
    Quoted("bundles/coinrun-robust/README.md", ROBUST,
           "nearer to the real one ({value_error@32 []}) than a constant is, the mean over the recording "
           "({value_error@32 baseline_mean}; held frame {value_error@32 baseline_copy}), and frames are 1.4 dB nearer "
           "than the mean frame ({frame_psnr@32} and {frame_psnr@32 baseline_mean} dB)"),
    Quoted("bundles/coinrun-robust/README.md", ROBUST,
           "is filled with the edge, has {frame_psnr_edge_filled@1}, {frame_psnr_edge_filled@4}, "
           "{frame_psnr_edge_filled@8} and {frame_psnr_edge_filled@32} dB at 1, 4, 8 and 32 (this one is above it from "
           "4 on); of what was in view it shows {frame_psnr_known@1} dB at 1."),
    Quoted("bundles/coinrun-robust/README.md", ROBUST,
           "hidden-state error is {h_error@8} at 8 and {h_error@32} at 32, where the mean state has "
           "{h_error@32 baseline_mean}; at 32 steps {h_classifier@32} of states are told apart (a held frame's "
           "{h_classifier@32 baseline_copy})"),
    Quoted("bundles/fruitbot/README.md", FRUIT,
           "({value_error@32}; {value_error@32 baseline_copy} and {value_error@32 baseline_mean}), and frames are "
           "hardly nearer than the mean frame ({frame_psnr@32 []} and {frame_psnr@32 baseline_mean} dB"),
    Quoted("bundles/fruitbot/README.md", FRUIT,
           "the sign is right in {effect_sign_action_straight_through@4 []} of cases at 4 (on the value "
           "{effect_sign_value_straight_through@4 []}), of gradients through the world in "
           "{gradient_sign_action_through_world@4 []}:"),
    Quoted("bundles/fruitbot/README.md", "benchmarks/measured/fidelity_fruitbot_joint_outcome.csv",
           "reward average precision {reward_average_precision@ []} (kept: .70), terminal "
           "{terminal_average_precision@ []} (.81), dreams alive {dreams_alive@32 []} (.93; real "
           "{dreams_alive@32 floor}), ranking of 12 policies {ranking_spearman@64 []} (.92). Endings without a reward "
           "are too few here to be told (average precision {unpaid_ending_average_precision@ []})."),
    Quoted("docs/simulator.md", ROBUST,
           "the same action in {action_agreement@1 []} of states, at 8 steps in {action_agreement@8 []}; frames are at "
           "{frame_psnr@1} dB and SSIM {frame_ssim@1}; its value is nearer"),
    Quoted("docs/simulator.md", ROBUST,
           "{dreams_alive@32} of dreams are alive after 32 steps (real {dreams_alive@32 floor}), rewards and endings "
           "are foretold with average precision {reward_average_precision@} and {terminal_average_precision@},"),
    Quoted("docs/simulator.md", FRUIT,
           "the agent does the same in {action_agreement_in_effect@1 []} of states, at 8 steps in "
           "{action_agreement_in_effect@8 []}; frames are at {frame_psnr@1 []} dB and {frame_psnr@8 []} dB; and "
           "**effects that run through the world have the right sign in {effect_sign_action@1 []} of cases at 1 and "
           "{effect_sign_action@4 []} at 4** (the real game under another draw of action noise: "
           "{effect_sign_action@1 floor} and {effect_sign_action@4 floor})"),
    Quoted("docs/fidelity.md", ROBUST,
           "in {effect_sign_action@1 []} of cases one step on and {effect_sign_action@4 []} four steps on, on actions; "
           "the real game knows its own in {effect_sign_action@1 floor} and {effect_sign_action@4 floor}.** "
           "Straight-through it is {effect_sign_action_straight_through@1 []} and "
           "{effect_sign_action_straight_through@4 []}:"),
)  # fmt: skip
ASKED = r"\{(\w+)@(\d*)(?: (\w+|\[\]))?\}"


def quoted(sentence: Quoted) -> tuple[str, list[float]]:
    """The expression that finds a sentence, a group a number, and what the table has of them."""
    words = re.split(ASKED, sentence.sentence)
    pattern, have = re.escape(words[0]), []
    for measure, horizon, column, text in zip(words[1::4], words[2::4], words[3::4], words[4::4], strict=True):
        row = one(sentence.table, measure=measure, horizon=horizon)
        if column == "[]":
            have += measured(row, "simulated")
            pattern += rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]"
        else:
            have.append(float(row[column or "simulated"]))
            pattern += f"({NUMBER})"
        pattern += re.escape(text)
    return pattern, have


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: f"{sentence.page}, {sentence.sentence[:30]}")
def test_a_sentence_quotes_its_table(sentence: Quoted) -> None:
    page = " ".join((ROOT / sentence.page).read_text().replace("−", "-").split())
    pattern, have = quoted(sentence)
    (numbers,) = re.findall(pattern, page)
    said = [numbers] if isinstance(numbers, str) else numbers
    assert [(n, x) for n, x in zip(said, have, strict=True) if not is_told(n, [x])] == []


def test_pairs_of_policies_are_told_as_their_tables_have_them() -> None:
    card = (ROOT / "bundles/nmmo-demo/README.md").read_text()
    alone, in_one_world = card[card.index("Differences in ticks") :].split("In one world")
    pair = rf"(\w+) against (\w+)[a-z (]*({NUMBER}) \[({NUMBER}), ({NUMBER})\][, (]*q = ({NUMBER})"
    found = [("pve", *said) for said in re.findall(pair, alone)]
    found += [("pvp", *said) for said in re.findall(pair, in_one_world)]
    assert len(found) == 7
    for world, policy, against, *numbers in found:
        row = one(f"{NMMO}/metrics_{world}/pairs.csv", policy=policy, against=against, measure="length")
        have = [*measured(row, "difference"), float(row["q"])]
        assert all(is_told(n, [x]) for n, x in zip(numbers, have, strict=True)), (policy, against, numbers, have)
