"""Videos: uint8 frames to MP4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.contracts import UserError


def check_video() -> None:
    """UserError if MP4s cannot be written here."""
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError(
            f"MP4s need imageio-ffmpeg, which does not import ({error}); install the lock file, or pass --no-video"
        ) from None
    imageio_ffmpeg.get_ffmpeg_exe()


def write_video(path: Path, frames: Sequence[np.ndarray], fps: int = 3) -> None:
    """MP4 (H.264) of uint8 frames; sides a multiple of 16."""
    import imageio.v2 as imageio

    writer: Any = imageio.get_writer(path, format="FFMPEG", fps=fps, codec="libx264", quality=8)  # type: ignore[arg-type]
    with writer:
        for frame in frames:
            writer.append_data(frame)
