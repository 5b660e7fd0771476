"""Tables on a terminal: which columns fit, and their widths. Pure functions.

1. Every column has its natural width if all of them fit.
2. Otherwise, columns that are empty in every row are left out.
3. Then columns are left out one by one, in the order of `TableColumn.drop`, then the dim ones from the right, until
each
   remaining one has room for its longest word, limited to 24 characters, or half a line for a name.
4. The remaining space goes to the columns that need the least more. Cells wrap between words.
5. If even the longest words do not fit, the widest columns that may wrap are cut, names last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GAP = 2
_WORD_MAX = 24
_CUT_MIN = 8
_NAMES = frozenset({"cyan", "bold"})
_NOTHING = frozenset({"", "-"})


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        is_fixed: Whether it is never wrapped.
        piped_only: Whether it is left out on a terminal.
        drop: The column's number in the order in which columns are left out if space is short: columns with a number
            first, the smallest number first; 0 for no number.
    """

    header: str
    style: str = ""
    is_fixed: bool = False
    piped_only: bool = False
    drop: int = 0


class TableLayout(NamedTuple):
    """The layout of a table.

    Attributes:
        widths: The width of each shown column, by its index.
        dropped: The headers of the columns that do not fit.
    """

    widths: dict[int, int]
    dropped: list[str]


def fitted(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int) -> TableLayout:
    """Fit a table into a line.

    Args:
        columns: All columns.
        rows: Their cells, as they are shown.
        width: The length of a line, in characters.
    """
    shown = [number for number, column in enumerate(columns) if not column.piped_only]
    cells = {number: [columns[number].header, *(row[number] for row in rows)] for number in shown}
    natural = {number: max(map(len, cells[number])) for number in shown}
    if _total(natural) <= width:
        return TableLayout(natural, [])
    for number in shown[1:]:
        if _NOTHING.issuperset(cells[number][1:]):
            del natural[number]
    least = {}
    for number, wide in natural.items():
        # A name identifies its row, so it gets more room.
        word_max = width // 2 if columns[number].style in _NAMES else _WORD_MAX
        least[number] = wide if columns[number].is_fixed else min(wide, word_max, _longest_word(cells[number]))
    dropped = []
    for number in _droppable(columns, [*natural][1:]):
        if _total(least) <= width:
            break
        del least[number]
        dropped.append(columns[number].header)
    widths = dict(least)
    for number in sorted(widths, key=lambda each: natural[each] - least[each]):
        widths[number] += min(natural[number] - least[number], max(0, width - _total(widths)))
    while _total(widths) > width:
        may_wrap = [number for number, each in widths.items() if each > _CUT_MIN and not columns[number].is_fixed]
        if not may_wrap:
            break
        widths[max(may_wrap, key=lambda each: (columns[each].style not in _NAMES, widths[each]))] -= 1
    return TableLayout(widths, dropped)


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _longest_word(cells: Sequence[str]) -> int:
    return max((len(word) for cell in cells for word in cell.split()), default=1)


def _droppable(columns: Sequence[TableColumn], numbers: Sequence[int]) -> list[int]:
    named = sorted((number for number in numbers if columns[number].drop), key=lambda each: columns[each].drop)
    dim = [number for number in reversed(numbers) if columns[number].style == "dim" and not columns[number].drop]
    return [*named, *dim]
