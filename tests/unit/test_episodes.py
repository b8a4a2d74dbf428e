"""The rollout store gives back what was put in, byte for byte, and refuses what is not whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from core.artefacts import Run, new_run, write_json
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter, is_transition

SPEC = EnvSpec(
    env_id="test/world", obs={"frames": Field(shape=(4, 4, 3), dtype="uint8")}, action_names=("a", "b", "c"), slots=1
)


def episode(seed: int, steps: int, *, final_known: bool, terminated: bool, latent: bool = False) -> Episode:
    """Every number tells where it belongs: value = 1000 * seed + t."""
    rng = np.random.default_rng(seed)
    rows = steps + final_known
    return Episode(
        obs={"frames": rng.integers(256, size=(rows, 4, 4, 3), dtype=np.uint8)},
        h=rng.normal(size=(rows, 5)).astype(np.float32),
        value=(1000 * seed + np.arange(rows)).astype(np.float32),
        action=rng.integers(3, size=steps),
        logits=rng.normal(size=(steps, 3)).astype(np.float32),
        reward=(1000 * seed + np.arange(steps)).astype(np.float32),
        terminated=terminated,
        truncated=not terminated,
        truth={"level": np.full(rows, seed, np.int64)},
        world={"d": rng.normal(size=(rows, 2)).astype(np.float32)},
        latent=rng.normal(size=3).astype(np.float32) if latent else None,
        meta={"seed": seed, "name": f"épisode {seed}"},
    )


def with_state(e: Episode) -> Episode:
    """The same with an agent's state that is more than h."""
    return replace(e, state=np.concatenate([e.h, 2 * e.h], 1))


def write(path: Path, episodes: Sequence[Episode], shard_steps: int = 16_384) -> Path:
    with new_run(path, "test", {"seed": 0}) as run:
        write_json(run.path / "spec.json", SPEC.to_json())
        with StoreWriter(run.path, shard_steps=shard_steps) as writer:
            for e in episodes:
                writer.add(e)
    return path


def same(a: Episode, b: Episode) -> None:
    assert a.columns().keys() == b.columns().keys()
    for name, array in a.columns().items():
        other = b.columns()[name]
        assert array.dtype == other.dtype and array.shape == other.shape and array.tobytes() == other.tobytes()
    assert (a.terminated, a.truncated, dict(a.meta)) == (b.terminated, b.truncated, dict(b.meta))
    assert a.final_known == b.final_known and (a.latent is None) == (b.latent is None)
    if a.latent is not None and b.latent is not None:
        assert a.latent.tobytes() == b.latent.tobytes()


