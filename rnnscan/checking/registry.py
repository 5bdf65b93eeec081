"""All checks, in the order in which they run: what explains other failures comes first."""

from rnnscan.checking.checks import Check
from rnnscan.checking.derivatives import FINITE_DIFFERENCES, TRANSFORMATIONS
from rnnscan.checking.forms import EXPORT, FORMS, MEMORY, PARALLEL
from rnnscan.checking.independence import DOCUMENTS, FUTURE, PADDING, ROWS
from rnnscan.checking.precision import PRECISION
from rnnscan.checking.randomness import RANDOMNESS
from rnnscan.checking.steps import REVERSE, STEPS, WINDOWS
from rnnscan.checking.types import TYPES


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        TYPES,
        STEPS,
        FUTURE,
        ROWS,
        PADDING,
        REVERSE,
        DOCUMENTS,
        WINDOWS,
        MEMORY,
        PARALLEL,
        EXPORT,
        FORMS,
        TRANSFORMATIONS,
        FINITE_DIFFERENCES,
        PRECISION,
        RANDOMNESS,
    )
}
