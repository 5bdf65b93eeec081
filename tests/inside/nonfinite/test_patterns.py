"""Which elements read which, compared with NaN in one element after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rnnscan.inside.nonfinite.loops import open_jaxpr
from rnnscan.ir.program import read


A, B = (4, 3), (3, 5)


def ones(*shape):
    return np.random.default_rng(0).uniform(0.5, 1.5, size=shape).astype(np.float32)


# NaN in an element of the operands reaches just the elements of the result that read it.
OPERATIONS = {
    "add": (jnp.add, ones(*A), ones(*A)),
    "a scalar": (lambda a: 2.5 * a, ones(*A)),
    "transpose": (lambda a: a.T, ones(*A)),
    "reshape": (lambda a: a.reshape(2, 6), ones(*A)),
    "broadcast": (lambda a: jnp.broadcast_to(a[:, None], (4, 2, 3)), ones(*A)),
    "slice": (lambda a: a[1:3, ::2], ones(*A)),
    "reverse": (lambda a: a[::-1], ones(*A)),
    "split": (lambda a: jnp.split(a, 3, axis=1)[1], ones(*A)),
    "concatenate": (lambda a, b: jnp.concatenate([a, b], axis=1), ones(*A), ones(4, 2)),
    "pad": (lambda a: jnp.pad(a, 1), ones(*A)),
    "gather": (lambda a: a[jnp.array([2, 0, 2])], ones(*A)),
    "dynamic slice": (lambda a: lax.dynamic_slice(a, (jnp.int32(1), jnp.int32(0)), (2, 2)), ones(*A)),
    "dynamic update": (lambda a, b: lax.dynamic_update_slice(a, b, (jnp.int32(1), jnp.int32(0))), ones(*A), ones(2, 2)),
    "scatter": (lambda a, b: jnp.asarray(a).at[jnp.array([2, 0])].set(b), ones(*A), ones(2, 3)),
    "scatter of sums": (lambda a, b: jnp.asarray(a).at[jnp.array([2, 2])].add(b), ones(*A), ones(2, 3)),
    "where": (lambda a, b: jnp.where(jnp.arange(3) > 0, a, b), ones(*A), ones(*A)),
    "product": (jnp.dot, ones(*A), ones(*B)),
    "batched product": (lambda a, b: jnp.einsum("bij,kbj->bik", a, b), ones(2, 4, 3), ones(5, 2, 3)),
    "outer product": (lambda a, b: lax.dot_general(a, b, (((), ()), ((), ()))), ones(3), ones(2)),
    "sum": (lambda a: a.sum(0), ones(*A)),
    "maximum": (lambda a: a.max(1), ones(*A)),
    "cumulative sum": (lambda a: jnp.cumsum(a, axis=0), ones(*A)),
    "reversed cumulative sum": (lambda a: lax.cumsum(a, axis=1, reverse=True), ones(*A)),
    "convolution": (
        lambda a, b: lax.conv_general_dilated(a, b, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        ones(2, 5, 1),
        ones(2, 1, 1),
    ),
}


@pytest.mark.parametrize("which", OPERATIONS)
def test_a_pattern_is_the_reach_of_nan(which):
    function, *operands = OPERATIONS[which]
    body = open_jaxpr(jax.make_jaxpr(lambda *operands: function(*operands))(*operands))
    for number, operand in enumerate(operands):
        for index in np.ndindex(operand.shape):
            planted = [np.array(each) for each in operands]
            planted[number][index] = np.nan
            reach = np.isnan(np.asarray(function(*planted)))
            np.testing.assert_array_equal(reached_through(body, planted, number, index), reach)
            # An element of the result reads the operand's if and only if the operand's reaches it.
            for place in [*zip(*reach.nonzero(), strict=True)][:2]:
                assert read_from(body, planted, place)[number][index]
            for place in [*zip(*(~reach).nonzero(), strict=True)][:2]:
                assert not read_from(body, planted, place)[number][index]


def reached_through(body, operands, number, index):
    """The elements of the result that read an element, by the patterns of the equations in order."""
    values = body.values(operands)
    masks = {var: np.zeros(var.shape, bool) for var in values if jnp.issubdtype(var.dtype, jnp.inexact)}
    masks[body.inputs[number]][index] = True
    for position, equation in enumerate(body.equations):
        floats = [atom for atom in equation.inputs if jnp.issubdtype(atom.dtype, jnp.inexact)]
        if not floats:
            continue
        inputs = [read(atom, values) for atom in equation.inputs]
        reads = [masks[atom] if atom in masks else np.zeros(atom.shape, bool) for atom in floats]
        results = body.pattern(position).readers(inputs, reads)
        masks.update({var: mask for var, mask in zip(equation.outputs, results, strict=True) if var in masks})
    return masks[body.outputs[0]]


def read_from(body, operands, place):
    """The elements of the operands that an element of the result reads, by the patterns in reverse."""
    values = body.values(operands)
    masks = {var: np.zeros(var.shape, bool) for var in values if jnp.issubdtype(var.dtype, jnp.inexact)}
    masks[body.outputs[0]][place] = True
    for position in reversed(range(len(body.equations))):
        equation = body.equations[position]
        floats = [atom for atom in equation.inputs if jnp.issubdtype(atom.dtype, jnp.inexact)]
        if not floats:
            continue
        inputs = [read(atom, values) for atom in equation.inputs]
        of_operands = body.pattern(position).read_by(inputs, [masks.get(var) for var in equation.outputs])
        for atom, mask in zip(floats, of_operands, strict=True):
            if atom in masks:
                masks[atom] = masks[atom] | mask
    return [masks[var] for var in body.inputs]