shapes = st.lists(st.tuples(st.integers(1, 70), st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(shapes, st.booleans(), st.sampled_from([1, 40, 10_000]))
@settings(max_examples=25, deadline=None)
def test_round_trip_is_byte_exact(shape: list[tuple[int, bool, bool]], latent: bool, shard_steps: int) -> None:
    episodes = [
        episode(i, steps, final_known=known, terminated=ended, latent=latent)
        for i, (steps, known, ended) in enumerate(shape)
    ]
    with (
        tempfile.TemporaryDirectory() as directory,
        RolloutStore(write(Path(directory) / "store", episodes, shard_steps)) as store,
    ):
        assert len(store) == len(episodes) and store.spec == SPEC
        assert store.steps.tolist() == [e.steps for e in episodes]
        for before, after in zip(episodes, store, strict=True):
            same(before, after)
        store.preload("value", "action", "obs/frames")
        for before, after in zip(episodes, store, strict=True):
            same(before, after)
        if latent:
            np.testing.assert_array_equal(store.latents(), np.stack([e.latent for e in episodes]))
        else:
            with pytest.raises(UserError, match="no latents"):
                store.latents()


def test_the_whole_state_is_kept_where_there_is_one(tmp_path: Path) -> None:
    plain = [
        episode(i, steps, final_known=known, terminated=True)
        for i, (steps, known) in enumerate(((5, True), (9, False)))
    ]
    whole = [with_state(e) for e in plain]
    for name, episodes in (("plain", plain), ("whole", whole)):
        with RolloutStore(write(tmp_path / name, episodes)) as store:
            assert ("state" in store.column_names) == (name == "whole")
            for before, after in zip(episodes, store, strict=True):
                same(before, after)
    assert not is_transition("state")
    with pytest.raises(ValueError, match="state has 4 rows, h has 6"):
        replace(plain[0], state=plain[0].h[:4])
    with pytest.raises(ValueError, match="episode columns differ from the store's: .*state"):
        write(tmp_path / "mixed", [plain[0], whole[1]])


@given(shapes, st.integers(1, 12), st.integers(1, 12), st.booleans())
@settings(max_examples=25, deadline=None)
def test_windows_never_cross_episodes(
    shape: list[tuple[int, bool, bool]], length: int, at_least: int, preload: bool
) -> None:
    at_least = min(at_least, length)
    episodes = [episode(i + 1, s, final_known=k, terminated=e) for i, (s, k, e) in enumerate(shape)]
    longest = max(len(e.h) for e in episodes)
    with (
        tempfile.TemporaryDirectory() as directory,
        RolloutStore(write(Path(directory) / "store", episodes, shard_steps=60)) as store,
    ):
        names = ["value", "reward", "truth/level", "obs/frames", "logits"]
        if preload:
            store.preload(*names)
        if longest < at_least:
            with pytest.raises(UserError, match="no episode has"):
                store.windows(names, length, 40, np.random.default_rng(0), at_least=at_least)
            return
        w = next(store.windows(names, length, 40, np.random.default_rng(0), at_least=at_least))
        assert w["obs/frames"].shape == (40, length, 4, 4, 3)
        for b, (e, t) in enumerate(w.index):
            ep, rows = episodes[e], len(episodes[e].h)
            assert t + at_least <= rows
            for i in range(length):
                assert w.seen[b, i] == (t + i < rows) and w.acted[b, i] == (t + i < ep.steps)
                assert w.terminated[b, i] == (ep.terminated and t + i == ep.steps - 1)
                for name, array in ep.columns().items():
                    if name in names:
                        exists = w.acted[b, i] if is_transition(name) else w.seen[b, i]
                        np.testing.assert_array_equal(w[name][b, i], array[t + i] if exists else 0)


def test_window_starts_are_all_and_only_the_possible_ones(tmp_path: Path) -> None:
    sizes = [(3, True), (5, False), (9, True)]
    episodes = [episode(i, s, final_known=k, terminated=False) for i, (s, k) in enumerate(sizes)]
    store = RolloutStore(write(tmp_path / "s", episodes))
    want = [[e, t] for e, (s, k) in enumerate(sizes) for t in range(s + k) if t + 5 <= s + k]
    assert store.window_starts(5).tolist() == want
    assert store.window_starts(5, episodes=[2]).tolist() == [x for x in want if x[0] == 2]
    with pytest.raises(UserError, match=r"no episode has 11 observations \(the longest has 10\)"):
        store.window_starts(11)
    ends = RolloutStore(write(tmp_path / "ends", [episode(3, 1, final_known=True, terminated=True)]))
    with pytest.raises(UserError, match=r"no episode has 2 observations that it goes on after \(the longest has 1\)"):
        ends.window_starts(2, going_on=True)


def test_pooled_rows_have_an_observation_and_a_transition(tmp_path: Path) -> None:
    episodes = [
        episode(0, 6, final_known=True, terminated=False),
        episode(1, 2, final_known=True, terminated=False),
        episode(2, 5, final_known=False, terminated=True),
    ]
    store = RolloutStore(write(tmp_path / "s", episodes, shard_steps=7))
    columns, index = store.pooled("value", "reward", "h", first=2)
    assert index.tolist() == [[0, 2], [0, 3], [0, 4], [0, 5], [2, 2], [2, 3], [2, 4]]
    np.testing.assert_array_equal(columns["value"], 1000 * index[:, 0] + index[:, 1])
    np.testing.assert_array_equal(columns["reward"], columns["value"])
    _, only = store.pooled("value", episodes=[1])
    assert only.tolist() == [[1, 0], [1, 1]]
    with pytest.raises(UserError, match="longer than 6 steps"):
        store.pooled("value", first=6)


def test_wrong_names_and_numbers_are_user_errors(tmp_path: Path) -> None:
    store = RolloutStore(write(tmp_path / "s", [episode(0, 4, final_known=True, terminated=True)]))
    with pytest.raises(UserError, match="episode 1 is out of range; it holds 1"):
        store.episode(1)
    with pytest.raises(UserError, match="no column 'obs/frame'"):
        store.pooled("obs/frame")


def test_half_written_directory_is_refused(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_run(tmp_path / "s", "test", {}) as run:
            write_json(run.path / "spec.json", SPEC.to_json())
            with StoreWriter(run.path, shard_steps=5) as writer:
                writer.add(episode(0, 9, final_known=True, terminated=True))
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "s").glob("*.h5"))  # the payload is there, the manifest is not
    with pytest.raises(UserError, match="half-written"):
        RolloutStore(tmp_path / "s")
    with pytest.raises(UserError, match="no such run directory"):
        RolloutStore(tmp_path / "nowhere")


def test_a_directory_without_rollouts_is_refused(tmp_path: Path) -> None:
    with new_run(tmp_path / "s", "train", {}):
        pass
    with pytest.raises(UserError, match="holds no rollouts .*'train' wrote it"):
        RolloutStore(tmp_path / "s")


def test_a_failed_writer_leaves_no_partial_shard(tmp_path: Path) -> None:
    def fails() -> None:
        with StoreWriter(tmp_path) as writer:
            writer.add(episode(0, 3, final_known=True, terminated=True))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fails()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.95])
