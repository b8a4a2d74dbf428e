"""What the zoo's policies share: encoders of a Neural MMO observation, the recurrent core, the heads.

An observation is structured: ``Tile``, ``Entity``, ``Inventory``, ``Market``, ``Tick`` (int16), ``Task`` (float16),
``Mask`` (int8).  Each field has an encoder, their outputs are concatenated and projected to ``size``; a head for every
part of the action follows the core.  Inventory, market and task have an encoder only where the world shows them.

Rows of a table that hold nothing (id 0) are never computed, so a large empty market costs next to nothing.  A dead slot
shows zeros only; nothing here is NaN for it.

Axes beside core.contracts': K entity rows, I item rows, N filled rows of a batch, D key, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agents.networks import orthogonal
from core.contracts import EnvSpec, UserError
from envs.nmmo import COLUMN as ENTITY, MATERIALS as MATERIAL_NAMES

# Columns of Entity are envs.nmmo's; those of Inventory and Market (16) are as Neural MMO 2 gives them.
SKILLS = ("melee", "range", "mage", "fishing", "herbalism", "prospecting", "carving", "alchemy")
LEVELS, EXPERIENCES = slice(15, 31, 2), slice(16, 31, 2)  # of SKILLS
ENTITY_COLUMNS = len(ENTITY)
ITEM_NAMES = (
    "id", "type_id", "owner_id", "level", "capacity", "quantity", "melee_attack", "range_attack", "mage_attack",
    "melee_defense", "range_defense", "mage_defense", "health_restore", "resource_restore", "equipped", "listed_price",
)  # fmt: skip
ITEM = {name: i for i, name in enumerate(ITEM_NAMES)}
ATTACKS, DEFENSES = slice(6, 9), slice(9, 12)
ITEM_COLUMNS = 16
MATERIALS = len(MATERIAL_NAMES)
ITEM_TYPES = 32  # ids up to 17 are in use
NPC_TYPES = 5  # -1 immortal, 0 player, 1 passive, 2 neutral, 3 aggressive
IDS = 256  # players are 1, 2 ...; NPCs -1, -2 ...; taken modulo this, they share a row only in larger worlds
MASKED = -1e9

POINTERS = {"Target": "Entity", "InventoryItem": "Inventory", "MarketItem": "Market"}
"""Which table a part of the action points into, by the end of the part's name."""


class Seen(NamedTuple):
    """What the heads need of an observation beside h."""

    entities: Tensor  # keys [B, K, D]
    inventory: Tensor  # keys [B, I, D]; I is 0 where the world shows none
    market: Tensor  # keys [B, I, D], likewise
    mask: Tensor  # bool [B, A], what is allowed


def table_of(part: str) -> str | None:
    """The observation field whose rows a part of the action points at; None: its entries are fixed choices."""
    return next((field for end, field in POINTERS.items() if part.endswith(end)), None)


def side_of(spec: EnvSpec) -> int:
    """Edge of the square of tiles an agent sees."""
    return math.isqrt(spec.obs["Tile"].shape[0])


def check(spec: EnvSpec) -> None:
    """UserError unless the world is one that the zoo's encoders and heads read completely."""
    columns = {"Tile": 3, "Entity": ENTITY_COLUMNS, "Tick": 1, "Mask": spec.n_actions}
    columns |= {name: ITEM_COLUMNS for name in ("Inventory", "Market") if name in spec.obs}
    for name, want in columns.items():
        if name not in spec.obs:
            raise UserError(f"{spec.env_id} shows no {name}; the zoo's policies read Neural MMO's observations")
        if (have := spec.obs[name].shape[-1]) != want:
            raise UserError(f"{spec.env_id}: {name} has {have} columns, the zoo's policies read {want}")
    if side_of(spec) ** 2 != spec.obs["Tile"].shape[0] or spec.obs["Entity"].shape[0] < 2:
        raise UserError(f"{spec.env_id}: the zoo needs a square of tiles and at least two rows of entities")
    if not spec.action_parts or sum(spec.action_parts.values()) != spec.n_actions:
        raise UserError(f"{spec.env_id} has no multi-part actions; the zoo's policies are for worlds that do (nmmo)")
    for part, choices in spec.action_parts.items():
        table = table_of(part)
        if table is None:
            continue
        if table not in spec.obs:
            raise UserError(
                f"no head for action part {part!r}: it points at {table}, which {spec.env_id} does not show"
            )
        if choices - (rows := spec.obs[table].shape[0]) not in (0, 1):
            raise UserError(f"no head for action part {part!r}: {choices} choices for the {rows} rows of {table}")


