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

    def __rich__(self) -> Any:
        """The table for rich."""
        from rich.table import Table

        table = Table()
        for number, title in enumerate(self.header):
            is_text = number < self.text_columns
            table.add_column(title, justify="left" if is_text else "right", overflow="fold" if is_text else "ellipsis")
        for section in self.sections:
            for row in section:
                table.add_row(*row, style=next((self.styles[cell] for cell in row if cell in self.styles), None))
            table.add_section()
        return table

    def _repr_html_(self) -> str:
        def line(row: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

        body = "".join(line(row, "td") for section in self.sections for row in section)
        return f"<table>{line(self.header, 'th')}{body}</table>"


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

        return Group(*self._blocks())

    def _repr_html_(self) -> str:
        return "".join(
            block._repr_html_() if isinstance(block, Table) else f"<p>{escape(block).replace(chr(10), '<br>')}</p>"
            for block in self._blocks()
        )


def titled(title: str, blocks: Iterator[str | Table]) -> Iterator[str | Table]:
    """The blocks of a report, with a title before its first paragraph."""
    yield f"{title}: {next(blocks)}"
    yield from blocks
