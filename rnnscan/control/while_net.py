"""while_net(): a loop that stops by a condition, with gradients."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jaxtyping import Array, Integer

from rnnscan import _checks as checks
from rnnscan._util.call_context import called_as
from rnnscan._util.sources import named_after
from rnnscan.control import _until
from rnnscan.memory import Memory
from rnnscan.scan_observer import observe_loop, observed_step


def while_net(
    cond: Callable[[Any, Any], Any],
    body: Callable[[Any, Any], Any],
    carry: Any,
    *,
    params: Any = None,
    max_steps: int,
    memory: Memory = Memory(),
    on_limit: Literal["error", "stop"] = "error",
) -> tuple[Any, Integer[Array, ""]]:
    """Run `body` while `cond` holds, with gradients in reverse and forward mode.

    It computes

        steps = 0
        while steps < max_steps and cond(params, carry):
            carry, steps = body(params, carry), steps + 1
        return carry, steps

    The loop stops for real: no step runs after the last one, forward or backward. The backward pass does as many steps
    as the forward pass did. It batches the recomputation and the sums of parameter gradients over a chunk of steps, as
    `rnnscan.scan` does.

    Under `jax.vmap`, each example stops by its own condition. The loop runs until all have stopped, and the carry of
    those that have is held.

    Args:
        cond: `cond(params, carry) -> bool`, a boolean scalar. No gradient flows through it.
        body: `body(params, carry) -> carry`, a pure function. The new carry has the structure, shapes and dtypes of
            the old one.
        carry: the carry before the first step, any pytree. Integers and keys are allowed.
        params: parameters of both, any pytree. Arrays that the body closes over get gradients too.
        max_steps: the most steps. Reverse mode allocates memory for as many, whether they run or not: the carry
            before each step and the named values that are kept; with `segment`, the carry and the number of
            steps before each segment, and the same for one segment.
        memory: the memory choice. `segment="sqrt"` is the square root of `max_steps`. Nested segments are rounded up
            to multiples of the next. Names inside a vmap, a branch or a loop of the body are recomputed.
        on_limit: what happens if `cond` still holds after `max_steps` steps: "error" raises, and "stop" returns the
            carry. Under `jax.jit` the error comes from a host callback when the program runs, and `jax.export` cannot
            write one: use "stop" there.

    Returns:
        The carry after the last step, and the number of steps.

    Raises:
        TypeError: if `cond` returns no boolean scalar, or `body` another type of carry.
        ValueError: if an option is wrong, `memory` has a name that the body does not define, or `body` or `cond` has a
            side effect other than those of `jax.debug`.
        RuntimeError: if `cond` still holds after `max_steps` steps, with on_limit="error".

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def root(a):  # Newton's method.
        ...     def far(a, x):
        ...         return jnp.abs(x * x - a) > 1e-6
        ...     x, steps = rs.while_net(far, lambda a, x: (x + a / x) / 2, a, params=a, max_steps=20)
        ...     return x, steps
        >>> (x, steps), slope = jax.value_and_grad(root, has_aux=True)(2.0)
        >>> print(f"{x:.4f} after {steps} steps, with the derivative {slope:.4f}")
        1.4142 after 4 steps, with the derivative 0.3536

    Source: Caffe2's `While` and its gradient; the memory choice is that of Chen et al. 2016, "Training Deep Nets with
    Sublinear Memory Cost".
    """
    _until.check_options("while_net", max_steps, memory)
    if on_limit not in ("error", "stop"):
        raise ValueError(f'while_net: `on_limit` must be "error" or "stop"; got {on_limit!r}.')
    for name, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(f"while_net: `{name}` must be callable as {name}(params, carry); got {function!r}.")
    checks.check_params(params, function="while_net")
    arrays = {"params": params, "carry": checks.as_arrays(carry, "carry", function="while_net")}
    options = {"max_steps": max_steps, "memory": memory}
    observe_loop("while_net", body, params, arrays["carry"])
    steps, carry, limited = _until.run_by_cached_program(_run, body, cond, arrays, options)
    if on_limit == "error":
        _until.raise_at_limit("while_net", limited, max_steps)
    return carry, steps


def _run(pair: _until.Pair, *, params: Any, carry: Any, **options: Any) -> tuple[Any, Any, Any]:
    """The number of steps, the carry, and whether the condition holds at the limit."""
    body, cond = pair.functions()
    structure: Any = jax.tree.structure(carry)

    def cell(params: Any, carry: Any, _: Any) -> tuple[Any, None]:
        with called_as(
            "while_net: `body`", "body(params, carry)", "It returns the new carry alone, like the old one.", carry=carry
        ):
            new_carry = body(params, carry)
            if jax.tree.structure(new_carry) != structure:
                raise TypeError(
                    "while_net: `body` must return a carry of the structure that it was given; it was given "
                    f"{structure} and returned {jax.tree.structure(new_carry)}."
                )
        return new_carry, None

    def cond_fun(params: Any, carry: Any) -> Any:
        with called_as("while_net: `cond`", "cond(params, carry)", "It returns a boolean scalar.", carry=carry):
            return _until.as_booleans("while_net", "cond", cond(params, carry))

    cell, cond_fun = named_after(cell, body), named_after(cond_fun, cond)
    cell = observed_step(cell, carry, None, options["max_steps"])
    steps, carry, _, limited = _until.run("while_net", cell, params, carry, None, cond_fun, **options)
    return steps, carry, limited
