"""Tables of pages and cards, as tests read them."""

from __future__ import annotations

import itertools


def table_below(page: str, text: str) -> list[list[str]]:
    """The cells of the first table from ``text`` on, which may be how it begins, its head first; a row without a label
    has that of the row above it."""
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), page[page.index(text) :].splitlines())
    lines = itertools.takewhile(lambda line: line.startswith("|"), lines)
    head, _, *body = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]
    for above, row in zip(body, body[1:], strict=False):
        row[0] = row[0] or above[0]
    return [head, *body]
