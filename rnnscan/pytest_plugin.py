"""The plugin of pytest: the fixture `rnnscan_check`. It imports JAX only in a test that calls the fixture's value."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import rnnscan as rs


if TYPE_CHECKING:
    from rnnscan.checking import CheckReport


@pytest.fixture
def rnnscan_check() -> "Callable[..., CheckReport]":
    """`rnnscan.check`, which fails the test if a check does not hold. It returns the report.

    Example:
        def test_my_cell(rnnscan_check):
            rnnscan_check(my_cell, params, carry, xs, skip="parallel")
    """

    def run(*arguments: Any, **options: Any) -> "CheckReport":
        __tracebackhide__ = True
        report = rs.check(*arguments, **options)
        report.raise_if_failed()
        return report

    return run
