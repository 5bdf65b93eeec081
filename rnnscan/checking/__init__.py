"""Checks that a recurrent model is what it claims: rnnscan.check, and its report."""

from rnnscan.checking.report import CheckError as CheckError
from rnnscan.checking.report import CheckReport as CheckReport
from rnnscan.checking.report import Outcome as Outcome