class MaterialTiles(nn.Module):
    """Materials of the tiles in sight, [B, R, 3] -> what the last of ``layers`` gives; the first is a convolution.

    The embedding is folded into that convolution's kernel (both are linear) and the materials enter one-hot, so that no
    gradient need go below it: the same function, and a policy learns about a fifth faster.
    """

    def __init__(self, width: int, *layers: nn.Module) -> None:
        super().__init__()
        self.material = nn.Embedding(MATERIALS, width)
        self.convolve = nn.Sequential(*layers)

    def forward(self, tile_BR3: Tensor) -> Tensor:
        first = self.convolve[0]
        assert isinstance(first, nn.Conv2d)
        kernel = torch.einsum("ochw,kc->okhw", first.weight, self.material.weight)
        material = tile_BR3[:, :, 2].long().clamp(0, MATERIALS - 1)
        side = math.isqrt(material.shape[1])
        one_hot = torch.eye(MATERIALS, device=kernel.device, dtype=kernel.dtype)[material.unflatten(1, (side, side))]
        x = nn.functional.conv2d(one_hot.permute(0, 3, 1, 2), kernel, first.bias, first.stride, first.padding)  # type: ignore[arg-type]
        out: Tensor = self.convolve[1:](x)
        return out


class Dense(nn.Sequential):
    """Linear, ReLU; takes any number type and computes in its weights'."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x.to(self.get_parameter("0.weight").dtype))
        return out


def _spread(filled_N: Tensor, rows_NF: Tensor, batch: int, width: int) -> Tensor:
    """Put computed rows back to their places (flat index) in a table of zeros: [batch, width, F]."""
    empty = rows_NF.new_zeros(batch * width, rows_NF.shape[1])
    return empty.index_copy(0, filled_N, rows_NF).unflatten(0, (batch, width))


class EntityFeatures(nn.Module):
    """Rows of Entity -> features: scaled values, the position relative to one's own, and either the kind one-hot
    (``ids`` false) or embeddings of id, kind and attacker."""

    def __init__(self, size: int, ids: bool) -> None:
        super().__init__()
        width = max(4, size // 16)
        self.id = nn.Embedding(IDS, width) if ids else None
        self.attacker = nn.Embedding(IDS, width) if ids else None
        self.kind = nn.Embedding(NPC_TYPES, width) if ids else None
        self.features = 15 + 2 * len(SKILLS) + (3 * width if ids else NPC_TYPES)

    def forward(self, row_NC: Tensor, own_NC: Tensor, tick_N1: Tensor) -> Tensor:
        """int16 rows, the own row that belongs to each, the tick -> [N, F], magnitudes about 1."""
        c = ENTITY
        x, own = row_NC.float(), own_NC.float()
        fought = x[:, c["latest_combat_tick"], None]
        since = ((tick_N1.float() - fought) / 10).clamp(0, 1)
        same = [
            row_NC[:, [c["id"]]] > 0,
            row_NC[:, [c["id"]]] == own_NC[:, [c["attacker_id"]]],
            row_NC[:, [c["attacker_id"]]] == own_NC[:, [c["id"]]],
        ]
        grown = x[:, [c["time_alive"], c["gold"]]].clamp(min=0).log1p() / 7
        values = [
            (x[:, c["row"] : c["col"] + 1] - own[:, c["row"] : c["col"] + 1]) / 8,
            x[:, [c["damage"], c["item_level"]]] / 20,
            x[:, [c["freeze"]]] / 3,
            torch.where(fought > 0, since, 1.0),
            x[:, c["health"] : c["water"] + 1] / 100,
            x[:, LEVELS] / 10,
            x[:, EXPERIENCES].clamp(min=0).log1p() / 10,
            (fought > 0).float(),
            *(s.float() for s in same),
            grown,
        ]
        kind = row_NC[:, c["npc_type"]].long().clamp(-1, NPC_TYPES - 2) + 1
        if self.id is None or self.attacker is None or self.kind is None:
            return torch.cat([*values, nn.functional.one_hot(kind, NPC_TYPES).float()], 1)
        ids = row_NC[:, [c["id"], c["attacker_id"]]].long().remainder(IDS)
        return torch.cat([*values, self.kind(kind), self.id(ids[:, 0]), self.attacker(ids[:, 1])], 1)


class Entities(nn.Module):
    """Self and players: (own state [B, own], keys [B, K, D], pooled others [B, hidden] if ``pools``)."""

    def __init__(self, size: int, ids: bool, pools: bool) -> None:
        super().__init__()
        self.pools, self.hidden, self.own, self.key_size = pools, size // 2, size, size // 4
        self.features = EntityFeatures(size, ids)
        self.row = Dense(self.features.features, self.hidden)
        self.key = nn.Linear(self.hidden, self.key_size)
        self.self = Dense(self.features.features + 2, self.own)

    def forward(self, entity_BKC: Tensor, tick_B1: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        batch, width, _ = entity_BKC.shape
        own_BC = entity_BKC[:, 0]
        place_B2 = own_BC[:, ENTITY["row"] : ENTITY["col"] + 1].float() / 128
        own = self.self(torch.cat([self.features(own_BC, own_BC, tick_B1), place_B2], 1))
        filled = (entity_BKC[..., ENTITY["id"]] != 0).flatten().nonzero()[:, 0]
        slot = filled.div(width, rounding_mode="floor")
        hidden = self.row(self.features(entity_BKC.flatten(0, 1)[filled], own_BC[slot], tick_B1[slot]))
        keys = _spread(filled, self.key(hidden), batch, width)
        if not self.pools:
            return own, keys, None
        # After a ReLU nothing is below the zeros of empty rows, so they never win.
        return own, keys, _spread(filled, hidden, batch, width)[:, 1:].amax(1)


class Items(nn.Module):
    """The item encoder, shared by inventory and market: (mean and number of filled rows [B, hidden + 1], keys)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        width = max(4, size // 16)
        self.hidden, self.key_size = size // 4, max(8, size // 8)
        self.kind = nn.Embedding(ITEM_TYPES, width)
        self.row = Dense(width + 14, self.hidden)
        self.key = nn.Linear(self.hidden, self.key_size)

    def features(self, row_NC: Tensor, own_id_N: Tensor) -> Tensor:
        c, x = ITEM, row_NC.float()
        return torch.cat(
            [
                self.kind(row_NC[:, c["type_id"]].long().clamp(0, ITEM_TYPES - 1)),
                x[:, [c["level"], c["capacity"]]] / 10,
                x[:, [c["quantity"], c["listed_price"]]].clamp(min=0).log1p() / 5,
                x[:, ATTACKS.start : DEFENSES.stop] / 50,
                x[:, [c["health_restore"], c["resource_restore"]]] / 100,
                x[:, [c["equipped"]]],
                (row_NC[:, c["owner_id"]] == own_id_N)[:, None].float(),
            ],
            1,
        )

    def forward(self, items_BIC: Tensor, own_id_B: Tensor) -> tuple[Tensor, Tensor]:
        batch, width, _ = items_BIC.shape
        filled = (items_BIC[..., ITEM["id"]] != 0).flatten().nonzero()[:, 0]
        slot = filled.div(width, rounding_mode="floor")
        hidden = self.row(self.features(items_BIC.flatten(0, 1)[filled], own_id_B[slot]))
        keys = _spread(filled, self.key(hidden), batch, width)
        count = torch.bincount(slot, minlength=batch)[:, None].to(hidden.dtype)
        total = hidden.new_zeros(batch, self.hidden).index_add(0, slot, hidden)
        return torch.cat([total / count.clamp(min=1), count.log1p()], 1), keys


class Heads(nn.Module):
    """Masked logits of every part of the action, and the value.

    A part that points is a dot product of a query (from h) with the rows' keys, and with a learned key for its no-op;
    the others are linear.
    """

    def __init__(self, spec: EnvSpec, hidden_size: int, key_sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.parts = dict(spec.action_parts)
        tables = {part: table_of(part) for part in self.parts}
        self.tables = {part: table for part, table in tables.items() if table is not None}
        fixed = [self.parts[part] for part in self.parts if part not in self.tables]
        self.sizes = fixed
        self.linear = nn.Linear(hidden_size, sum(fixed))
        self.queries = nn.ModuleDict()
        self.no_op = nn.ParameterDict()
        for part, table in self.tables.items():
            name, width = part.replace(".", "_"), key_sizes[table]
            self.queries[name] = nn.Linear(hidden_size, width)
            if self.parts[part] > spec.obs[table].shape[0]:
                self.no_op[name] = nn.Parameter(torch.randn(width) / width**0.5)
        self.critic = nn.Linear(hidden_size, 1)
        # PPO's custom is 0.01; an LSTM's h is a fraction of 1, and with 0.01 the layers below learn nothing for long.
        orthogonal(self.linear, 0.1)
        orthogonal(self.queries, 0.1)
        orthogonal(self.critic, 1.0)

    def forward(self, h_BH: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        fixed = iter(self.linear(h_BH).split(self.sizes, 1))
        keys = {"Entity": seen.entities, "Inventory": seen.inventory, "Market": seen.market}
        logits = []
        for part in self.parts:
            if part not in self.tables:
                logits.append(next(fixed))
                continue
            name = part.replace(".", "_")
            query_BD = self.queries[name](h_BH)
            logits.append((keys[self.tables[part]].to(query_BD.dtype) @ query_BD[:, :, None])[:, :, 0])
            if name in self.no_op:
                logits.append(query_BD @ self.no_op[name][:, None])
        return torch.cat(logits, 1).masked_fill(~seen.mask, MASKED), self.critic(h_BH)[:, 0]


class ZooPolicy(nn.Module):
    """Encoders -> concat -> projection ``size`` -> (the core, elsewhere) -> heads.

    tiles: [B, R, 3] int16 -> [B, size].  ids, pools: see ``Entities``.  All widths are shares of ``size``.  The
    projection ends in LayerNorm and ReLU: features of free scale would saturate the core's gates.
    """

    def __init__(self, spec: EnvSpec, size: int, tiles: nn.Module, *, ids: bool, pools: bool) -> None:
        super().__init__()
        self.embedding_size = size
        self.tiles = tiles
        self.entities = Entities(size, ids, pools)
        inputs = size + self.entities.own
        if pools:
            self.pooled = Dense(self.entities.hidden, size // 2)
            inputs += size // 2
        tables = [name for name in ("Inventory", "Market") if name in spec.obs]
        self.items = Items(size) if tables else None
        if self.items is not None:
            self.bags = nn.ModuleDict({name: Dense(self.items.hidden + 1, size // 2) for name in tables})
            inputs += len(tables) * (size // 2)
        self.task = Dense(spec.obs["Task"].shape[0], size // 2) if "Task" in spec.obs else None
        inputs += 0 if self.task is None else size // 2
        self.project = nn.Sequential(nn.Linear(inputs, size), nn.LayerNorm(size), nn.ReLU())
        orthogonal(self)
        item_key = 0 if self.items is None else self.items.key_size
        keys = {"Entity": self.entities.key_size, "Inventory": item_key, "Market": item_key}
        self.heads = Heads(spec, size, keys)

    def encode(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Seen]:
        """Observation fields [B, ...] -> e [B, size] and what the heads need."""
        entity = obs["Entity"]
        own, keys, others = self.entities(entity, obs["Tick"])
        parts = [self.tiles(obs["Tile"]), own]
        if others is not None:
            parts.append(self.pooled(others))
        bags = {name: own.new_zeros(len(own), 0, 0) for name in ("Inventory", "Market")}
        if self.items is not None:
            for name, bag in self.bags.items():
                mean, bags[name] = self.items(obs[name], entity[:, 0, ENTITY["id"]])
                parts.append(bag(mean))
        if self.task is not None:
            parts.append(self.task(obs["Task"]))
        return self.project(torch.cat(parts, 1)), Seen(keys, bags["Inventory"], bags["Market"], obs["Mask"] != 0)

    def decode(self, h_BH: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """(logits [B, A] in the order of spec.action_parts, those not allowed -1e9; value [B])."""
        logits, value = self.heads(h_BH, seen)
        return logits, value


class LSTM(nn.Module):
    """``layers`` LSTM cells, one above the other (Hochreiter and Schmidhuber 1997), from plain operations: fused
    kernels refuse second derivatives and, in eval mode, sometimes the first.

    The state is [h, c] of each layer in turn; the output is the last layer's h, and the point ``cell`` its c.  The
    forget gate's bias starts at 1 (Jozefowicz et al. 2015).
    """

    def __init__(self, embedding_size: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.layers, self.hidden_size, self.state_size = layers, size, 2 * layers * size
        self.places = {"h": slice(-2 * size, -size), "cell": slice(-size, None)}
        inputs = [embedding_size] + [size] * (layers - 1)
        self.inputs = nn.ModuleList([nn.Linear(n, 4 * size) for n in inputs])
        self.recurrent = nn.ModuleList([nn.Linear(size, 4 * size, bias=False) for _ in inputs])
        with torch.no_grad():
            # Each gate is orthogonal by itself; all four as one matrix would halve every gate's input, and h of two
            # layers would start near 0.01.  An upper layer's input is an h, a fraction of 1.
            for i, (above, back) in enumerate(zip(self.inputs, self.recurrent, strict=True)):
                for gate_SE, gate_SS in zip(above.weight.chunk(4), back.weight.chunk(4), strict=True):  # type: ignore[operator]
                    nn.init.orthogonal_(gate_SE, 2.0 if i else 2**0.5)
                    nn.init.orthogonal_(gate_SS)
                above.bias.zero_()  # type: ignore[operator]
                above.bias[size : 2 * size] = 1.0  # type: ignore[index,operator]

    def extra_repr(self) -> str:
        return self.summary

    @property
    def summary(self) -> str:
        """What the core is, in words."""
        return f"LSTM, {self.layers} layer{'s' if self.layers > 1 else ''}, {self.hidden_size}"

    def initial(self, batch: int) -> Tensor:
        weight = self.inputs[0].weight
        return torch.zeros(batch, self.state_size, device=weight.device, dtype=weight.dtype)  # type: ignore[arg-type]

    def advance(self, e_BE: Tensor, state_BS: Tensor, is_first_B: Tensor) -> tuple[Tensor, Tensor]:
        """(h_BH, next state_BS); where is_first (bool [B]) the previous state counts as the initial one."""
        before = torch.where(is_first_B[:, None], 0.0, state_BS).chunk(2 * self.layers, 1)
        x, after = e_BE, []
        for i, (inputs, recurrent) in enumerate(zip(self.inputs, self.recurrent, strict=True)):
            h, c = before[2 * i], before[2 * i + 1]
            into, forget, new, out = (inputs(x) + recurrent(h)).chunk(4, 1)
            c = forget.sigmoid() * c + into.sigmoid() * new.tanh()
            x = out.sigmoid() * c.tanh()
            after += [x, c]
        return x, torch.cat(after, 1)
