"""What the tests of the engine share: every pass makes a program of a program."""

import functools
import weakref

import pytest

from rnnscan.engine import passes
from rnnscan.ir.spec import check_program


_typed = weakref.WeakSet()


@pytest.fixture(autouse=True)
def checked_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the program before the first pass and after each."""
    apply = passes.apply

    def checked(run):
        def run_and_check(program):
            try:
                return check_program(run(program), _typed)
            except ValueError as error:
                raise AssertionError(f"after {getattr(run, 'func', run).__name__}: {error}") from error

        return functools.wraps(getattr(run, "func", run))(run_and_check)

    def apply_checked(every, program):
        return apply(tuple(map(checked, every)), check_program(program, _typed))

    monkeypatch.setattr(passes, "apply", apply_checked)
