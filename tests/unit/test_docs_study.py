"""The study in docs/ is one that the stage reads, on a basis and a world like the demo's."""

from pathlib import Path

import torch

from core import config as cli
from core.contracts import EnvSpec
from core.directions import Basis
from validation.interventions.__main__ import InterventionsConfig, check
from validation.interventions.options import parse_study

STUDY = Path(__file__).parents[2] / "docs" / "study.json"
SPEC = EnvSpec(env_id="procgen/coinrun", obs={}, slots=1, action_names=(
    "downleft", "left", "upleft", "down", "none", "up", "downright", "right", "upright", "key_d", "key_a", "key_w",
    "key_s", "key_q", "key_e",
))  # fmt: skip


def test_the_study_in_docs_is_read_and_flags_override_it():
    eye = torch.eye(16)
    basis = Basis("ica", torch.zeros(16), torch.ones(16), eye, eye)
    config = cli.parse(InterventionsConfig, [f"--config={STUDY}"], "interventions")
    hypotheses, events = parse_study(check(config), basis, SPEC, None)
    assert [h.name for h in hypotheses[:2]] == ["shift ica:14 by +3", "shift ica:14 by +3 always"]
    assert config.starts >= 200
    assert [h.event for h in hypotheses] == ["presses", "presses", ""]
    assert hypotheses[2].on == "prob:downright"
    assert {h.event for h in hypotheses if h.role} <= {e.name for e in events}
    other = cli.parse(InterventionsConfig, [f"--config={STUDY}", "--hypotheses", "collapse 14"], "interventions")
    assert other.hypotheses == ("collapse 14",) and other.events == config.events and other.starts == config.starts
