"""How large and how quick the panel's page is at the size that it is made for: ``python benchmarks/panel.py [OUT]``.

A made-up page of 4,000 samples with 16 directions over 11 steps, 200 of them with frames, real frames and saliency of
18 quantities (Gaussian blobs on noise, like gradients' maps), written by the panel's own writer as one file and opened
in the system's Chromium from disk.  Prints the size, the time to the first frame, of a filter, of drawing a step.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from analysis.saliency import maps  # noqa: E402
from core.figures import NEGATIVE, POSITIVE, REAL, SIMULATED  # noqa: E402
from core.pages import bytes_of, sheet  # noqa: E402
from validation.panel.contents import COLUMNS, SHADES, Block, levels  # noqa: E402
from validation.panel.first import views_of  # noqa: E402
from validation.panel.page import PAGE, View, write  # noqa: E402

N, T, K, FRAMED, BASE = 4000, 11, 16, 200, 3000
SIDE, TARGET = 64, 4
QUANTITIES = {"action": "nats", "value": "return", **{f"ica:{k}": "coordinate" for k in range(K)}}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def course(rng: np.random.Generator, about: dict[str, Any], basis: dict[str, Any], name: str) -> list[Block]:
    """A recording's arrays; the scale of its coordinates is put into ``basis``."""
    c = rng.normal(size=(N, T, K)).cumsum(1).astype(np.float32) / 2
    stored, basis[name] = levels(c)
    about |= {"steps": [T] * N, "T": T, "actions": ["left", "none", "right"], "choices": ["left", "none", "right"],
              "events": ["death"], "taken": [0, 1, 2],
              "return": [float(x) for x in rng.integers(0, 11, N)]}  # fmt: skip
    arrays = {
        "value": rng.normal(5, 1, (N, T)).astype(np.float32), "reward": np.zeros((N, T), np.float32),
        "action": rng.integers(0, 3, (N, T)).astype(np.int16), "label": rng.integers(0, 8, (N, T)).astype(np.int16),
        "event": (rng.random((N, T, 1)) < 0.02).astype(np.uint8),
        "prob": rng.integers(0, 251, (N, T, 3)).astype(np.uint8), "c:ica": stored,
    }  # fmt: skip
    return [Block(f"{name}:{key}", bytes_of(x)) for key, x in arrays.items()]


def frames(rng: np.random.Generator) -> np.ndarray:
    """Like the game's: flat blocks and a little noise that moves."""
    blocks = rng.integers(0, 256, (8, 8, 3)).repeat(8, 0).repeat(8, 1)
    return np.stack([np.roll(blocks, 3 * t, 1) + rng.integers(-6, 7, (SIDE, SIDE, 3)) for t in range(T)]).clip(0, 255)


def gradient_maps(rng: np.random.Generator, parts: int) -> bytes:
    """Heavy-tailed, strongest near one place, as gradients by frames are."""
    y, x = np.mgrid[:SIDE, :SIDE]
    out = []
    for _ in range(parts):
        where = rng.uniform(8, 56, 2)
        near = np.exp(-((x - where[0]) ** 2 + (y - where[1]) ** 2) / 200) + 0.05
        out.append(rng.standard_t(3, (TARGET + 1, SIDE, SIDE)) * near)
    stored, _ = maps.quantised(np.stack(out).astype(np.float32), SHADES)
    return stored.tobytes()


