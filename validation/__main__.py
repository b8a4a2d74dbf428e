"""``python -m validation``: the commands that there are."""

from __future__ import annotations

from core.stages import listed

if __name__ == "__main__":
    print(listed("validation"))
