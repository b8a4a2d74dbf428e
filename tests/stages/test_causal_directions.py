"""Directions that carry a variable: the stage at debug size, its pairs and its runs, in the real game."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.load import load_agent
from analysis.causal_directions import __main__ as stage
from analysis.causal_directions.pairs import Pairs, go_on, lag_of, pairs_of
from analysis.shared.edit_starts import EditStarts, collect, fits
from core import config as cli
from core.artefacts import Result, read_manifest
from core.contracts import Agent, UserError
from core.directions import fingerprint, load_basis
from core.roll import gumbel
from envs.procgen import ProcgenEnv, ProcgenOptions
from envs.procgen_edits import parse_edit
from validation.edits import __main__ as edits

AGENT = Path("bundles/coinrun-context/agent")
CPU = torch.device("cpu")
SLOTS, HORIZON = 6, 3


class Desk:
    """The bundled agent at starts in the real game, and worlds to play on in."""

    def __init__(self) -> None:
        self.agent: Agent = load_agent(AGENT)
        options = ProcgenOptions(**{**self.agent.spec.options, "start_level": 800_000_000})
        self.envs = [ProcgenEnv(options, slots) for slots in (SLOTS, SLOTS, 4)]
        edit = parse_edit("add saw ahead 3", "coinrun")
        self.starts: EditStarts = collect(
            self.agent, self.envs[0], [edit], SLOTS, initial_frames=1, latest=12, seed=1, greedy=False, device=CPU
        )
        self.noise = gumbel((SLOTS, 6, 15), torch.Generator().manual_seed(0), torch.zeros(()))

    def pairs(self, text: str, lag: int) -> Pairs:
        edit = parse_edit(text, "coinrun")
        here = [fits(edit, s) for s in self.starts.states]
        return pairs_of(self.agent, self.envs[1], self.starts, here, lag, self.noise[:, : lag + HORIZON + 1])


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    for env in made.envs:
        env.close()


def test_a_pair_differs_in_the_edit_alone_and_the_whole_state_makes_the_source_at_once(desk: Desk) -> None:
    pairs = desk.pairs("add saw ahead 3", 0)
    x = pairs.exchange
    assert len(pairs) == SLOTS == len(np.unique(pairs.level_N)) and (x.difference_NH != 0).any(1).all()
    for got, meant in zip(x.at_base(x.base_NH + x.difference_NH), x.at_source(x.source_NH), strict=True):
        assert torch.allclose(got, meant, atol=1e-5)


def test_what_a_picture_hardly_shows_is_exchanged_steps_later(desk: Desk) -> None:
    text = "set velocity 0.4 0"
    lag = lag_of(parse_edit(text, "coinrun"))
    assert lag == 2 and lag_of(parse_edit("remove coin", "coinrun")) == 0
    now, later = desk.pairs(text, 0), desk.pairs(text, lag)
    assert not (now.exchange.difference_NH != 0).any(1).all()  # at once, only a change of the agent's pose shows it
    assert (later.exchange.difference_NH != 0).any(1).all()


def test_a_run_is_the_same_in_few_slots_and_another_state_changes_it(desk: Desk) -> None:
    pairs = desk.pairs("add saw ahead 3", 0)
    x, noise = pairs.exchange, pairs.noise_NTA[:, : HORIZON + 1]
    plain, few = (go_on(desk.agent, env, pairs.base, noise, x.at_base) for env in desk.envs[1:])
    on = plain.on_NT
    assert torch.equal(on, few.on_NT) and torch.allclose(plain.logp_NTD[on], few.logp_NTD[on], atol=1e-4)
    same = go_on(desk.agent, desk.envs[1], pairs.base, noise, x.at_base, x.base_NH)
    assert torch.equal(plain.value_NT[on], same.value_NT[on])
    patched = go_on(desk.agent, desk.envs[1], pairs.base, noise, x.at_base, x.source_NH)
    source = go_on(desk.agent, desk.envs[1], pairs.source, noise, x.at_base)
    assert torch.allclose(patched.value_NT[:, 0], source.value_NT[:, 0], atol=1e-5)
    assert (patched.value_NT[:, 1] != plain.value_NT[:, 1]).any()


def run(out: Path, *argv: object) -> Result:
    words = ["--out", str(out), "--starts", "24", "--horizon", "2", "--latest_start", "8", "--threads", "1", "--draws",
             "2", "--steps", "20", "--ranks", "2", "1", "--agent", str(AGENT)]  # fmt: skip
    stage.main(cli.parse(stage.CausalDirectionsConfig, [*words, *map(str, argv)], stage.STAGE))
    return Result.load(out)


def test_the_stage_writes_a_basis_that_other_stages_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c"
    result = run(out, "--edit", "add saw ahead 3", "--transfer", "add saw ahead 4")
    rows = result.tables["subspaces"]
    assert {row["edit"] for row in rows} == {"add saw ahead 3", "add saw ahead 4"}
    names = {(row["method"], row["rank"]) for row in rows if row["edit"] == "add saw ahead 3"}
    for rank in (1, 2):
        assert {(name, rank) for name in ("causal", "probe", "mean difference", "random", "random, as long")} <= names
    assert {("whole state", 64), ("unpatched", 0)} <= names
    for row in rows:
        if row["method"] == "whole state" and row["measure"] == "recovered kl":
            assert row["value"] == pytest.approx(1, abs=1e-3)
    assert {"kl@1..2", "value error@2", "interchange accuracy back"} <= {row["measure"] for row in rows}
    tests = result.tables["differences"]
    assert all(row["q"] >= row["p"] for row in tests) and {row["against"] for row in tests} >= {"probe", "random"}
    assert len(result.tables["guard"]) == 2 and (out / "subspaces.png").stat().st_size > 0
    said = capsys.readouterr().out
    assert "'add saw ahead 3': " in said and "(transfer" in said and "lies where recorded states vary" in said
    rank = result.notes["rank"]
    basis = load_basis(out, "causal", fingerprint(load_agent(AGENT)))
    assert basis.size == rank and basis.facts["edit"] == "add saw ahead 3"
    w = torch.from_numpy(result.arrays[f"subspace/{rank}"])
    assert torch.allclose(w.T @ w, torch.eye(rank), atol=1e-4)
    assert read_manifest(out)["facts"]["agent"] == basis.agent

    words = ["--agent", str(AGENT), "--edits", "add saw ahead 3", "--out", str(tmp_path / "e"), "--starts", "8",
             "--horizon", "1", "--latest_start", "8", "--threads", "1", "--basis", str(out), "--basis_kind", "causal",
             "--directions", "causal:0"]  # fmt: skip
    edits.main(cli.parse(edits.EditsConfig, words, edits.STAGE))
    assert any(row["quantity"] == "causal:0@1" for row in Result.load(tmp_path / "e").tables["effects"])


def test_what_lasts_no_longer_than_its_step_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent without a memory carries nothing on: "0 [0, 0] over the steps after" was said, as of a measurement."""
    run(tmp_path / "c", "--edit", "add saw ahead 3", "--agent", "bundles/coinrun-semantic/semantic_1/agent")
    said = capsys.readouterr().out
    assert "nothing over the 2 steps after, as the whole state does: what is exchanged lasts no longer" in said, said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--edit", "remove lava"), "of 24 starts after"), (("--edit", "remove dragon"), "no 'dragon'"),
        (("--ranks", "1", "65"), "--ranks 1 65: h has 64 dimensions, choose from 1 to 64"),
        (("--ranks", "0"), "choose from 1 to 64"), (("--starts", "4"), "--starts must be"),
        (("--agent", "bundles/nmmo-demo/policies/forager"), "Procgen's states"), (("--lag", "-1"), "--lag must be"),
        (("--transfer", "remove coin"), "there twice"), (("--basis", "bundles/coinrun-context/agent"), "neither a pca"),
        (("--edit", "add saw ahead 3", "--transfer", "remove lava"), "--transfer 'remove lava' can be made on"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    tmp_path: Path, argv: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.shared.edit_starts.GIVE_UP_STEPS", 60)
    with pytest.raises(UserError, match=said) as error:
        run(tmp_path / "c", *argv)
    assert "\n" not in str(error.value) and not (tmp_path / "c").exists()
