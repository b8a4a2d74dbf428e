"""The study in docs/ is one that the stage reads, on a basis and a world like the demo's."""

from pathlib import Path

import torch

from core import config as cli
from core.contracts import EnvSpec
from core.directions import Basis
from core.when import Rule
from validation.interventions.__main__ import InterventionsConfig, check
from validation.interventions.options import parse_study

STUDY = Path(__file__).parents[2] / "docs" / "study.json"
SPEC = EnvSpec(env_id="procgen/coinrun", obs={}, slots=1, events={"death": "ended and reward <= 0"}, action_names=(
    "downleft", "left", "upleft", "down", "none", "up", "downright", "right", "upright", "key_d", "key_a", "key_w",
    "key_s", "key_q", "key_e",
))  # fmt: skip


def test_the_study_in_docs_is_read_and_flags_override_it():
    eye = torch.eye(16)
    basis = Basis("ica", torch.zeros(16), torch.ones(16), eye, eye)
    config = cli.parse(InterventionsConfig, [f"--config={STUDY}"], "interventions")
    options = check(config)
    rule = Rule(torch.zeros(16, 8), torch.zeros(8), torch.arange(8))
    hypotheses, events = parse_study(options, basis, SPEC, rule)
    assert [h.name for h in hypotheses[:2]] == ["collapse ica:1 always", "shift ica:9 by +3 always"]
    assert config.starts >= 192 and options.start_when == ("ica:1 above 5",)
    assert [h.event for h in hypotheses] == ["death", "death", "death", ""] and hypotheses[3].on == "value"
    assert {h.event for h in hypotheses if h.role} <= {e.name for e in events}
    again = [f"--config={STUDY}", "--start_when", "--hypotheses", "collapse 14"]
    other = cli.parse(InterventionsConfig, again, "interventions")
    assert other.hypotheses == ("collapse 14",) and other.start_when == () and other.starts == config.starts
