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
        fills: the color of a cell for a browser, by its text.
        legend: what the fills mean.
        wrapped_columns: the columns whose texts wrap in a terminal, whatever they hold.
    """

    header: Sequence[str]
    sections: Sequence[Sequence[Sequence[str]]]
    text_columns: int
    styles: Mapping[str, str] = field(default_factory=dict)
    fills: Mapping[str, str] = field(default_factory=dict)
    legend: Mapping[str, str] = field(default_factory=dict)
    wrapped_columns: Sequence[int] = (0,)

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

        Only the first column wraps, or those in `wrapped_columns`. In a terminal that is too narrow, so do other texts
        without a type.
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
            wraps = number in self.wrapped_columns or (is_text and not fits and not any("[" in cell for cell in column))
            table.add_column(title, justify="left" if is_text else "right", overflow="fold", no_wrap=not wraps)
        for section in self.sections:
            for row in section:
                style = next((self.styles[cell] for cell in row if cell in self.styles), None)
                table.add_row(*map(Text, row), style=style)  # Text: a string's brackets may be markup.
            table.add_section()
        yield table

    def _repr_html_(self) -> str:
        """The table for a browser: numbers on the right, kinds in their colors, a rule before a group, a legend."""

        def line(row: Sequence[str], tag: str, rule: str = "") -> str:
            cells = (f"<{tag} style='{self._style(*cell)}{rule}'>{escape(cell[1])}</{tag}>" for cell in enumerate(row))
            return f"<tr>{''.join(cells)}</tr>"

        body = "".join(
            line(row, "td", "border-top:1px solid" if number and not index else "")
            for number, section in enumerate(self.sections)
            for index, row in enumerate(section)
        )
        legend = "".join(
            f"<span style='{self._style(0, text)}margin-right:1em'>{escape(meaning)}</span>"
            for text, meaning in self.legend.items()
        )
        below = f"<p>{legend}</p>" if legend else ""
        return f"<table style='border-collapse:collapse'>{line(self.header, 'th')}{body}</table>{below}"

    def _style(self, column: int, cell: str) -> str:
        side = "left" if column < self.text_columns else "right;font-variant-numeric:tabular-nums"
        # Half transparent, so that the text is readable on a light and on a dark page.
        fill = f"background:{self.fills[cell]}80;" if cell in self.fills else ""
        return f"text-align:{side};padding:1px 8px;{fill}"


# The least width of a table's first column before other columns wrap.
_LEAST_FIRST = 10


class Shown:
    """The base of objects that notebooks show as paragraphs and tables. Their text is their own."""

    def _blocks(self) -> Iterator[str | Table]:
        raise NotImplementedError

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """The object in treescope's displays, such as those of Flax."""
        from treescope import rendering_parts as parts

        return parts.siblings(
            parts.embedded_iframe(
                embedded_html=f"<div style='font-family:sans-serif'>{self._repr_html_()}</div>",
                fallback_in_text_mode=parts.text(str(self)),
            )
        )

    def _repr_html_(self) -> str:
        return "".join(
            block._repr_html_() if isinstance(block, Table) else f"<p>{escape(block).replace(chr(10), '<br>')}</p>"
            for block in self._blocks()
        )


class Report(Shown):
    """The base of reports. They consist of paragraphs and tables, as text too."""

    def __str__(self) -> str:
        """The report as text."""
        return "\n\n".join(map(str, self._blocks()))

    def __rich__(self) -> Any:
        """The report for rich."""
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(block) if isinstance(block, str) else block for block in self._blocks()))


def titled(title: str, blocks: Iterator[str | Table]) -> Iterator[str | Table]:
    """The blocks of a report, with a title before its first paragraph."""
    yield f"{title}: {next(blocks)}"
    yield from blocks
