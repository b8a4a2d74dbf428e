"""Measurements of speed and memory; docs/performance.md has the numbers."""

import sys
from types import TracebackType

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
from core.contracts import UserError


def _said(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """A UserError as every stage says it: one line, exit code 2."""
    if not issubclass(kind, UserError):
        sys.__excepthook__(kind, error, traceback)
        return
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


if sys.argv[:1] == ["-m"]:  # python -m benchmarks.NAME, and no import of one
    sys.excepthook = _said
