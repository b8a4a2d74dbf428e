"""Results and rollouts for other programs: ``python -m core.export RUN_DIR --out runs/export``.

- A result (what an analysis or a validation wrote) as tables, CSV or Parquet: ``scalars`` (value, unit, n, 95 %
  interval), each of its tables, and each array as ``array_NAME``, a row an entry of its first axis (of more than two
  axes: a row an entry, with its place).  ``units.csv`` has the unit of every column, which a Parquet column carries
  too, and the file of every table (what cannot be in a file's name is ``_``).
- Rollouts as a Minari dataset (its HDF5 layout, which minari up to 0.5.3 reads: ``MinariDataset("OUT/data")``).  Frames
  are kept exactly: where Minari itself would store them as JPEG, they are PNG, which it decodes by the same call.  And
  back: ``python -m agents.import_rollouts OUT --agent AGENT``, which computes what the agent made of them again.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m core.export", file=sys.stderr)
    sys.exit(2)

import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore
from core.files import csv_bytes, hdf5_file, writing
from core.progress import bar

STAGE = "export"
MINARI = "0.5.3"  # the layout's version: 0.6 is not read
IMAGE = 32  # pixels: smaller ones are no images to Minari
COUNTS = ("n", "steps", "episodes", "Jacobians", "samples", "pairs", "lives", "rows", "count")
UNITS = {
    **dict.fromkeys(COUNTS, "count"), "lag": "steps", "step": "steps", "t": "steps", "tick": "ticks", "r": "Pearson r",
    "r2": "R²", "d": "Cohen's d", "ari": "adjusted Rand index", "share": "share, 0 to 1", "unit": "",
}  # fmt: skip
# What a column's name ends in (or begins with), its unit.
ENDINGS = (
    (r"^(p|.*_p|p_.*)$", "p-value"),
    (r"^(q|.*_q|q_.*)$", "q-value (Benjamini-Hochberg)"),
    (r"_sd$", "standard deviations"),
    (r"_steps$", "steps"),
    (r"_nats$|^nats_", "nats"),
    (r"_s$|_seconds$", "s"),
    (r"_px$|_pixels$", "pixels"),
    (r"_r2$|^r2_", "R²"),
    (r"_share$|^share_", "share, 0 to 1"),
    (r"^n_|_n$|_count$", "count"),
)


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a result as CSV or Parquet, or rollouts as a Minari dataset."""

    directory: tyro.conf.Positional[Path] = Path("runs/hidden_states")
    """run directory of a result, or of rollouts"""
    to: Literal["auto", "csv", "parquet", "minari"] = "auto"
    """csv or parquet (needs pyarrow) of a result, minari of rollouts; auto: csv, or minari"""
    name: str = "dreamlens/rollouts-v0"
    """identifier of the Minari dataset, (namespace/)name-vNUMBER"""
    out: Path = Path("runs/export")
    """run directory to write"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def main(config: ExportConfig) -> None:
    inputs = artefacts.Inputs({"exported": config.directory})
    manifest = artefacts.read_manifest(config.directory)
    is_result, is_store = ((config.directory / name).exists() for name in ("result.json", "spec.json"))
    if not is_result and not (is_store and "source" in manifest["facts"]):
        raise UserError(f"{config.directory} ({manifest['stage']}) holds neither a result nor rollouts")
    to = ("csv" if is_result else "minari") if config.to == "auto" else config.to
    if (to == "minari") == is_result:
        kind = ("a result", "csv or parquet") if is_result else ("rollouts", "minari")
        raise UserError(f"--to {to}: {config.directory} holds {kind[0]}; use {kind[1]}")
    if not re.fullmatch(r"([-\w.]+/)*[-\w.]+-v\d+", config.name):
        raise UserError(f"--name {config.name}: as in dreamlens/coinrun-v0 (letters, digits, - _ . /, then -vNUMBER)")
    if to == "parquet":
        _pyarrow()
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"stage": manifest["stage"], "format": to}
        if to == "minari":
            with RolloutStore(config.directory) as store:
                write_minari(store, run.path / "data", config.name)
                said = f"{len(store)} episodes, {int(np.minimum(store.steps, store.rows).sum()):,} steps"
        else:
            tables = tables_of(Result.load(config.directory))
            write_tables(tables, run.path, to)
            said = f"{len(tables)} tables"
    print(f"exported {said} as {to}: {config.out}")


# Results


@dataclass(frozen=True)
class Table:
    """Columns of equal length and their units ("" where there is none)."""

    columns: Mapping[str, Sequence[Any] | np.ndarray]
    units: Mapping[str, str]


def unit_of(column: str) -> str:
    """The unit that a table's column has by its name; "" where the name alone says what it is."""
    if column in UNITS:
        return UNITS[column]
    return next((unit for pattern, unit in ENDINGS if re.search(pattern, column)), "")


