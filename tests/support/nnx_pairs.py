"""An RNN of flax.nnx and the one of rnnscan that takes its place, with the same random weights, run side by side."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import rnnscan.nnx
from drawn import normal
from zoo.case import Case, assert_trees_close


TIME, BATCH, FEATURES, UNITS = 6, 3, 3, 4

# All cells that flax.nnx has.
CELLS = {
    name: cell
    for name, cell in vars(nnx).items()
    if isinstance(cell, type) and issubclass(cell, nnx.RNNCellBase) and cell is not nnx.RNNCellBase
}


def fill(tree: Any, seed: int = 0) -> Any:
    """Random floating arrays in place of a tree's; keys and integers as they are."""
    random = np.random.default_rng(seed)

    def draw(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return normal(random, leaf.shape, leaf.dtype, 0.5)

    return jax.tree.map(draw, tree)


def random_inputs(*shape: int, seed: int = 1) -> jax.Array:
    return fill(jnp.empty(shape or (BATCH, TIME, FEATURES)), seed)


def make_cell(name: str, rngs: nnx.Rngs | None = None, **options: Any) -> Any:
    """A cell in the widest dtype that is on, whose biases are not zero."""
    dtype = jnp.result_type(float)
    cell = CELLS[name](FEATURES, UNITS, dtype=dtype, param_dtype=dtype, rngs=rngs or nnx.Rngs(0), **options)
    nnx.update(cell, fill(nnx.state(cell, nnx.Param)))
    return cell


def random_carry(name: str, batch: tuple[int, ...] = (BATCH,)) -> Any:
    leaf = jnp.empty((*batch, UNITS))
    return fill((leaf, leaf) if "LSTM" in name else leaf, seed=2)


def both(make: Any, **options: Any) -> tuple[nnx.RNN, rnnscan.nnx.RNN]:
    """Flax's RNN of a cell, and rnnscan's."""
    return nnx.RNN(make(), **options), rnnscan.nnx.RNN(make(), **options)


def call(model: Any, inputs: Any, **given: Any) -> Any:
    """What a model returns."""
    arrays, options = _apart(given)
    return _call(model, inputs, arrays, options)


def run(model: Any, inputs: Any, initial_carry: Any = None, **given: Any) -> Any:
    """What a model returns, and the gradients of a loss of it for its parameters, and for inputs and carry."""
    arrays, options = _apart(given)
    (of_params, *others), outputs = _gradients(model, inputs, initial_carry, arrays, options)
    return outputs, nnx.to_pure_dict(of_params), others


def assert_same(models: tuple[Any, Any], *arguments: Any, **given: Any) -> Any:
    """Both models give the same values and gradients, to rounding. Returns those of the second."""
    expected, actual = (run(model, *arguments, **given) for model in models)
    assert_trees_close(actual, expected, tolerance=1e-9)
    return actual


def _apart(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[tuple[str, bool], ...]]:
    options = {name: value for name, value in given.items() if isinstance(value, bool)}
    return {name: value for name, value in given.items() if name not in options}, tuple(options.items())


# Each compiled once for the same kinds of models and arguments.
@partial(nnx.jit, static_argnames="options")
def _call(model: Any, inputs: Any, arrays: Any, options: Any) -> Any:
    return model(inputs, **arrays, **dict(options))


@partial(nnx.jit, static_argnames="options")
def _gradients(model: Any, inputs: Any, initial_carry: Any, arrays: Any, options: Any) -> Any:
    def loss(model: Any, inputs: Any, initial_carry: Any) -> tuple[Any, Any]:
        outputs = model(inputs, initial_carry=initial_carry, **arrays, **dict(options))
        return Case.loss(outputs), outputs

    return nnx.grad(loss, argnums=(0, 1, 2), has_aux=True)(model, inputs, initial_carry)
