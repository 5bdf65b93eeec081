"""`jax.experimental.checkify` sees the operations within the engine's calls.

JAX has no public way to register a rule. `error_checks` and `checkify_jaxpr` of `jax._src.checkify` are the private
names here (jax 0.10 to 0.12). Without them checkify would run a scan and check nothing in it.
"""

from typing import Any

import jax
from jax._src import checkify
from jax.extend.core import ClosedJaxpr, Primitive


def check_within(primitive: Primitive) -> None:
    """Check the operations of the function that a primitive calls."""

    def check(*arguments: Any, function: Any, call_jaxpr: ClosedJaxpr | None) -> Any:
        # With jax 0.12 a context stands before the error.
        context = [] if isinstance(arguments[0], checkify.Error) else [arguments[0]]
        error, enabled_errors, *operands = arguments[len(context) :]
        body = call_jaxpr or function.traced(map(jax.typeof, operands))
        return checkify.checkify_jaxpr(*context, body, enabled_errors, error, *operands)

    checkify.error_checks[primitive] = check