def tables_of(result: Result) -> dict[str, Table]:
    """Scalars, tables and arrays of a result, by name."""
    names = ("name", "value", "unit", "n", "low", "high")
    rows = []
    for name, scalar in result.scalars.items():
        low, high = scalar.get("interval") or (None, None)
        rows.append((name, scalar["value"], scalar["unit"], scalar.get("n"), low, high))
    units = {"value": "see unit", "low": "see unit", "high": "see unit", "n": "count"}
    columns = list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in names]
    out = {"scalars": Table(dict(zip(names, columns, strict=True)), units)}
    for name, table in result.tables.items():
        keys = list(dict.fromkeys(k for row in table for k in row))
        found = {k: [row.get(k) for row in table] for k in keys}
        own = {k: unit_of(k) for k in keys}
        if "unit" in keys:  # a table that says it row by row
            own |= {k: "see unit" for k in ("value", "low", "high") if k in keys}
        out[name] = Table(found, own)
    for name, array in result.arrays.items():
        of = unit_of(name) or (
            str(result.notes["unit"]) if name.startswith("jacobian") and "unit" in result.notes else ""
        )
        out[f"array_{name}"] = _table_of(array, of)
    return out


def _table_of(array: np.ndarray, unit: str) -> Table:
    if array.ndim <= 1:
        columns = {"value": np.atleast_1d(array)}
    elif array.ndim == 2:
        columns = {str(i): column for i, column in enumerate(array.T)}
    else:
        places = np.indices(array.shape).reshape(array.ndim, -1)
        columns = {f"axis_{i}": place for i, place in enumerate(places)} | {"value": array.ravel()}
    return Table(columns, {name: "place" if name.startswith("axis_") else unit for name in columns})


def write_tables(tables: Mapping[str, Table], path: Path, to: str) -> None:
    """NAME.csv or NAME.parquet of every table, and units.csv, which says the file of every table."""
    files = file_names(list(tables))
    for name, table in tables.items():
        if to == "csv":
            _write_csv(path / f"{files[name]}.csv", list(table.columns), zip(*table.columns.values(), strict=True))
        else:
            _write_parquet(path / f"{files[name]}.parquet", table)
    rows = [
        (name, column, table.units.get(column, ""), f"{files[name]}.{to}")
        for name, table in tables.items() for column in table.columns
    ]  # fmt: skip
    _write_csv(path / "units.csv", ["table", "column", "unit", "file"], iter(rows))


def file_names(names: Sequence[str]) -> dict[str, str]:
    """Names of files for names of tables, of which some are paths and sentences: a run of what is neither letter,
    digit, + - . @ nor = becomes _, and a number is added where two would be one file."""
    out: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w+\-.@=]+", "_", name)[:200]
        same = (plain if i == 0 else f"{plain}_{i}" for i in itertools.count())
        taken = {file.lower() for file in out.values()}  # some disks do not tell A from a
        out[name] = next(file for file in same if file.lower() not in taken)
    return out


def _write_csv(path: Path, names: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    artefacts.write_atomically(path, csv_bytes(names, rows))


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped]
    except ImportError as error:
        raise UserError(f"--to parquet needs pyarrow ({error}): pip install 'pyarrow<20'; or use --to csv") from None
    return pyarrow


