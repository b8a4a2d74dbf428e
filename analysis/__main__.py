"""``python -m analysis``: the commands that there are."""

from core.stages import listed

if __name__ == "__main__":
    print(listed("analysis"))
