"""Picture: a drawn graph, as text that can be saved or shown."""

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

from rnnscan._util.messages import listing, nearest
from rnnscan.graph.draw.collapse import collapsed
from rnnscan.graph.draw.diagram import Diagram
from rnnscan.graph.draw.dot import to_dot
from rnnscan.graph.draw.mermaid import to_mermaid


Format: TypeAlias = Literal["svg", "mermaid", "dot"]
Direction: TypeAlias = Literal["down", "right"]
_ENDINGS = {
    "svg": (".svg", ".png", ".pdf", ".jpg", ".jpeg"),
    "mermaid": (".mmd", ".mermaid", ".md"),
    "dot": (".dot", ".gv"),
}


@dataclass(frozen=True)
class Picture:
    """A drawn graph. In a notebook it shows itself, if its format is SVG.

    Attributes:
        diagram: its boxes and arrows.
        format: "svg", "mermaid" or "dot".
        direction: "down" or "right".
        title: the title, or "".
    """

    diagram: Diagram = field(repr=False)
    format: Format = "svg"
    direction: Direction = "down"
    title: str = ""

    @cached_property
    def text(self) -> str:
        """The picture in its format. SVG needs the extra `plot`.

        Raises:
            ImportError: if the extra is needed and not installed.
        """
        if self.format == "mermaid":
            return to_mermaid(self.diagram, self.direction, self.title)
        if self.format == "dot":
            return self._dot
        from rnnscan.graph.draw.graphviz import to_svg

        return to_svg(self._dot, self.title)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture into a file. Missing directories are made.

        Args:
            path: the file. Its ending belongs to the format: `.mmd`, `.mermaid` or `.md` to "mermaid", `.dot` or `.gv`
                to "dot", and `.svg`, `.png`, `.pdf` or `.jpg` to "svg".

        Raises:
            ImportError: if the extra `plot` is needed and not installed.
            ValueError: if the ending does not belong to the format.
        """
        path = Path(path)
        check_ending(path, self.format)
        path.parent.mkdir(parents=True, exist_ok=True)
        ending = path.suffix.lower()
        if self.format != "svg" or ending == ".svg":
            path.write_text(self.text, encoding="utf-8")
        else:
            from rnnscan.graph.draw.graphviz import rendered

            path.write_bytes(rendered(self._dot, ending[1:]))

    @cached_property
    def _dot(self) -> str:
        return to_dot(self.diagram, self.direction, self.title)

    def __str__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str | None:
        return self.text if self.format == "svg" else None

    def _repr_html_(self) -> str | None:
        """The picture itself, and not an image of it, so that tooltips show."""
        return f'<div style="overflow:auto">{self.text}</div>' if self.format == "svg" else None


@dataclass(frozen=True)
class PictureOptions:
    """The options of every picture of a graph. Attributes are as in `Picture`, and `collapse` as in `collapsed`."""

    format: Format = "svg"
    direction: Direction = "down"
    collapse: bool | int | None = None
    title: str = ""

    def checked(self, function: str) -> "PictureOptions":
        """These options, if each has one of its values.

        Args:
            function: the caller's name, for messages.

        Raises:
            TypeError: if `collapse` is neither a number nor a boolean nor None, or the title no text.
            ValueError: if an option has none of its values.
        """
        directions = ("down", "right")
        for name, option, known in (("format", self.format, _ENDINGS), ("direction", self.direction, directions)):
            if option not in known:
                raise ValueError(
                    f"{function}: `{name}` must be one of {listing(known)}; got {option!r}."
                    f"{nearest(str(option), known)}"
                )
        if not isinstance(self.title, str):
            raise TypeError(f"{function}: `title` must be text; got {self.title!r}. Write title='one step', say.")
        collapse = self.collapse
        if collapse is not None and not isinstance(collapse, int):
            raise TypeError(
                f"{function}: `collapse` must be a number of enclosing scopes, True, False or None; got {collapse!r}. "
                "Write collapse=1 for one box for each of the outermost scopes."
            )
        if collapse is not None and collapse is not False and collapse < 1:
            raise ValueError(
                f"{function}: `collapse` must be at least 1; got {collapse!r}. "
                "Write collapse=False to draw every operation."
            )
        return self

    def picture(self, diagram: Diagram) -> Picture:
        """Draw a diagram."""
        return Picture(collapsed(diagram, self.collapse), self.format, self.direction, self.title)


def check_ending(path: Path, format: Format = "svg") -> None:
    """Reject a file that a picture cannot be saved into, before any work.

    Args:
        path: the file.
        format: the format of the picture.

    Raises:
        ImportError: if the extra `plot` is needed and not installed.
        ValueError: if the ending does not belong to the format.
    """
    if format == "svg":
        import rnnscan.graph.draw.graphviz  # noqa: F401
    known = _ENDINGS[format]
    if path.suffix.lower() not in known:
        raise ValueError(
            f"picture: the file's ending must be one of {', '.join(known)} for the format {format!r}; got "
            f"{str(path)!r}. Write graph{known[0]}, say."
        )
