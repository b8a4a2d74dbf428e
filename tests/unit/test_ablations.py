"""The table of ablations: differences of simulators on the same windows, with intervals over episodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ablations import HORIZONS, PARTS, WHOLE, differences, main, markdown

EPISODES, EACH = 40, 2


def measured(seed: int, part: str, factor: float = 1.0, agree: float = 0.6) -> dict[str, object]:
    """What ``measure`` writes, of a simulator whose squared errors are ``factor`` times those of the whole one."""
    easy = np.random.default_rng(7).gamma(2.0, 0.01, (EPISODES * EACH, len(HORIZONS)))  # windows differ alike for all
    rng = np.random.default_rng([seed, len(part)])
    seen = np.ones(easy.shape, bool)
    seen[:5, -1] = False
    return {
        "part": part, "seed": seed, "episode": np.repeat(np.arange(EPISODES), EACH).tolist(), "seen": seen.tolist(),
        "updates": 100, "training_s": 1.0,
        "values": {"squared error": (factor * easy * rng.lognormal(0, 0.1, easy.shape)).tolist(),
                   "similarity": (0.8 + 0.01 * rng.normal(size=easy.shape)).tolist(),
                   "same action": (rng.random(easy.shape) < agree).astype(float).tolist(),
                   "hidden error": (0.3 + 0.01 * rng.normal(size=easy.shape)).tolist()},
    }  # fmt: skip


def test_a_part_that_halves_the_error_is_worth_three_decibels() -> None:
    whole = [measured(s, WHOLE, 0.5, 0.7) for s in (1, 2)]
    found = differences(whole, [measured(s, "without", 1.0, 0.4) for s in (1, 2)])
    for k in HORIZONS:
        value, low, high, each = found["PSNR, dB", k]
        assert (
            low < -10 * np.log10(2) < high and high - low < 0.5 and len(each) == 2 and np.isclose(np.mean(each), value)
        )
        assert found["same action", k][2] < 0
        assert found["SSIM", k][1] < 0 < found["SSIM", k][2]


def test_a_part_that_does_nothing_is_said_to_be_worth_nothing() -> None:
    """In 95 % of cases: windows of an episode go together, and both simulators are shown the same."""
    covered = []
    for i in range(200):
        whole, other = ([measured(1000 * j + i, name)] for j, name in ((1, WHOLE), (2, "none")))
        low, high = differences(whole, other)["PSNR, dB", 1][1:3]
        covered.append(low <= 0 <= high)
    assert 0.9 < np.mean(covered) <= 1


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = list(PARTS)[1]
    for seed in (1, 2):
        for name in (WHOLE, part):
            (tmp_path / f"{name}_{seed}.json").write_text(json.dumps(measured(seed, name)))
    (tmp_path / "without_3.json").write_text(json.dumps(measured(3, part)))  # its whole is not there yet
    main(["table", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.strip() == markdown(tmp_path).strip()
    assert (
        said.count("\n| ") == 2
        and "| whole | 100, 100 | " in said
        and f"| {part} | 100, 100" in said
        and "seeds 1, 2" in said
        and "over 40" in said
    )
    assert "every action is held" not in said
    places = [[True] * len(HORIZONS)] * 12
    for seed in (1, 2):  # what was measured of held actions is a table of its own
        for name, chance in ((WHOLE, 0.9), (part, 0.1)):
            values = {name: [[x] * len(HORIZONS)] * 12 for name, x in (("recognised", chance), ("squared error", 0.01))}
            held = {"episode": list(range(12)), "seen": places, "values": values}
            (tmp_path / f"{name}_{seed}.json").write_text(json.dumps({**measured(seed, name), "held": held}))
    _, held_table = markdown(tmp_path).split("every action is held")
    assert "from 12 places" in held_table and held_table.count("-0.800 [-0.800, -0.800]") == 3
    (tmp_path / "alone").mkdir()
    with pytest.raises(SystemExit, match="no measures of the whole preset"):
        main(["table", str(tmp_path / "alone")])


def test_measures_on_other_windows_are_refused(tmp_path: Path) -> None:
    whole, other = measured(1, WHOLE), measured(1, list(PARTS)[1])
    other["episode"] = list(reversed(whole["episode"]))  # type: ignore[call-overload]
    for name, run in ((WHOLE, whole), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(run))
    with pytest.raises(SystemExit, match=f"{list(PARTS)[1].split(' (')[0]}.*other windows"):
        markdown(tmp_path)


def test_the_page_has_the_table_of_what_is_measured() -> None:
    here = Path(__file__).resolve().parents[2] / "benchmarks"
    for measured_in in ("ablations", "ablations_full"):
        assert markdown(here / "measured" / measured_in) in (here / "ablations.md").read_text()
