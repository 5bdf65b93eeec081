"""The commands of the pages: each has the options that it is written with, and those of the quick start run."""

import re
import shlex
import subprocess
import sys

import pytest
import typer

from pages import DOCS, ROOT, fenced
from rnnscan.cli.app import app


PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def commands_of(page):
    """The commands `rnnscan ...` in the blocks of text of a page, each on one line, without its comment."""
    blocks = [block for kind, block in fenced(page.read_text()) if kind in ("", "text")]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^|\| |srun )rnnscan (.*)", line) for line in lines]
    return [shlex.split(match[1], comments=True) for match in found if match]


ALL = [(page, words) for page in PAGES for words in commands_of(page)]


def parse(words):
    """Parse a command without running it."""
    group = typer.main.get_command(app)
    with group.make_context("rnnscan", list(words)) as context:
        name, command, rest = group.resolve_command(context, list(words))
        command.make_context(name, rest, parent=context).close()


def test_there_are_commands():
    assert len(ALL) > 15


@pytest.mark.parametrize("words", [words for _, words in ALL], ids=" ".join)
def test_a_command_has_the_options_that_it_is_written_with(words):
    parse(words)


def test_an_option_that_is_gone_is_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["plan", "LSTM", "--budgets", "64MiB"])


@pytest.mark.slow
def test_the_commands_of_the_quick_start_run_one_after_the_other(tmp_path):
    commands = commands_of(DOCS / "quickstart.md")
    assert commands
    for words in commands:
        command = [sys.executable, "-c", "from rnnscan.cli import main; main()", *words]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"rnnscan {' '.join(words)}\n{ran.stdout}\n{ran.stderr}"
