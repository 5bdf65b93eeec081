"""Hooks of mkdocs: notebooks and the changelog become pages, and no page may load anything from another server.

Each page describes itself to search engines, by its `description` or by its first paragraph.

The site has `llms.txt`, a list of its pages for language models, and `llms-full.txt`, their sources in one file.
"""

import base64
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File


# Links to notebooks, as they work in the checkout and on GitHub.
NOTEBOOK = re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb\)")
# Elements that a browser loads with the page. Links that a reader follows may go anywhere.
LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
# The beginnings of paragraphs that are no plain text: headings, lists, tables, pictures, notes and HTML.
NO_TEXT = re.compile(r"[#>|!<:]|[-*] |\d+\. ")
LONGEST_DESCRIPTION = 160
CHANGELOG_HEAD = "---\ndescription: The changes that users notice, in each version of rnnscan.\n---\n\n"
# A row of docs/versions.md: a Python and the jax that the tests run with.
TESTED = re.compile(r"^\| 3\.\d+ \| `(?:~=)?(\d+\.\d+)\.\d+`", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Say at the foot of each page which version it describes, and let a reader choose another where there are some."""
    root = Path(config.config_file_path).parent
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    tested = TESTED.findall((root / "docs" / "versions.md").read_text(encoding="utf-8"))
    newest = max(tested, key=lambda minor: [int(part) for part in minor.split(".")])
    config.copyright = f"rnnscan {version}, last tested with jax {newest}"
    if "MIKE_DOCS_VERSION" in os.environ:  # `make docs-version`. A site on disk has one version, and asks no server.
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the changelog and the notebooks, which are not in docs/, as pages, and their pictures as files."""
    root = Path(config.config_file_path).parent
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=CHANGELOG_HEAD + changelog))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        text, pictures = page_of(json.loads(path.read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def page_of(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, with the outputs that are in it, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(fenced(source, "python"))
        for kind, content in outputs_of(cell):
            if kind == "image/png":
                name = f"{stem}_{len(pictures)}.png"
                pictures[name] = base64.b64decode(content)
                parts.append(f"![Picture drawn by the code above]({name})")
            else:
                parts.append(content if kind == "text/html" else fenced(content, "text"))
    return "\n\n".join(parts), pictures


def outputs_of(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The outputs of a cell, each in its richest form."""
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        kind = next(kind for kind in ("image/png", "text/html", "text/plain") if kind in data)
        yield kind, "".join(data[kind])


def fenced(text: str, language: str) -> str:
    """A block of code, or of its printed output."""
    return f"```{language}\n{text.rstrip()}\n```"


# The sources of the pages, by address, in the order of the build.
_sources: dict[str, tuple[str, str]] = {}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links to notebooks to their pages, describe the page, and note its source for language models."""
    markdown = NOTEBOOK.sub(r"](notebooks/\1.md)", markdown)
    if not page.is_homepage:  # It has the description of the site.
        page.meta.setdefault("description", description_of(markdown))
    _sources[page.file.src_uri] = page.title or page.file.name, markdown
    return markdown


def description_of(markdown: str) -> str:
    """The title of a page and the first sentences of its first paragraph, as plain text."""
    title = markdown.partition("# ")[2].partition("\n")[0].replace("`", "")
    without_code = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    paragraphs = (paragraph.strip() for paragraph in without_code.split("\n\n"))
    first = next((paragraph for paragraph in paragraphs if paragraph and not NO_TEXT.match(paragraph)), "")
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", first).replace("`", "").replace("**", "")
    described = f"{title}:"
    for sentence in re.split(r"(?<=[^.][.:?]) ", " ".join(text.split())):
        if len(described) + len(sentence) > LONGEST_DESCRIPTION and described != f"{title}:":
            break
        described += f" {sentence}"
    return described.rstrip(":").replace('"', "'")  # It stands within the quotes of an attribute.


def on_post_build(*, config: Any) -> None:
    """Write the files for language models, and refuse a page that loads something from another server."""
    site = Path(config.site_dir)
    lines = [f"- [{title}]({Path(address).with_suffix('.html')})" for address, (title, _) in _sources.items()]
    header = f"# {config.site_name}\n\n> {config.site_description}\n\n"
    (site / "llms.txt").write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(text for _, text in _sources.values()) + "\n", encoding="utf-8")
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := LOADED.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} loads something from another server: {found[0]}")
