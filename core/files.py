"""Files: written whole or not at all, and read within bounds.

Writers: ``write_atomically`` (bytes), ``writing`` (a stream), ``csv_bytes``, ``write_npz``, ``hdf5_file``,
``save_picture``; what comes out under a name is whole, and what the disk refuses is a UserError that names the file.
``Spool`` holds arrays that are larger than memory until they are written.
Readers: ``read_bytes``, then one parser a format.  What is broken is a UserError of one line; nothing is unpickled, and
nothing is allocated that the size of the file does not account for.
"""

from __future__ import annotations

import bisect
import csv
import errno
import io
import itertools
import json
import math
import os
import stat
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch

from core.contracts import UserError

END_BYTES = 22  # of a zip's last record, without its comment
AGAIN = "copy or make it again"
DIFFERS = f"content differs from its manifest; {AGAIN}"
MOST_SMALLER = 1032  # times that deflate makes bytes smaller at most (zlib's technical notes)
SLACK = 1 << 16  # bytes of headers

# What is left to the user where the system refuses.
REMEDIES = {
    errno.ENOSPC: "free some space there, or write elsewhere (--out)",
    errno.EDQUOT: "free some of your quota there, or write elsewhere (--out)",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f), or write elsewhere (--out)",
    errno.EROFS: "write elsewhere (--out)",
    errno.EACCES: "give yourself the right to it (chmod, chown), or choose another directory",
    errno.EPERM: "give yourself the right to it (chmod, chown), or choose another directory",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EEXIST: "it is no directory, or a link to nothing: move it away, or choose another place",
    errno.ENOTDIR: "a part of this path is a file: choose another place",
    errno.EISDIR: "a file was to stand there: move the directory away, or choose another place",
    errno.ELOOP: "its links lead in a circle: mend them, or choose another place",
    errno.EIO: "the disk itself fails: look at it, or write elsewhere (--out)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


class CannotWrite(UserError):
    """The system refuses."""


class CannotFilm(CannotWrite):
    """A video is refused by the program that writes it: of what is written beside it that says nothing."""


def refused(error: OSError, where: Path) -> CannotWrite | None:
    """One line on what the system refuses: the file that the error names, else ``where``; None for other errors."""
    if error.errno not in REMEDIES:
        return None
    return CannotWrite(f"{error.filename or where}: {error.strerror}; {REMEDIES[error.errno]}")


# Writing


@contextmanager
def writing(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """A sibling to write to (``wb``, or ``w``: UTF-8 text as it is), flushed to disk and renamed at the end: the old
    content stays until the new is whole.  UserError, which names the file, where the system refuses."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with open(temporary, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        if (said := refused(error, path)) is None:
            raise
        raise said from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Bytes, through ``writing``."""
    with writing(path) as file:
        file.write(data)


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A table as CSV (lines end as RFC 4180 says)."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


class Rows:
    """An array [N, ...] that lies in a file, blocks of rows wherever there was room; ``x[i]`` reads one row."""

    def __init__(self, file: IO[bytes], like: np.ndarray) -> None:
        self._file, self._row, self.dtype = file, like.shape[1:], like.dtype
        self._starts, self._at = [0], [0]  # of every block its first row, and where it lies; last: how many there are

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._starts[-1], *self._row)

    @property
    def ndim(self) -> int:
        return 1 + len(self._row)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < len(self):
            raise IndexError(i)
        block = bisect.bisect_right(self._starts, i) - 1
        row: np.ndarray = self._read(self._at[block] + (i - self._starts[block]) * self._row_bytes, 1)[0]
        return row

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows in order, those that were written together at once."""
        for block, (first, end) in enumerate(itertools.pairwise(self._starts)):
            yield self._read(self._at[block], end - first)

    @property
    def _row_bytes(self) -> int:
        return math.prod(self._row) * self.dtype.itemsize

    def _read(self, at: int, rows: int) -> np.ndarray:
        self._file.seek(at)
        data = self._file.read(rows * self._row_bytes)
        return np.frombuffer(bytearray(data), self.dtype).reshape(rows, *self._row)

    def _append(self, rows: np.ndarray) -> None:
        if (rows.shape[1:], rows.dtype) != (self._row, self.dtype):
            raise ValueError(f"rows {rows.dtype} {rows.shape[1:]} of an array of {self.dtype} {self._row}")
        self._at[-1] = self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(rows).data)
        self._starts.append(len(self) + len(rows))
        self._at.append(0)


class Spool:
    """Arrays by name that grow by rows, in a file without a name in ``folder``: it goes with the process, however that
    ends.  A context manager."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self.arrays: dict[str, Rows] = {}

    def add(self, name: str, rows: np.ndarray) -> None:
        """Put rows [M, ...] below those that an array has."""
        if name not in self.arrays:
            self.arrays[name] = Rows(self._file, rows)
        self.arrays[name]._append(rows)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_npz(path: Path, arrays: Mapping[str, np.ndarray | Rows]) -> None:
    """The compressed .npz file of some arrays; of those that lie in a ``Spool`` a block is in memory at a time."""
    with writing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, array in arrays.items():
            with zipped.open(f"{name}.npy", "w", force_zip64=True) as member:
                if not isinstance(array, Rows):
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
                    continue
                about = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(member, {**about, "shape": array.shape})
                for block in array.blocks():
                    member.write(block.data)


