"""Videos: which frames, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.contracts import UserError
from core.files import CannotFilm, save_picture


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
    """MP4 (H.264) of uint8 frames; sides a multiple of 16."""
    import imageio.v2 as imageio

    # Else ffmpeg begins as a fork that runs Python, which beside threads can hang (JAX warns of it at every film).
    os.environ["IMAGEIO_FFMPEG_NO_PREVENT_SIGINT"] = "1"
    try:
        writer: Any = imageio.get_writer(path, format="FFMPEG", fps=fps, codec="libx264", quality=8)  # type: ignore[arg-type]
        with writer:
            for frame in frames:
                writer.append_data(frame)
    except OSError as error:  # ffmpeg is a process of its own, and says why on many lines
        path.unlink(missing_ok=True)
        reason = (str(error).splitlines() or ["it ended"])[-1]
        raise CannotFilm(f"{path}: ffmpeg cannot write it ({reason}); free some space, or write elsewhere") from error


def write_gif(path: Path, frames: Sequence[np.ndarray], fps: float = 3) -> None:
    """A GIF of uint8 frames, played over and over; of 128 colours a frame, in whole hundredths of a second."""
    from PIL import Image

    first, *rest = (Image.fromarray(x).quantize(128) for x in frames)
    save_picture(first, path, save_all=True, append_images=rest, duration=1000 / fps, loop=0)
