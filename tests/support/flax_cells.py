"""The cells of flax.linen, and how a model with Flax's RNN and one with rnnscan's are compared."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat3
from drawn import normal
from zoo.case import Case, assert_trees_close


TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 3, 4
LENGTHS = (TIME, 2, 1)
KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}

# With jax 0.10.2. Flax's own loop fails likewise: "broadcasted variable has a data dependency on the scan body".
remat_in_a_loop = pytest.mark.skipif(
    remat3.IS_ON, reason="Flax cannot make the variables of a rematerialized cell in a loop"
)

# Every cell of flax.linen, and each of its options that changes what it computes: the cell's type, its options, and the
# spatial axes of an input.
CELLS = {
    "LSTMCell": (nn.LSTMCell, {}, ()),
    "OptimizedLSTMCell": (nn.OptimizedLSTMCell, {"gate_fn": nn.hard_sigmoid}, ()),
    "GRUCell": (nn.GRUCell, {"activation_fn": nn.relu}, ()),
    "MGUCell": (nn.MGUCell, {}, ()),
    "MGUCell without reset": (nn.MGUCell, {"reset_gate": False}, ()),
    "SimpleCell": (nn.SimpleCell, {}, ()),
    "SimpleCell residual": (nn.SimpleCell, {"residual": True}, ()),
    "ConvLSTMCell": (nn.ConvLSTMCell, {"kernel_size": (2,)}, (4,)),
    "ConvLSTMCell 2D": (nn.ConvLSTMCell, {"kernel_size": (2, 2), "use_bias": False}, (2, 3)),
}


# Flax's orthogonal matrices take long to compile.
PLAIN_KERNEL = {"recurrent_kernel_init": nn.initializers.lecun_normal()}


def cell_and_inputs(name: str, batch: tuple[int, ...] = (BATCH,), time_major: bool = False) -> tuple[Any, jax.Array]:
    """A new cell with random initial carries, in float64 where it is on, and inputs for it."""
    cell_type, options, spatial = CELLS[name]
    options = options if spatial else PLAIN_KERNEL | options
    cell = cell_type(HIDDEN_SIZE, param_dtype=jnp.result_type(float), carry_init=nn.initializers.normal(0.5), **options)
    rows = (TIME, *batch) if time_major else (*batch, TIME)
    return cell, draw((*rows, *spatial, INPUT_SIZE))


def draw(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jnp.asarray(0.5 * np.random.default_rng(seed).normal(size=shape))


def fill(tree: Any, seed: int = 1) -> Any:
    """Random numbers in the place of all floats: no bias is zero."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype, 0.5), tree)


def variables_of(model: nn.Module, inputs: Any) -> Any:
    """Variables of the shapes that the model starts with, random and nowhere zero."""
    return fill(jax.eval_shape(model.init, KEYS, inputs))


def values(
    model: nn.Module, variables: Any, inputs: Any, carry: Any = None, *, mutable: Any = False, **call: Any
) -> Any:
    """What a model returns."""
    return jax.jit(lambda *arguments: _apply(model, *arguments, mutable=mutable, **call))(variables, inputs, carry)


def gradients(
    model: nn.Module, variables: Any, inputs: Any, carry: Any = None, *, mutable: Any = False, **call: Any
) -> Any:
    """What a model returns, and the gradients of a loss of it for parameters, inputs and the initial carry."""
    rest = {name: collection for name, collection in variables.items() if name != "params"}

    def loss(params: Any, inputs: Any, carry: Any) -> tuple[Any, Any]:
        outputs = _apply(model, {"params": params, **rest}, inputs, carry, mutable=mutable, **call)
        return Case.loss(outputs), outputs

    @jax.jit
    def outputs_and_gradients(*arguments: Any) -> tuple[Any, Any]:
        gradients, outputs = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*arguments)
        return outputs, gradients

    return outputs_and_gradients(variables["params"], inputs, carry)


def _apply(model: nn.Module, variables: Any, inputs: Any, carry: Any, **call: Any) -> Any:
    given = {} if carry is None else {"initial_carry": carry}
    return model.apply(variables, inputs, rngs={"dropout": KEYS["dropout"]}, **given, **call)


def assert_same(flax_model: nn.Module, model: nn.Module, inputs: Any, carry: Any = None, **call: Any) -> Any:
    """The same outputs and gradients with the same random variables."""
    variables = variables_of(flax_model, inputs)
    expected = gradients(flax_model, variables, inputs, carry, **call)
    assert_trees_close(gradients(model, variables, inputs, carry, **call), expected, tolerance=1e-9)
    return expected


def assert_same_start(flax_model: nn.Module, model: nn.Module, inputs: Any) -> None:
    """The same variables at the same places, and the same values where both start."""
    assert_trees_close(jax.jit(model.init)(KEYS, inputs), jax.jit(flax_model.init)(KEYS, inputs))
