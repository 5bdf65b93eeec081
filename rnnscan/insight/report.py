"""Reports that show as text, as tables of rich, and as HTML."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        header: the titles of the columns.
        sections: groups of rows.
        text_columns: the number of leading columns with text, aligned left; the others hold numbers.
        styles: rich's style of a row, by the text of one of its cells.
    """

    header: Sequence[str]
    sections: Sequence[Sequence[Sequence[str]]]
    text_columns: int
    styles: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The table as text."""
        first, *rest = self.sections
        groups = [[self.header, *first], *rest]
        columns = zip(*(row for group in groups for row in group), strict=True)
        pads = [f"{'<' if i < self.text_columns else '>'}{max(map(len, cells))}" for i, cells in enumerate(columns)]

        def line(row: Sequence[str]) -> str:
            return "  ".join(f"{cell:{pad}}" for cell, pad in zip(row, pads, strict=True)).rstrip()

        return "\n\n".join("\n".join(map(line, group)) for group in groups)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """The table for rich. It has no vertical lines, so that more columns fit 80 characters.

        Only the first column wraps. In a terminal that is too narrow, so do other texts without a type.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        header = [
            title if number < self.text_columns else title.replace(" ", "\n")
            for number, title in enumerate(self.header)
        ]
        columns = [*zip(header, *(row for section in self.sections for row in section), strict=True)]
        widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
        gaps = len(columns) - 1
        gap = 2 if sum(widths) + 2 * gaps <= options.max_width else 1
        fits = _LEAST_FIRST + sum(widths[1:]) + gap * gaps <= options.max_width
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
        for number, (title, column) in enumerate(zip(header, columns, strict=True)):
            is_text = number < self.text_columns
            wraps = number == 0 or (is_text and not fits and not any("[" in cell for cell in column))
            table.add_column(title, justify="left" if is_text else "right", overflow="fold", no_wrap=not wraps)
        for section in self.sections:
            for row in section:
                style = next((self.styles[cell] for cell in row if cell in self.styles), None)
                table.add_row(*map(Text, row), style=style)  # Text: a string's brackets may be markup.
            table.add_section()
        yield table

    def _repr_html_(self) -> str:
        def line(row: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

        body = "".join(line(row, "td") for section in self.sections for row in section)
        return f"<table>{line(self.header, 'th')}{body}</table>"


# The least width of a table's first column before other columns wrap.
_LEAST_FIRST = 10


class Report:
    """The base of reports. They consist of paragraphs and tables."""

    def _blocks(self) -> Iterator[str | Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        """The report as text."""
        return "\n\n".join(map(str, self._blocks()))

    def __rich__(self) -> Any:
        """The report for rich."""
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(block) if isinstance(block, str) else block for block in self._blocks()))

    def _repr_html_(self) -> str:
        return "".join(
            block._repr_html_() if isinstance(block, Table) else f"<p>{escape(block).replace(chr(10), '<br>')}</p>"
            for block in self._blocks()
        )


def titled(title: str, blocks: Iterator[str | Table]) -> Iterator[str | Table]:
    """The blocks of a report, with a title before its first paragraph."""
    yield f"{title}: {next(blocks)}"
    yield from blocks
