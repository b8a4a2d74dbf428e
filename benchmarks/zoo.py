"""Agent-steps per CPU-second of the zoo's policies: acting (encode, core, heads, sample) and learning (the same and the
backward pass; also with the encoder in bfloat16), with every game system and with movement and combat only.

``python benchmarks/zoo.py [SIZE]`` prints one table (SIZE 128); ratios are within this one run.  One thread and its CPU
time, so that busy neighbours count less.  Observations are synthetic: 5 of 32 entity rows, 2 of 12 items and 8 of 32
offers are filled, about what small maps show.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BATCHES = (128, 1024)
REPEATS = 7
TABLES = {"Entity": (32, 31, 5), "Inventory": (12, 16, 2), "Market": (32, 16, 8)}  # rows, columns, filled


def world(systems: str):  # type: ignore[no-untyped-def]
    """The EnvSpec of an nmmo world as envs/nmmo.py shows it."""
    from core.contracts import EnvSpec, Field

    parts = {"Attack.Style": 3, "Attack.Target": 33, "Move.Direction": 5}
    obs = {
        "Tile": Field(shape=(225, 3), dtype="int16"),
        "Entity": Field(shape=(32, 31), dtype="int16"),
        "Task": Field(shape=(22,), dtype="float16"),
        "Tick": Field(shape=(1,), dtype="int16"),
    }
    if systems == "all":
        items = ("Destroy", "Give", "Sell", "Use")
        parts |= {
            "Buy.MarketItem": 33,
            "Give.Target": 33,
            "GiveGold.Target": 33,
            "GiveGold.Price": 99,
            "Sell.Price": 99,
        }
        parts |= {f"{verb}.InventoryItem": 13 for verb in items}
        obs |= {n: Field(shape=TABLES[n][:2], dtype="int16") for n in ("Inventory", "Market")}
    names = tuple(f"{part} {i}" for part, n in parts.items() for i in range(n))
    obs["Mask"] = Field(shape=(len(names),), dtype="int8")
    return EnvSpec(env_id="nmmo", obs=obs, action_names=names, slots=1, action_parts=parts)


def shown(spec, batch: int):  # type: ignore[no-untyped-def]
    """Observations with as many filled rows as TABLES says."""
    import torch

    generator = torch.Generator().manual_seed(0)
    obs = {}
    for name, about in spec.obs.items():
        values = torch.randint(1, 16, (batch, *about.shape), generator=generator)
        if name in TABLES:
            values[:, TABLES[name][2] :] = 0
        obs[name] = values.to(getattr(torch, about.dtype))
    return obs


def best(run: Callable[[], object]) -> float:
    """CPU-seconds, the least of REPEATS after a warm-up."""
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return min(seconds[1:])


def rates(module: str, systems: str, batch: int, size: int) -> tuple[float, float, float]:
    """Agent-steps per CPU-second: acting, learning, learning with the encoder in bfloat16."""
    import torch

    from agents.policies import PolicyAgent, entropies, log_probs, sample
    from core.trees import floats

    spec = world(systems)
    agent = PolicyAgent(module, spec, size)
    obs, state, first = shown(spec, batch), agent.initial(batch), torch.zeros(batch, dtype=torch.bool)

    def forward(bf16: bool = False):  # type: ignore[no-untyped-def]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            seen = floats(agent.encode(obs))
        state_after = agent.advance(seen, state, first)
        return agent.heads(seen, state_after)

    @torch.no_grad()
    def act() -> None:
        sample(forward()[0], spec)

    def learn(bf16: bool) -> None:
        logits, value = forward(bf16)
        action = sample(logits.detach(), spec)
        (log_probs(logits, action, spec).sum() + entropies(logits, spec).sum() + value.sum()).backward()
        agent.zero_grad(set_to_none=True)

    return batch / best(act), batch / best(lambda: learn(False)), batch / best(lambda: learn(True))


def main() -> None:
    import torch

    from agents.policies import ZOO
    from core.config import tune_allocator

    tune_allocator()
    torch.set_num_threads(1)
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    print(f"{'policy':<11}{'systems':<9}{'batch':>6}{'acting/s':>10}{'learning/s':>12}{'bfloat16':>10}{'ratio':>7}")
    base = None
    for systems in ("core", "all"):
        for module in ZOO:
            for batch in BATCHES:
                act, learn, half = rates(module, systems, batch, size)
                base = base or learn
                print(
                    f"{module:<11}{systems:<9}{batch:>6}{act:>10,.0f}{learn:>12,.0f}{half:>10,.0f}{learn / base:>7.1f}"
                )


if __name__ == "__main__":
    main()
