"""What differs with JAX's new remat, under JAX_REMAT3=1."""

import os


IS_ON = os.environ.get("JAX_REMAT3") == "1"