def save_picture(image: Any, path: Path, **options: Any) -> None:
    """A PIL image, in the format that the name says."""
    from PIL import Image

    Image.init()
    data = io.BytesIO()
    image.save(data, **{"format": Image.EXTENSION[Path(path).suffix.lower()], **options})
    write_atomically(path, data.getvalue())


class _Forgiving:
    """A file for HDF5, which ends the process with a segmentation fault where a file cannot be written: the first such
    error is kept, and what follows it is not written, so that HDF5 closes in order."""

    def __init__(self, file: IO[bytes]) -> None:
        self._number, self._at, self._end = file.fileno(), 0, 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        """h5py takes what has this for a file; it calls ``readinto``."""
        data = bytearray(size)
        self.readinto(data)
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        view, done = memoryview(buffer), 0
        while self.error is None and done < len(view):
            data = os.pread(self._number, len(view) - done, self._at + done)
            if not data:
                break
            view[done : done + len(data)] = data
            done += len(data)
        view[done:] = bytes(len(view) - done)
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view, done = memoryview(data), 0
        try:
            while self.error is None and done < len(view):
                done += os.pwrite(self._number, view[done:], self._at + done)
        except OSError as error:
            self.error = error
        self._at += len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def truncate(self, size: int) -> int:
        try:
            if self.error is None:
                os.ftruncate(self._number, size)
        except OSError as error:
            self.error = error
        self._end = size
        return size

    def flush(self) -> None:
        """Nothing waits."""

    def check(self) -> None:
        """Raise the error that was kept."""
        if self.error is not None:
            raise self.error


@contextmanager
def hdf5_file(path: Path, **options: Any) -> Iterator[tuple[Any, Callable[[], None]]]:
    """An h5py.File to fill, whole under its name at the end (see ``writing``), and a function that raises at once what
    the system refused so far (else the end does).  options: h5py's.

    Metadata are of the format of HDF5 1.10, which gives each block of them a checksum.
    """
    import h5py

    with writing(path, "w+b") as stream:
        kept = _Forgiving(stream)
        try:
            with h5py.File(kept, "w", libver=("v110", "v110"), **options) as file:
                yield file, kept.check
        finally:
            kept.check()


FAST = 1  # level of compression


def compressed_dataset(file: Any, name: str, like: np.ndarray, count: int, rows: int) -> Any:
    """A dataset [count, ...] of an open HDF5 file for rows like those of ``like``, ``rows`` to a chunk, to be filled by
    ``write_rows``."""
    chunks = (max(1, min(rows, count)), *like.shape[1:])
    # Shuffled, the like bytes of neighbouring numbers (exponents, high bytes) stand together.
    return file.create_dataset(name, shape=(count, *like.shape[1:]), dtype=like.dtype, chunks=chunks,
                               shuffle=like.dtype.itemsize > 1, compression="gzip", compression_opts=1,
                               fletcher32=True)  # fmt: skip


def fletcher32(data: bytes) -> int:
    """The checksum of HDF5's filter of this name (H5_checksum_fletcher32): Fletcher's of big-endian words of 16 bits,
    an odd last byte filled up with 0.  A sum that 65,535 divides is written as 65,535, and as 0 only of zeros alone."""
    words = np.frombuffer(data + bytes(len(data) % 2), "<u2")
    first = second = 0
    for at in range(0, len(words), 1 << 16):
        sums = np.cumsum(words[at : at + (1 << 16)], dtype=np.uint64)
        second += first * len(sums) + int(sums.sum())
        first += int(sums[-1])
    # Modulo 65,535, times 256 swaps a word's bytes: the sums of big-endian words from those of little-endian ones.
    first, second = ((256 * s - 1) % 65_535 + 1 if s else 0 for s in (first, second))
    return second << 16 | first


