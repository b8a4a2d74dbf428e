"""By the name of an earlier system: says what is typed here (docs/coming-from.md)."""

from core.earlier import say

if __name__ == "__main__":
    say(__file__)
