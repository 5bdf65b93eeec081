"""`jax.experimental.checkify` sees the operations within the engine's calls.

JAX has no public way to register a rule. `error_checks` and `checkify_jaxpr` of `jax._src.checkify` are the private
names here (jax 0.10 to 0.12). Without them checkify would run a scan and check nothing in it.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax._src import checkify
from jax.extend.core import ClosedJaxpr, Primitive


def check_within(primitive: Primitive, program: Callable[[Any, dict[str, Any]], ClosedJaxpr]) -> None:
    """Check the operations of the program that a primitive calls.

    Args:
        primitive: the primitive.
        program: makes the program from the types of the operands and the parameters.
    """

    def check(*arguments: Any, **params: Any) -> Any:
        # With jax 0.12 a context stands before the error.
        context = [] if isinstance(arguments[0], checkify.Error) else [arguments[0]]
        error, enabled_errors, *operands = arguments[len(context) :]
        body = program([*map(jax.typeof, operands)], params)
        return checkify.checkify_jaxpr(*context, body, enabled_errors, error, *operands)

    checkify.error_checks[primitive] = check
