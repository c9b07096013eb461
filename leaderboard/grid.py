"""Lays out rows in columns so that they fit where they are read, with notes under the row they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

GAP = 2
"""Blanks between columns."""
INDENT = 5
"""Blanks before a note."""


@dataclass(frozen=True)
class Column:
    """A title and how its cells may yield."""

    title: str
    is_left: bool = False
    least: int | None = None
    """Width to which it may be narrowed, going on in the next line; None for one that is shown whole."""
    is_cut: bool = False
    """Narrowed before the others, and cut off instead of going on."""
    spare: int = 0
    """Where space is short, columns above 0 are left out, the highest first."""


@dataclass(frozen=True)
class Line:
    """One row: a cell per column, and what there is to say about it."""

    cells: tuple[Text, ...]
    notes: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Grid:
    """A rich renderable: titles, a rule, rows. Columns without any content are not shown."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        widths = self.widths(options.max_width)
        titles = [Text(self.columns[index].title, "bold") for index in widths]
        yield from self._row(console, titles, widths)
        yield Text("─" * (sum(widths.values()) + GAP * (len(widths) - 1)), "dim")
        for line in self.lines:
            yield from self._row(console, [line.cells[index] for index in widths], widths)
            for note in line.notes:
                for part in note.wrap(console, max(20, options.max_width - INDENT), overflow="fold"):
                    yield _stripped(Text(" " * INDENT).append_text(part))

    def widths(self, available: int) -> dict[int, int]:
        """Width by column's index, of the columns to show: they fit, if they can."""
        natural = {index: self._natural(index) for index in range(len(self.columns))}
        shown = {index: width for index, width in natural.items() if width}
        while _total(least := {index: self._least(index, shown[index]) for index in shown}) > available:
            spare = max(shown, key=lambda index: self.columns[index].spare)
            if not self.columns[spare].spare:
                break
            del shown[spare]
        while _total(shown) > available and (wide := [index for index in shown if shown[index] > least[index]]):
            shown[max(wide, key=lambda index: (self.columns[index].is_cut, shown[index]))] -= 1
        return shown

    def _natural(self, index: int) -> int:
        widest = max((line.cells[index].cell_len for line in self.lines), default=0)
        return max(widest, Text(self.columns[index].title).cell_len) if widest else 0

    def _least(self, index: int, natural: int) -> int:
        least = self.columns[index].least
        return natural if least is None else min(least, natural)

    def _row(self, console: Console, cells: Sequence[Text], widths: dict[int, int]) -> Iterator[Text]:
        wrapped = [
            _lines(console, cell, widths[index], self.columns[index].is_cut)
            for cell, index in zip(cells, widths, strict=True)
        ]
        for height in range(max(len(lines) for lines in wrapped)):
            row = Text()
            for index, lines in zip(widths, wrapped, strict=True):
                part = _stripped(lines[height]) if height < len(lines) else Text()
                part.align("left" if self.columns[index].is_left else "right", widths[index])
                row.append_text(part).append(" " * GAP)
            yield _stripped(row)


def _lines(console: Console, cell: Text, width: int, is_cut: bool) -> Sequence[Text]:
    if not is_cut:
        return list(cell.wrap(console, width, overflow="fold"))
    line = cell.copy()
    line.truncate(width, overflow="ellipsis")
    return [line]


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _stripped(text: Text) -> Text:
    text.rstrip()
    return text