def write_rows(dataset: Any, at: int, block: np.ndarray, level: int = FAST) -> None:
    """Rows of a ``compressed_dataset`` from row ``at`` on, the first of a chunk; as many as fill chunks, or up to the
    end.

    In the format of gzip's, which every HDF5 reads, but at level FAST made by ISA-L: to the size of zlib's level 2 in a
    quarter of its time; at higher levels by zlib, smaller and slower.  A Fletcher-32 of the compressed bytes follows,
    which finds every changed bit; the stream's own Adler-32 misses one in 30,000 of small chunks, where a few bytes
    change places.
    """
    from isal import isal_zlib

    rows, size = dataset.chunks[0], block.dtype.itemsize
    for first in range(0, len(block), rows):
        chunk = np.ascontiguousarray(block[first : first + rows])
        if len(chunk) < rows:  # the last chunk of a dataset is a whole one in the file
            chunk = np.concatenate([chunk, np.zeros((rows - len(chunk), *chunk.shape[1:]), chunk.dtype)])
        if size > 1:
            chunk = np.ascontiguousarray(chunk.reshape(-1).view(np.uint8).reshape(-1, size).T)
        where = (at + first, *[0] * (block.ndim - 1))
        compress = isal_zlib.compress if level == FAST else zlib.compress
        stream = compress(chunk.reshape(-1).data, level)
        dataset.id.write_direct_chunk(where, stream + fletcher32(stream).to_bytes(4, "little"))


# Reading


@contextmanager
def parsing(file: Path, what: str, remedy: str = AGAIN) -> Iterator[None]:
    """What a parser raises of a file that is broken, or that may not be read, as a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of whatever kind: parsers know no end of them
        if isinstance(error, OSError) and (said := refused(error, file)) is not None:
            raise said from error
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file}: broken {what} ({reason}); {remedy}") from error


def memory_bytes(root: Path = Path("/")) -> int:
    """How much memory this process can have: the machine's, or the least that its control groups (those of a container,
    of a batch system) leave to it.  root: where /proc and /sys are."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    """The limits of this process's control groups and of those above them, of version 2 and of version 1 (kernel's
    admin-guide/cgroup-v2 and cgroup-v1/memory).  A container may not see the groups that it is told to be in, but
    their uppermost."""
    limits = []
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        groups, name = root / "sys/fs/cgroup", "memory.max"
        if controllers:
            groups, name = groups / "memory", "memory.limit_in_bytes"
            if "memory" not in controllers.split(","):
                continue
        parts = [part for part in path.split("/") if part]
        parts = [] if ".." in parts else parts  # outside of what can be seen
        texts = (_text_of(groups.joinpath(*parts[:depth], name)).strip() for depth in range(len(parts) + 1))
        limits += [int(text) for text in texts if text.isdecimal()]
    return limits


def _text_of(path: Path) -> str:
    """What the kernel says in a file of its own; "" where it has none."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def bounded(wanted: int, held: int, file: Path, at_once: bool = True) -> None:
    """UserError where a file asks for more bytes than ``held`` bytes of it can become or, where it is read ``at_once``,
    than there is memory."""
    size = f"{wanted / 1e6:,.1f} MB" if abs(wanted) < 1e9 else f"{wanted / 1e9:,.1f} GB"
    if not 0 <= wanted <= MOST_SMALLER * held + SLACK:
        raise UserError(f"{file}: it asks for {size}, which {held:,} bytes do not hold; {AGAIN}")
    if at_once and wanted > (memory := memory_bytes()):
        raise UserError(f"{file}: it asks for {size}, more than the {memory / 1e9:,.1f} GB of memory that there are")


def read_bytes(path: Path, what: str = "", bytes_known: int | None = None) -> bytes:
    """A whole file (``what`` it is, for the message); UserError if it is not there, no file, not readable, of another
    size than is known, or larger than the memory."""
    path = Path(path)
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            kind = "a directory" if stat.S_ISDIR(about.st_mode) else "not a file"
            raise UserError(f"{path} is {kind}; give a file's name")
        if bytes_known is not None and about.st_size != bytes_known:
            raise UserError(f"{path}: {DIFFERS}")
        if about.st_size > memory_bytes():
            raise UserError(f"{path} has {about.st_size / 1e9:,.1f} GB, more than this machine's memory")
        return path.read_bytes()
    except OSError as error:
        reason = "no such file" if not what and error.errno == errno.ENOENT else error.strerror
        remedy = f"; {REMEDIES[error.errno]}" if error.errno in REMEDIES else ""
        raise UserError(f"{f'cannot read the {what} ' if what else ''}{path}: {reason}{remedy}") from None


