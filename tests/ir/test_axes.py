"""Axes followed through equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan.ir.axes import SameAxes
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.trace import trace


def same_as_first(function, *shapes):
    """For each axis of the result, the axes of the operands that are in its group, by operand and position."""
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = trace(lambda *arrays: [function(*arrays)], *types)
    same, (result,) = SameAxes(program.equations), program.stacked
    return [
        [
            (place, own)
            for place, operand in enumerate(program.known)
            for own in range(len(operand.shape))
            if same.group((operand, own)) == same.group((result, axis))
        ]
        for axis in range(len(result.shape))
    ]


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x, y: jnp.tanh(x) * y, [(4, 4), (4, 4)], [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]),
        (lambda x: x.T, [(4, 4)], [[(0, 1)], [(0, 0)]]),
        (lambda x, b: x + b, [(4, 4), (4,)], [[(0, 0)], [(0, 1), (1, 0)]]),
        (lambda x, w: x @ w, [(4, 4), (4, 4)], [[(0, 0)], [(1, 1)]]),
        (lambda x, w: jnp.einsum("nij,nj->ni", x, w), [(4, 4, 4), (4, 4)], [[(0, 0), (1, 0)], [(0, 1)]]),
        (lambda x: x.sum(0), [(4, 4)], [[(0, 1)]]),
        (lambda x: x[:, None].reshape(4, 1, 2, 2), [(4, 4)], [[(0, 0)], [], [], []]),
        (lambda x: x[:, ::-1], [(4, 4)], [[(0, 0)], [(0, 1)]]),
        (lambda x: jnp.cumsum(x, 1), [(4, 4)], [[(0, 0)], [(0, 1)]]),
        (lambda x, y: jnp.concatenate([x, y], 1), [(4, 4), (4, 4)], [[(0, 0), (1, 0)], []]),
        (lambda x: x @ x, [(4, 4)], [[(0, 0), (0, 1)], [(0, 0), (0, 1)]]),
    ],
)
def test_axes_that_equations_put_in_step(function, shapes, expected):
    assert same_as_first(function, *shapes) == expected


@pytest.mark.parametrize("text", ["ij,jk->ik", "bij,bjk->bik", "bji,kjb->bik", "ij,kl->ijkl", "abij,jab->iab"])
def test_a_contraction_places_each_axis_as_the_product_does(text):
    sizes = dict(zip("abijkl", (2, 3, 4, 5, 6, 7), strict=True))
    random = np.random.default_rng(0)
    left, right = (random.normal(size=[sizes[axis] for axis in term]) for term in text.partition("->")[0].split(","))
    program = trace(lambda left, right: [jnp.einsum(text, left, right)], left, right)
    (product,) = (equation for equation in program.equations if contraction_of(equation))
    contraction = contraction_of(product)
    for side, operand in enumerate(product.inputs):
        for axis, place in contraction.in_result(side).items():
            assert operand.shape[axis] == product.outputs[0].shape[place]
        assert sorted([*contraction.in_result(side), *contraction.contracted[side]]) == [*range(len(operand.shape))]
