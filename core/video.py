"""Videos: which frames, and how they are written."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from core.contracts import UserError
from core.files import CannotFilm, save_picture, writing

EVEN = ("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2")  # H.264 halves the colours: an odd side gets a black line more


def check_video(instead: str = "--no-video") -> None:
    """UserError if MP4s cannot be written here; instead: the flag that does without."""
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError(
            f"MP4s need imageio-ffmpeg, which does not import ({error}); install the lock file, or pass {instead}"
        ) from None
    imageio_ffmpeg.get_ffmpeg_exe()


def write_video(path: Path, frames: Sequence[np.ndarray], fps: float = 3) -> None:
    """MP4 (H.264) of frames uint8 [height, width, 3], all of one size.  UserError, and no file, where ffmpeg does not
    end well: of a short film it writes all at its end."""
    import imageio_ffmpeg

    height, width, _ = frames[0].shape
    reads = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:.02f}", "-i", "-"]
    makes = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "10", *EVEN, "-v", "warning", "-f", "mp4"]
    with writing(path) as file, tempfile.TemporaryFile() as said:
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", *reads, *makes, file.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said) as ffmpeg:
            assert ffmpeg.stdin is not None
            with suppress(BrokenPipeError):  # it says why
                for frame in frames:
                    ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
            ffmpeg.communicate()
        if ffmpeg.returncode:  # it is a process of its own, and says why on many lines
            said.seek(0)
            reason = (said.read().decode(errors="replace").splitlines() or ["it ended"])[-1]
            raise CannotFilm(f"{path}: ffmpeg cannot write it ({reason}); free some space, or write elsewhere")


def write_gif(path: Path, frames: Sequence[np.ndarray], fps: float = 3) -> None:
    """A GIF of uint8 frames, played over and over; of 128 colours a frame, in whole hundredths of a second."""
    from PIL import Image

    first, *rest = (Image.fromarray(x).quantize(128) for x in frames)
    save_picture(first, path, save_all=True, append_images=rest, duration=1000 / fps, loop=0)
