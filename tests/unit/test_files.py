"""Files: whole or not there; bounded, and one line where they are broken."""

from __future__ import annotations

import errno
import io
import itertools
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from core import files
from core.contracts import UserError
from core.files import (
    Spool,
    bounded,
    compressed_dataset,
    csv_bytes,
    csv_of,
    dataset_of,
    fletcher32,
    hdf5_file,
    is_inside,
    json_of,
    npy_of,
    npz_of,
    parsing,
    read_bytes,
    tensors_of,
    unpickled_tensors,
    write_atomically,
    write_npz,
    write_rows,
    writing,
)

HERE = Path("here")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses what lies beyond, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Writing


def test_a_spool_holds_rows_that_come_and_an_npz_takes_them_as_they_lie(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blocks = {"a": [rng.random((n, 3, 2)) for n in (2, 1, 4)], "b": [rng.integers(0, 9, (n, 5)) for n in (1, 1, 3)]}
    plain = {"c": np.asfortranarray(rng.random((4, 3))), "d": np.array("word")}
    with Spool(tmp_path) as spool:
        for pair in zip(*blocks.values(), strict=True):
            for name, rows in zip(blocks, pair, strict=True):
                spool.add(name, rows)
        assert not list(tmp_path.iterdir())  # it has no name
        whole = {name: np.concatenate(of) for name, of in blocks.items()}
        for name, array in whole.items():
            rows = spool.arrays[name]
            assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (array.shape, array.dtype, array.ndim, len(array))
            assert all(np.array_equal(rows[i], array[i]) for i in range(len(array)))
        with pytest.raises(IndexError):
            spool.arrays["a"][7]
        with pytest.raises(ValueError, match="rows float32"):
            spool.add("a", np.zeros((1, 3, 2), np.float32))
        write_npz(tmp_path / "x.npz", {**spool.arrays, **plain})
    found = npz_of(tmp_path / "x.npz", HERE)
    assert found.keys() == {*whole, *plain}
    for name, array in {**whole, **plain}.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


def test_a_full_disk_stops_a_spool(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, largest_file(1000), pytest.raises(OSError, match="File too large"):
        spool.add("a", np.zeros((2, 4000)))


@pytest.mark.parametrize("size", [0, 1, 999])
def test_what_does_not_fit_leaves_the_old_file(size: int, tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_atomically(file, b"old")
    with largest_file(size), pytest.raises(UserError, match=f"^{file}: File too large; raise the limit"):
        write_atomically(file, bytes(1000))
    with largest_file(size), pytest.raises(UserError, match=f"^{file}: File too large"), writing(file, "w") as stream:
        stream.write("x" * 1000)
    assert file.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_missing_directory_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "a", b"x")


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").is_dir(), reason="needs a file system that refuses root")
def test_a_directory_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    closed = Path("/proc/1") if os.geteuid() == 0 else tmp_path / "closed"  # root may write everywhere else
    closed.mkdir(mode=0o500, exist_ok=True)
    with pytest.raises((UserError, FileNotFoundError)) as error:
        write_atomically(closed / "a", b"x")
    assert "\n" not in str(error.value) and str(closed / "a") in str(error.value) or os.geteuid() == 0


def test_a_file_that_may_not_be_read_is_not_broken() -> None:
    said = r"^/a/shard.h5: Permission denied; give yourself the right to it"
    with pytest.raises(UserError, match=said), parsing(HERE, "shard"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/a/shard.h5")
    with pytest.raises(UserError, match="^here: broken shard .no signature.; "), parsing(HERE, "shard"):
        raise OSError("no signature")


@pytest.mark.parametrize("limit", [0, 1, 700, 5_000, 40_000, 90_000])
def test_hdf5_where_the_disk_is_full(limit: int, tmp_path: Path) -> None:
    """HDF5 itself ends the process here."""
    file = tmp_path / "a.h5"
    noise = np.random.default_rng(0).integers(0, 255, (100, 1000), np.uint8)
    for early in (False, True):
        said = pytest.raises(UserError, match=f"^{file}: File too large")
        with largest_file(limit), said, hdf5_file(file) as (out, check):
            out.create_dataset("x", data=noise, chunks=(10, 1000), compression=1, fletcher32=True)
            check() if early else None
            out.create_dataset("y", data=noise)
        assert not list(tmp_path.iterdir())
    with hdf5_file(file) as (out, check):
        out.create_dataset("x", data=noise)
        check()
    with h5py.File(file) as back:
        assert np.array_equal(back["x"][:], noise)


@pytest.mark.parametrize("size", [1, 2, 3, 719, 720, 4001, 2_000_001])
def test_fletcher32_is_that_of_hdf5(size: int, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for i, data in enumerate((noise, np.zeros_like(noise), np.full_like(noise, 255))):
            written = file.create_dataset(str(i), data=data, chunks=(size,), fletcher32=True)
            raw = written.id.read_direct_chunk((0,))[1]
            assert int.from_bytes(raw[size:], "little") == fletcher32(data.tobytes())


def test_a_bit_is_found_that_changes_no_adler32(tmp_path: Path) -> None:
    """Where the distance of a match changes, a few bytes of small chunks change places, and the sums may stay."""
    rng, missed, path = np.random.default_rng(0), 0, tmp_path / "x.h5"
    for _ in range(60):
        actions = rng.integers(3, size=99)
        with hdf5_file(path) as (file, _check):
            write_rows(compressed_dataset(file, "x", actions, 99, 99), 0, actions, level=4)
        with h5py.File(path) as file:
            assert np.array_equal(file["x"][:], actions)
            chunk = file["x"].id.get_chunk_info(0)
        whole = path.read_bytes()
        first, end = chunk.byte_offset, chunk.byte_offset + chunk.size
        plain = zlib.decompress(whole[first : end - 4])
        for at, bit in itertools.product(range(first, end - 4), range(8)):
            changed = bytearray(whole)
            changed[at] ^= 1 << bit
            with suppress(zlib.error):
                if zlib.decompress(changed[first : end - 4]) != plain:
                    missed += 1
                    path.write_bytes(changed)
                    with h5py.File(path) as file, pytest.raises(OSError, match="filter returned failure"):
                        file["x"][:]
    assert missed


# Reading


def arrays_file(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def test_npz_round_trip() -> None:
    some = {"a": np.arange(6).reshape(2, 3), "b/c": np.array(True), "d": np.array(["x", "yz"]), "e": np.zeros((0, 3))}
    some["f"] = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    back = npz_of(arrays_file(**some), HERE)
    assert back.keys() == some.keys()
    for name, array in some.items():
        assert back[name].dtype == array.dtype and np.array_equal(back[name], array)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b" " * (118 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),  # 8 TB
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(8)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", bytes(16)),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)),
        npy("{'descr': '<f8'"),
        npy("__import__('os').system('false')"),
        b"\x93NUMPY\x09\x00",
        b"",
    ],
)
def test_arrays_that_ask_for_what_they_have_not(data: bytes) -> None:
    with pytest.raises(UserError, match="^here: .*(copy or make it again|are read|save plain numbers)") as error:
        npy_of(data, HERE)
    assert "\n" not in str(error.value)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", data)
    with pytest.raises(UserError, match="^here: "):
        npz_of(out.getvalue(), HERE)


def test_a_zip_that_says_it_holds_terabytes() -> None:
    data = bytearray(arrays_file(a=np.zeros(1000)))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFFE)  # the member's size in the directory of the zip
    with pytest.raises(UserError, match="^here: it asks for 4.3 GB, which .* bytes do not hold"):
        npz_of(bytes(data), HERE)
    with pytest.raises(UserError, match="asks for"):
        bounded(1 << 62, 1 << 60, HERE)  # more than there is memory


def test_members_of_an_npz_that_ask_for_too_much_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of them alone is honest: the same bytes listed forty times; or more than there is memory."""
    zeros = arrays_file(a=np.zeros(500_000))
    first, end = zeros.index(b"PK\x01\x02"), zeros.index(b"PK\x05\x06")
    entry = zeros[first:end]
    last = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 40, 40, 40 * len(entry), first, 0)
    with pytest.raises(UserError, match="^here: it asks for [0-9.]* MB, which [0-9,]* bytes do not hold"):
        npz_of(zeros[:first] + 40 * entry + last, HERE)
    noise = arrays_file(**{f"x{i}": np.random.default_rng(i).random(100_000) for i in range(5)})
    (tmp_path / "noise.npz").write_bytes(noise)
    assert len(npz_of(noise, HERE)) == len(npz_of(tmp_path / "noise.npz", HERE)) == 5
    monkeypatch.setattr(files, "memory_bytes", lambda: 3_000_000)
    for source in (noise, tmp_path / "noise.npz"):
        with pytest.raises(UserError, match="^here: it asks for .* MB, more than the 0.0 GB of memory"):
            npz_of(source, HERE)


GOOD = arrays_file(a=np.arange(50), b=np.random.default_rng(0).normal(size=9))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 7))
@example(GOOD.index(b"PK\x01\x02") + 32, 6)  # a member's comment as long as the next one
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_of_an_npz_is_harmless_or_one_line(at: int, bit: int) -> None:
    flipped = bytearray(GOOD)
    flipped[at] ^= 1 << bit
    try:
        found = npz_of(bytes(flipped), HERE)
    except UserError as error:
        assert str(error).startswith("here: ") and "\n" not in str(error)
    else:  # of dates, attributes or a member's name
        values = [x.tobytes() for x in found.values()]
        assert values == [x.tobytes() for x in npz_of(GOOD, HERE).values()]


@pytest.mark.parametrize("data", [b"[" * 100_000, b"1" * 5000, b"", b"\xff", b"{", b'{"a": 1}x'])
def test_broken_json_is_one_line(data: bytes) -> None:
    with pytest.raises(UserError, match="^here: not valid JSON .*copy or make it again") as error:
        json_of(data, HERE)
    assert "\n" not in str(error.value)


@given(st.lists(st.lists(st.text(max_size=4), min_size=2, max_size=2), max_size=4))
@settings(deadline=None)
def test_tables_come_back(rows: list[list[str]]) -> None:
    rows = [[cell.replace("\0", "") for cell in row] for row in rows]
    try:
        data = csv_bytes(["a", "b"], rows)
    except UnicodeEncodeError:
        return
    assert [list(row.values()) for row in csv_of(data, HERE)] == rows


@pytest.mark.parametrize("data", [b"a,b\n1\n", b"a,b\n1,2,3\n", b"a,a\n1,2\n", b"\n1\n", b'a\n"x', b"a\n\xff\n"])
def test_broken_tables_are_one_line(data: bytes) -> None:
    with pytest.raises(UserError, match="^here: broken table .*copy or make it again") as error:
        csv_of(data, HERE)
    assert "\n" not in str(error.value)


def test_tensor_files_that_ask_for_what_they_have_not() -> None:
    header = b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    strange = b'{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'
    for data in (struct.pack("<Q", 1 << 60), struct.pack("<Q", len(header)) + header, b"",
                 struct.pack("<Q", len(strange)) + strange + bytes(4)):  # fmt: skip
        with pytest.raises(UserError, match="^here: broken tensor file .*copy or make it again"):
            tensors_of(data, HERE)
    with pytest.raises(UserError, match="^here: broken thing .*; do it anew"):
        unpickled_tensors(b"\x80\x02cos\nsystem\nq\x00.", HERE, "thing", "do it anew")


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    for name, said in (("pipe", "is not a file"), ("", "is a directory"), ("gone", "no such file")):
        with pytest.raises(UserError, match=said):
            read_bytes(tmp_path / name)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(UserError, match="more than this machine's memory"):
        read_bytes(tmp_path / "sparse")


def test_datasets_that_lie_elsewhere_or_ask_for_too_much(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret.." * 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.arange(3)
        file.create_dataset("huge", (1 << 45,), np.float64, chunks=(1 << 10,))
        file.create_dataset("raw", (4,), np.float64, external=[(str(tmp_path / "secret"), 0, 32)])
        file["link"] = h5py.ExternalLink("b.h5", "x")
        file["soft"] = h5py.SoftLink("/good")
        file.create_group("group")
        layout = h5py.VirtualLayout((3,), np.int64)
        layout[:] = h5py.VirtualSource("b.h5", "x", (3,))
        file.create_virtual_dataset("virtual", layout)
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(dataset_of(file, "good", HERE)) == [0, 1, 2]
        for name, said in (
            ("huge", "asks for"), ("raw", "lies in another file"), ("link", "a link to elsewhere"), ("gone", "has no"),
            ("soft", "a link to elsewhere"), ("group", "holds no numbers"), ("virtual", "lies in another file"),
            ("good/x", "has no"),
        ):  # fmt: skip
            with pytest.raises(UserError, match=f"^here: .*{said}"):
                dataset_of(file, name, HERE)


def test_names_that_leave_their_directory() -> None:
    for name in ("../a", "/etc/passwd", "a/../../b", "", ".", "a\\..\\b", "a\0b", ".."):
        assert not is_inside(name), name
    for name in ("a", "a/b.json", "..a", "a..b/c", ".hidden"):
        assert is_inside(name), name


def test_there_is_memory() -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 << 28 < files.memory_bytes() <= whole


GROUPS = "sys/fs/cgroup"
OWN_V2 = {"proc/self/cgroup": "0::/a.slice/run\\x2d1:b.scope\n"}
OWN_V1 = {"proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/1d31\n0::/\n"}


@pytest.mark.parametrize(
    ("texts", "least"),
    [
        ({}, None),  # no control groups at all
        ({**OWN_V2, f"{GROUPS}/a.slice/memory.max": "max\n"}, None),
        ({**OWN_V2, f"{GROUPS}/a.slice/run\\x2d1:b.scope/memory.max": "3000000\n"}, 3_000_000),
        (
            {**OWN_V2, f"{GROUPS}/a.slice/run\\x2d1:b.scope/memory.max": "max", f"{GROUPS}/a.slice/memory.max": "5000"},
            5000,
        ),
        ({**OWN_V2, f"{GROUPS}/a.slice/memory.max": "5000", f"{GROUPS}/memory.max": "4000"}, 4000),
        ({**OWN_V2, f"{GROUPS}/b.slice/memory.max": "1"}, None),  # another's
        ({"proc/self/cgroup": "0::/\n", f"{GROUPS}/memory.max": "7000"}, 7000),  # in a container
        ({"proc/self/cgroup": "0::/../b\n", f"{GROUPS}/b/memory.max": "1", f"{GROUPS}/memory.max": "7000"}, 7000),
        ({**OWN_V1, f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({**OWN_V1, f"{GROUPS}/memory/docker/1d31/memory.limit_in_bytes": "2000000\n"}, 2_000_000),
        ({**OWN_V1, f"{GROUPS}/memory/memory.limit_in_bytes": "6000\n"}, 6000),  # a container that sees its own alone
        ({"proc/self/cgroup": "nonsense\n\n::\n", f"{GROUPS}/memory.max": "nonsense"}, None),
    ],
)
def test_memory_is_the_least_that_control_groups_leave(
    texts: dict[str, str], least: int | None, tmp_path: Path
) -> None:
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert files.memory_bytes(tmp_path) == (least or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