def _write_parquet(path: Path, table: Table) -> None:
    arrow = _pyarrow()
    arrays, fields = [], []
    for name, values in table.columns.items():
        kinds = {type(v) for v in values if v is not None} if isinstance(values, list) else set()  # an array has one
        if len(kinds) > 1:  # numbers are of one kind; a column of words and numbers is one of words
            one = float if kinds <= {int, float} else str
            values = [None if v is None else one(v) for v in values]
        array = arrow.array(values)
        arrays.append(array)
        fields.append(arrow.field(name, array.type, metadata={"unit": table.units.get(name, "")}))
    with writing(path) as file:
        arrow.parquet.write_table(arrow.table(arrays, schema=arrow.schema(fields)), file)


# Rollouts


def write_minari(store: RolloutStore, path: Path, name: str) -> None:
    """The episodes of a store in Minari's HDF5 layout: ``main_data.hdf5`` and ``metadata.json`` in a new folder."""
    path.mkdir()
    steps = 0
    whole = hdf5_file(path / "main_data.hdf5", track_order=True)
    with whole as (file, check), bar("exporting", len(store), "episodes") as progress:
        for i, episode in enumerate(store):
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"] = i, episode.steps
            _write_episode(group, episode, store.spec)
            check()
            steps += episode.steps
            progress.advance()
    obs = {k: _space(f) for k, f in store.spec.obs.items()}
    parts = store.spec.parts
    action = (
        {"type": "Discrete", "dtype": "int64", "start": 0, "n": parts[0]} if len(parts) == 1
        else {"type": "MultiDiscrete", "dtype": "int64", "nvec": list(parts), "start": [0] * len(parts)}
    )  # fmt: skip
    facts = store.manifest["facts"]
    meta = {
        "total_episodes": len(store), "total_steps": steps, "data_format": "hdf5", "dataset_id": name,
        "observation_space": json.dumps(obs[next(iter(obs))] if len(obs) == 1 else {"type": "Dict", "subspaces": obs}),
        "action_space": json.dumps(action), "minari_version": MINARI,
        "algorithm_name": f"agent {facts.get('agent', '')}",
        "description": f"{store.spec.env_id}, {facts['source']} rollouts recorded by Dreamlens; frames are PNG",
        "dreamlens": {"env_id": store.spec.env_id, "agent": facts.get("agent", "")},
        "author": [], "dataset_size": round((path / "main_data.hdf5").stat().st_size / 1e6, 1),
    }  # fmt: skip
    artefacts.write_atomically(path / "metadata.json", json.dumps(meta).encode())


def _is_image(field: Field) -> bool:
    """Whether Minari takes this for frames, which it decodes."""
    return field.dtype == "uint8" and len(field.shape) in (2, 3) and min(field.shape[:2]) >= IMAGE


def _space(field: Field) -> dict[str, Any]:
    """An observation as Minari writes a Gymnasium space."""
    whole = np.dtype(field.dtype).kind in "iu"
    low, high = (np.iinfo(field.dtype).min, np.iinfo(field.dtype).max) if whole else (-np.inf, np.inf)
    ends = {name: np.full(field.shape, end).tolist() for name, end in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": field.dtype, "shape": list(field.shape), **ends}


def _write_episode(group: Any, episode: Episode, spec: EnvSpec) -> None:
    whole = group if len(spec.obs) == 1 else group.create_group("observations")
    for name, field in spec.obs.items():
        key = "observations" if whole is group else name
        if _is_image(field):
            import h5py

            frames = whole.create_dataset(key, (len(episode.obs[name]),), h5py.vlen_dtype(np.uint8))
            for t, frame in enumerate(episode.obs[name]):
                frames[t] = np.frombuffer(_png(frame), np.uint8)
        else:
            whole.create_dataset(key, data=episode.obs[name], compression="gzip", compression_opts=1)
    last = np.arange(episode.steps) == episode.steps - 1
    group["actions"], group["rewards"] = episode.action, episode.reward
    group["terminations"], group["truncations"] = last & episode.terminated, last & episode.truncated


def _png(frame: np.ndarray) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(frame.squeeze(-1) if frame.shape[-1] == 1 else frame).save(data, "PNG", compress_level=1)
    return data.getvalue()


if __name__ == "__main__":
    cli.run(ExportConfig, main, STAGE)