def test_truncated_shard_is_a_user_error(tmp_path: Path, keep: float) -> None:
    path = write(tmp_path / "s", [episode(i, 40, final_known=True, terminated=True) for i in range(4)], shard_steps=60)
    shard = sorted(path.glob("*.h5"))[1]
    data = shard.read_bytes()
    shard.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(UserError, match=f"{shard.name}.*truncated or broken.*record it again") as error:
        RolloutStore(path)
    assert "\n" not in str(error.value)


def test_missing_shard_is_a_user_error(tmp_path: Path) -> None:
    path = write(tmp_path / "s", [episode(i, 40, final_known=True, terminated=True) for i in range(4)], shard_steps=60)
    sorted(path.glob("*.h5"))[1].unlink()
    with pytest.raises(UserError, match="shard_00001.h5.*missing"):
        RolloutStore(path)


@pytest.mark.parametrize("name", ["h", "value", "logits", "reward", "world/d"])
def test_nan_is_found_wherever_it_is_read(tmp_path: Path, name: str) -> None:
    """The message names file, episode, column and place; labels of the world may be unknown."""
    episodes = [episode(i, 6, final_known=True, terminated=False, latent=True) for i in range(3)]
    episodes[0].truth["level"] = np.full(7, np.nan)  # type: ignore[index]
    for e in episodes[1:]:
        e.truth["level"] = np.zeros(7)  # type: ignore[index]
    episodes[1].columns()[name][4] = np.inf
    with RolloutStore(write(tmp_path / "store", episodes)) as store:
        store.pooled("truth/level", "h", episodes=[0, 2])
        said = rf"shard_00000.h5: episode 1 has NaN or infinite values in '{name}' \(the first: step 4"
        for read in (
            lambda: store.pooled(name),
            lambda: store.episode(1),
            lambda: store.read_windows([name], np.array([[1, 2]]), 3),
        ):
            with pytest.raises(UserError, match=said):
                read()
        store.read_windows([name], np.array([[1, 0]]), 4)  # the rows before it are whole
        store.preload(name)
        with pytest.raises(UserError, match=said):
            store.pooled(name)


def test_a_latent_that_is_no_number_is_found(tmp_path: Path) -> None:
    episodes = [episode(i, 6, final_known=True, terminated=False, latent=True) for i in range(3)]
    episodes[2].latent[1] = np.nan  # type: ignore[index]
    with RolloutStore(write(tmp_path / "store", episodes)) as store:
        assert store.latents([0, 1]).shape == (2, 3)
        for read in (lambda: store.latents([1, 2]), lambda: store.episode(2)):
            with pytest.raises(UserError, match="episode 2 started from a latent with NaN"):
                read()


