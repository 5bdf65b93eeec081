"""What many parts of the package share: messages, arguments, dtypes, pytrees, wrappers of a step."""

import jax
from jaxlib.version import __version__ as jaxlib_version

from rnnscan.versions import warn_once


# Here, because every part that runs a cell imports this package. Not in `rnnscan` itself: `import rnnscan` does not
# import jax, and a filter of the warning needs its category first.
warn_once(jax.__version__, jaxlib_version)
