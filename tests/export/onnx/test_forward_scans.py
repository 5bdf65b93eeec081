"""Reverse scans become forward ones over flipped inputs, with every jax."""

import jax
import jax.numpy as jnp
import pytest

from rnnscan.export.onnx.forward_scans import with_forward_scans


XS = jnp.arange(12.0).reshape(4, 3)


def with_constants_and_inputs(xs, scale):
    return jax.lax.scan(lambda carry, x: (carry * scale + x, (carry, jnp.sum(x))), xs[0], xs, reverse=True)


def without_inputs(xs, scale):
    return jax.lax.scan(lambda carry, _: (carry * scale, carry), xs[0], None, length=4, reverse=True)


def without_carry(xs, scale):
    return jax.lax.scan(lambda _, x: (None, x * scale), None, xs, reverse=True)


def in_a_call(xs, scale):
    return jax.jit(with_constants_and_inputs)(xs, scale)


@pytest.mark.parametrize("function", [with_constants_and_inputs, without_inputs, without_carry, in_a_call])
def test_scans_run_forward(function):
    traced = jax.make_jaxpr(function)(XS, 0.5)
    forward = jax.jit(with_forward_scans(traced))
    scans = [equation for equation in forward.trace(XS, 0.5).jaxpr.eqns if equation.primitive.name == "scan"]
    assert [scan.params["reverse"] for scan in scans] == [False]
    for result, expected in zip(forward(XS, 0.5), jax.tree.leaves(function(XS, 0.5)), strict=True):
        assert jnp.array_equal(result, expected)