def test_broken_chunk_is_a_user_error(tmp_path: Path) -> None:
    path = write(tmp_path / "s", [episode(0, 64, final_known=True, terminated=True)])
    shard = next(path.glob("*.h5"))
    with h5py.File(shard) as file:
        place = file["columns/obs/frames"].id.get_chunk_info(0)
    data = bytearray(shard.read_bytes())
    data[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    shard.write_bytes(data)
    with RolloutStore(path) as store, pytest.raises(UserError, match="broken"):
        store.episode(0)


def test_episodes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = episode(0, 4, final_known=True, terminated=True)
    fields = dict(vars(good))
    with pytest.raises(ValueError, match="h has 5 rows for 2 transitions"):
        Episode(**{**fields, "action": good.action[:2]})
    with pytest.raises(ValueError, match="logits has 3 rows"):
        Episode(**{**fields, "logits": good.logits[:3]})
    with pytest.raises(ValueError, match="value has 4 rows, h has 5"):
        Episode(**{**fields, "value": good.value[:4]})
    with StoreWriter(tmp_path) as writer:
        writer.add(good)
        with pytest.raises(ValueError, match="columns differ"):
            writer.add(Episode(**{**fields, "world": {}}))
        with pytest.raises(ValueError, match="columns differ"):
            writer.add(Episode(**{**fields, "latent": np.zeros(2, np.float32)}))


def test_one_writer_a_prefix(tmp_path: Path) -> None:
    with new_run(tmp_path / "s", "test", {}) as run:
        write_json(run.path / "spec.json", SPEC.to_json())
        with StoreWriter(run.path, prefix="a") as a, StoreWriter(run.path, prefix="b") as b:
            for i in range(3):
                (a, b)[i % 2].add(episode(i, 4, final_known=True, terminated=True))
    seeds = [e.meta["seed"] for e in RolloutStore(tmp_path / "s")]
    assert seeds == [0, 2, 1]


# A flipped bit is found, or changes no value


def values_of(path: Path) -> list[object]:
    """Everything that a store gives, by every way of reading."""
    with RolloutStore(path) as store:
        episodes = [
            (
                {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in e.columns().items()},
                e.terminated, e.truncated, dict(e.meta), None if e.latent is None else e.latent.tobytes(),
            )
            for e in store
        ]  # fmt: skip
        names = store.column_names
        whole = [store._rows(i, n, 0, None).tobytes() for i in range(len(store._shards)) for n in names]
        return [episodes, names, whole, store.latents().tobytes(), store.steps.tolist(), store.rows.tolist()]


def regions(shard: Path) -> dict[str, list[int]]:
    """Offsets of a shard's bytes: the chunks of every dataset, and all else (metadata)."""
    out: dict[str, list[int]] = {}
    with h5py.File(shard) as file:

        def add(name: str, found: object) -> None:
            if isinstance(found, h5py.Dataset):
                chunks = [found.id.get_chunk_info(i) for i in range(found.id.get_num_chunks())]
                assert chunks, f"{name} is not in chunks: it would have no checksum"
                out[name] = [c.byte_offset + i for c in chunks for i in range(c.size)]

        file.visititems(add)
    taken = {i for offsets in out.values() for i in offsets}
    out["metadata"] = [i for i in range(shard.stat().st_size) if i not in taken]
    return out


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of simulated episodes; some chunks are noise, which does not compress."""
    episodes = [episode(i, 3 + 30 * i, final_known=True, terminated=bool(i % 2), latent=True) for i in range(4)]
    return write(tmp_path_factory.mktemp("stored") / "s", episodes, shard_steps=60)


@pytest.mark.parametrize("shard", ["shard_00000.h5", "shard_00001.h5"])
def test_a_flipped_bit_of_a_shard_is_found_where_it_is_read(shard: str, stored: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stored, tmp_path / "copy"))
    before, known = (copy / shard).read_bytes(), values_of(copy)
    rng, found = np.random.default_rng(0), 0
    for region, offsets in regions(copy / shard).items():
        tries = rng.choice(offsets, min(len(offsets), 60 if region == "metadata" else 8), replace=False)
        for at in tries.tolist():
            flipped = bytearray(before)
            flipped[at] ^= 1 << int(rng.integers(8))
            (copy / shard).write_bytes(flipped)
            try:
                assert values_of(copy) == known, f"{region} at {at} was read silently"
            except UserError as error:
                found += 1
                assert shard in str(error) and "\n" not in str(error)
    assert found > 100  # padding holds no values


def test_overwritten_regions_of_a_shard_are_found(stored: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stored, tmp_path / "copy"))
    shard = copy / "shard_00001.h5"
    before, rng = shard.read_bytes(), np.random.default_rng(1)
    for offsets in regions(shard).values():
        for fill in (bytes(64), b"\xff" * 64, rng.bytes(64)):
            at = offsets[0]
            shard.write_bytes(before[:at] + fill[: len(offsets)] + before[at + len(fill[: len(offsets)]) :])
            with pytest.raises(UserError, match=shard.name):
                values_of(copy)


def test_shards_of_another_store_are_refused(stored: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stored, tmp_path / "copy"))
    shutil.copy(copy / "shard_00000.h5", copy / "shard_00001.h5")
    with pytest.raises(UserError, match="shard_00001.h5.*another size"):
        RolloutStore(copy)
    shutil.copy(stored / "shard_00001.h5", copy / "shard_00001.h5")
    shutil.copy(copy / "shard_00000.h5", copy / "shard_00002.h5")  # unknown to the manifest: not part of the store
    assert values_of(copy) == values_of(stored)


def test_a_changed_spec_is_found(stored: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stored, tmp_path / "copy"))
    (copy / "spec.json").write_text((copy / "spec.json").read_text().replace('"a"', '"b"'))
    with pytest.raises(UserError, match="spec.json: content differs from its manifest"):
        RolloutStore(copy)


def as_earlier_versions_wrote(path: Path, episodes: Sequence[Episode], metadata: str = "earliest") -> Path:
    """A store of one shard without checksums of chunks and index; metadata: of which version of HDF5, v110 with
    checksums."""
    with new_run(path, "test", {"seed": 0}) as run:
        write_json(run.path / "spec.json", SPEC.to_json())
        with h5py.File(run.path / "shard_00000.h5", "w", libver=(metadata, "v110")) as file:
            for column in episodes[0].columns():
                data = np.concatenate([e.columns()[column] for e in episodes])
                chunks = (min(32, len(data)), *data.shape[1:])
                file.create_dataset(f"columns/{column}", data=data, chunks=chunks, compression="gzip")
            file["latent"] = np.stack([e.latent for e in episodes])
            file["index/steps"] = np.array([e.steps for e in episodes], np.int64)
            file["index/rows"] = np.array([len(e.h) for e in episodes], np.int64)
            file["index/terminated"] = np.array([e.terminated for e in episodes])
            file["index/truncated"] = np.array([e.truncated for e in episodes])
            file["index/meta"] = [json.dumps(dict(e.meta)) for e in episodes]
    return path


@pytest.mark.parametrize("metadata", ["earliest", "v110"])
def test_stores_of_earlier_versions_are_read_and_compared_as_a_whole(tmp_path: Path, metadata: str) -> None:
    episodes = [episode(i, 20 + i, final_known=True, terminated=True, latent=True) for i in range(3)]
    path = as_earlier_versions_wrote(tmp_path / "old", episodes, metadata)
    with RolloutStore(path) as store:
        for before, after in zip(episodes, store, strict=True):
            same(before, after)
        assert store.latents().shape == (3, 3)
    shard = path / "shard_00000.h5"
    before = shard.read_bytes()
    for at in np.random.default_rng(0).choice(len(before), 200, replace=False).tolist():
        flipped = bytearray(before)
        flipped[at] ^= 0x10
        shard.write_bytes(flipped)
        with pytest.raises(UserError, match="shard_00000.h5: (content differs|broken shard)"):
            RolloutStore(path)
    for version in {0, 1, 2, 3} - {before[8]}:  # of the superblock: no way around the comparison
        shard.write_bytes(before[:8] + bytes([version]) + before[9:])
        with pytest.raises(UserError, match="shard_00000.h5"):
            values_of(path)
    shard.write_bytes(before)
    Run(path=path, stage="test", config={}).finish()
    assert len(values_of(path)) == 6


def test_a_store_that_is_replaced_while_it_is_read_is_not_mixed(tmp_path: Path) -> None:
    """Of more shards than are open at a time, some would be the other recording's."""
    first = [episode(i, 4, final_known=True, terminated=True) for i in range(20)]
    path = write(tmp_path / "s", first, shard_steps=4)
    store = RolloutStore(path)
    assert len(store) == 20
    for i in range(20):
        same(store.episode(i), first[i])
    shutil.rmtree(path)
    write(path, [episode(100 + i, 4, final_known=True, terminated=True) for i in range(20)], shard_steps=4)
    with pytest.raises(UserError, match="replaced or moved while it was read"):
        for i in range(20):
            same(store.episode(i), first[i])


def test_a_shard_that_is_replaced_as_it_is_opened_is_found(stored: Path, tmp_path: Path, monkeypatch: Any) -> None:
    copy, opened = Path(shutil.copytree(stored, tmp_path / "copy")), h5py.File

    def replaced(name: Path, mode: str) -> Any:
        shutil.copy(name, tmp_path / "other")
        (tmp_path / "other").replace(name)
        return opened(name, mode)

    monkeypatch.setattr(h5py, "File", replaced)
    with pytest.raises(UserError, match="shard_00000.h5 was replaced while it was read"):
        RolloutStore(copy)