def page_of(rng: np.random.Generator) -> tuple[dict[str, Any], Iterator[Block]]:
    """Facts and blocks of the page."""
    ids = list(range(N))
    parts = [f"whole/{q}" for q in QUANTITIES] + ["agent_only/action", "agent_only/value"]
    samples: dict[str, Any] = {"ids": ids}
    basis: dict[str, Any] = {"names": [f"ica:{k}" for k in range(K)], "gradients": [[0.0, 1e-4]] * len(QUANTITIES)}
    real: dict[str, Any] = {"start": [[i, 0] for i in ids]}
    arrays = course(rng, samples, basis, "samples") + course(rng, real, basis, "real")
    base, basis["base"] = levels(rng.normal(size=(BASE, K)).astype(np.float32))
    arrays += [
        Block("base:c:ica", bytes_of(base)),
        Block("base:label", bytes_of(rng.integers(0, 8, BASE).astype(np.int16))),
    ]
    slopes = rng.integers(-32767, 32768, (len(QUANTITIES), FRAMED, T, K)).astype(np.int16)
    arrays.append(Block("gradients:ica", bytes_of(slopes)))
    facts = {
        "missing": {}, "commands": {}, "only": [], "view": "", "films": [], "samples": samples, "real": real,
        "bases": {"ica": basis},
        "behaviours": [{"id": b, "name": f"behaviour {b}", "colour": f"#{40 + 20 * b:02x}60a0"} for b in range(8)],
        "base": {"n": BASE},
        "frames": {"ids": ids[:FRAMED], "columns": 16, "height": SIDE, "width": SIDE},
        "colours": {"real": REAL, "simulated": SIMULATED, "raises": POSITIVE, "lowers": NEGATIVE},
        "saliency": {
            "ids": ids[:FRAMED], "quantities": QUANTITIES, "target": TARGET, "steps": TARGET + 1, "parts": parts,
            "shades": SHADES, "shape": [SIDE, SIDE], "scale": {part: [0.01] * FRAMED for part in parts}, "means": {},
            "y": {q: [0.0] * FRAMED for q in QUANTITIES}, "norm": {q: [[1.0] * 3] * FRAMED for q in QUANTITIES},
        },
    }  # fmt: skip

    def stream() -> Iterator[Block]:
        for i in range(FRAMED):
            yield Block(f"frames:{i}", sheet(frames(rng).astype(np.uint8), COLUMNS), False)
            if i == 0:
                yield from arrays
            yield Block(f"real:{i}", sheet(frames(rng).astype(np.uint8), COLUMNS), False)
            yield Block(f"maps:{i}", gradient_maps(rng, len(parts)))

    return facts, stream()


MEASURE = """async () => {
  const times = [], draw = [], middle = list => list.sort((a, b) => a - b)[Math.floor(list.length / 2)];
  for (let i = 0; i < 12; i++) {  // matching, what the bounds could be, and the list of what was found
    bounds = new Map([[i % 16, { v: [-1 + i / 20, 2] }], [(i + 3) % 16, { v: [null, 1] }]]);
    const at = performance.now(); refilter(); times.push(performance.now() - at);
    await new Promise(done => requestAnimationFrame(done));
  }
  bounds.clear(); refilter();
  for (let i = 0; i < 40; i++) {
    state.t = i % 11;
    const at = performance.now(); await drawSample(); draw.push(performance.now() - at);
    await new Promise(done => requestAnimationFrame(done));
  }
  let shown = 0;  // as many steps as the browser can show, one after the other
  const began = performance.now();
  while (performance.now() - began < 3000) { state.t = ++shown % 11; await drawSample(); await new Promise(done => requestAnimationFrame(done)); }
  return { filter: middle(times), filter_most: times[times.length - 1], draw: middle(draw), draw_most: draw[Math.floor(.9 * draw.length)], rate: 1000 * shown / (performance.now() - began) };
}"""  # noqa: E501


def main(out: Path) -> None:
    began = time.perf_counter()
    facts, blocks = page_of(np.random.default_rng(0))
    size = write(out, "A page of full size", [View("answer", "Answer", "<p>x</p>"), *views_of()], facts, blocks, True)
    print(f"written in {time.perf_counter() - began:.0f} s: {size / 1e6:.1f} MB in one file")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        print("no Chromium on PATH: times are not measured")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(3):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(f"{(out / PAGE).as_uri()}#view=samples", wait_until="commit")
            while not tab.evaluate("document.documentElement?.dataset.first ?? ''"):
                tab.wait_for_timeout(20)
            first = float(tab.evaluate("document.documentElement.dataset.first"))
            while tab.evaluate("document.documentElement.dataset.ready ?? ''") != "samples":
                tab.wait_for_timeout(20)
            ready = tab.evaluate("performance.now()")
            found = tab.evaluate(MEASURE)
            print(
                f"first frame {first:.0f} ms, all there {ready:.0f} ms; a filter over {N:,} samples "
                f"{found['filter']:.0f} ms (most {found['filter_most']:.0f}); a step drawn in {found['draw']:.1f} ms "
                f"(of ten, one in more than {found['draw_most']:.0f}), {found['rate']:.0f} steps/s on the screen"
            )
            tab.close()
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
