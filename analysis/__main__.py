"""``python -m analysis``: the commands that there are."""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis", file=sys.stderr)
    sys.exit(2)

from core.stages import listed

if __name__ == "__main__":
    print(listed("analysis"))