def json_of(data: bytes, file: Path) -> Any:
    """JSON (UTF-8) from bytes."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, numbers of thousands of digits, thousands of [
        raise UserError(f"{file}: not valid JSON ({error}); mend it, or {AGAIN}") from None


def csv_of(data: bytes, file: Path) -> list[dict[str, str]]:
    """The rows of a table, by column; a row with other columns than the first line is a UserError."""
    with parsing(file, "table"):
        lines = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    columns = lines[0] if lines else []
    rows = [line for line in lines[1:] if line]
    if len(set(columns)) != len(columns) or (rows and not columns):
        raise UserError(f"{file}: broken table (its first line does not name its columns); {AGAIN}")
    for number, line in enumerate(rows, 1):
        if len(line) != len(columns):
            raise UserError(f"{file}: broken table (row {number} has {len(line)} of {len(columns)} cells); {AGAIN}")
    return [dict(zip(columns, line, strict=True)) for line in rows]


def npy_of(data: bytes, file: Path) -> np.ndarray:
    """The array of an .npy file."""
    with parsing(file, "array"):
        return _array(io.BytesIO(data), len(data), file)


def npz_of(source: bytes | Path, file: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, from its bytes or, of a large one, from where it lies."""
    arrays = {}
    opened = source if isinstance(source, Path) else io.BytesIO(source)
    with parsing(file, "npz file"), zipfile.ZipFile(opened) as zipped:
        if len(zipped.infolist()) != _members_said(zipped):  # a length that is wrong can hide those that follow
            raise UserError(f"{file}: broken npz file (its directory does not list what it holds); {AGAIN}")
        held = source.stat().st_size if isinstance(source, Path) else len(source)
        bounded(sum(member.file_size for member in zipped.infolist()), held, file)  # some can name the same bytes
        for member in zipped.infolist():
            bounded(member.file_size, member.compress_size, file)
            with zipped.open(member) as stream:
                arrays[member.filename.removesuffix(".npy")] = _array(stream, member.file_size, file)
    return arrays


def _members_said(zipped: zipfile.ZipFile) -> int:
    """How many members a zip's last record says that there are, 65,535 at most (PKWARE's APPNOTE 4.3.16)."""
    assert zipped.fp is not None
    zipped.fp.seek(-END_BYTES - len(zipped.comment), os.SEEK_END)
    return int.from_bytes(zipped.fp.read(END_BYTES)[10:12], "little")


def _array(stream: IO[bytes], size: int, file: Path) -> np.ndarray:
    """An array of ``size`` bytes, header included: read only if the header asks for so many, all of them read."""
    form = np.lib.format
    version = form.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise UserError(f"{file}: an array of format {version[0]}.{version[1]}; 1.0 and 2.0 are read")
    shape, _, dtype = (form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0)(stream)
    if dtype.hasobject:
        raise UserError(f"{file}: an array of Python objects, which are never loaded; save plain numbers")
    if stream.tell() + math.prod(shape) * dtype.itemsize != size:
        raise UserError(f"{file}: an array's header asks for more or fewer bytes than it has; {AGAIN}")
    stream.seek(0)
    array: np.ndarray = form.read_array(stream, allow_pickle=False)
    if stream.read(1):  # at the end zipfile compares the checksum
        raise UserError(f"{file}: an array goes on after its end; {AGAIN}")
    return array


def tensors_of(data: bytes, file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, on the CPU; its header must account for every byte."""
    from safetensors.torch import load

    with parsing(file, "tensor file"):
        return load(data)


def unpickled_tensors(data: bytes, file: Path, what: str, remedy: str) -> Any:
    """What torch.save wrote, on the CPU: tensors, numbers, text and plain containers of them, nothing else."""
    with parsing(file, what, remedy), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol")  # of a file that is then refused, or read
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def dataset_of(file: Any, name: str, where: Path) -> Any:
    """A dataset of an open HDF5 file; UserError if it lies in another file, or asks for more than its bytes hold."""
    import h5py

    at = file
    for part in name.split("/"):
        if not isinstance(at, h5py.Group) or part not in at:
            raise UserError(f"{where}: broken file (it has no {name!r}); {AGAIN}")
        if not isinstance(at.get(part, getlink=True), h5py.HardLink):
            raise UserError(f"{where}: {name!r} is a link to elsewhere, which is not followed; {AGAIN}")
        at = at[part]
    if not isinstance(at, h5py.Dataset):
        raise UserError(f"{where}: broken file ({name!r} holds no numbers); {AGAIN}")
    if at.external or at.is_virtual:
        raise UserError(f"{where}: {name!r} lies in another file, which is not followed; {AGAIN}")
    bounded(at.size * at.dtype.itemsize, at.id.get_storage_size(), where, at_once=False)
    return at


def is_inside(name: str) -> bool:
    """Whether a name that a file gives stays below the directory that it is joined to."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name and "\\" not in name
