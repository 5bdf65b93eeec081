"""A program that breaks a rule is found, and the message says which equation does it."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from rnnscan.ir.program import Value
from rnnscan.ir.spec import check_program
from rnnscan.ir.trace import trace


PROGRAM = trace(lambda left, right: [jnp.tanh(left @ right), left.sum()], jnp.ones((2, 3)), jnp.ones((3, 4)))
PRODUCT, TANH, _ = PROGRAM.equations
OTHER = Value(jax.typeof(jnp.ones(7)))

BROKEN = {
    "read too early": (
        replace(PROGRAM, equations=PROGRAM.equations[::-1]),
        r"equation 1, tanh .*test_spec.py.* must be made before it is read; got a float32\[2, 4\]",
    ),
    "no maker of an output": (
        replace(PROGRAM, equations=PROGRAM.equations[:-1]),
        r"an output must be made before it is read; got a float32\[\]",
    ),
    "made twice": (
        replace(PROGRAM, equations=(*PROGRAM.equations, PRODUCT)),
        r"equation 3, dot_general .* must be made once; got a float32\[2, 4\] again",
    ),
    "an input twice": (replace(PROGRAM, carry=PROGRAM.known[:1]), "an input must be made once"),
    "another type": (
        replace(PROGRAM, equations=(replace(PRODUCT, outputs=(OTHER,)),), stacked=(OTHER,)),
        r"equation 0, dot_general .* types that its primitive gives it, \['float32\[2, 4\]'\]; got \['float32\[7\]'\]",
    ),
    "another carry": (
        replace(PROGRAM, known=PROGRAM.known[1:], carry=PROGRAM.known[:1], new_carry=TANH.outputs),
        r"the new carry must have the types of the carry, \['float32\[2, 3\]'\]; got \['float32\[2, 4\]'\]",
    ),
}


def test_a_traced_program_keeps_every_rule():
    typed = set()
    assert check_program(PROGRAM, typed) is PROGRAM
    assert typed == {*PROGRAM.equations}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_an_error(name):
    program, message = BROKEN[name]
    with pytest.raises(ValueError, match=re.compile(message)):
        check_program(program, set())


def test_a_type_that_does_not_vary_over_an_axis_is_another_type():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")
    found = []

    def rows(leaf):
        program = trace(lambda leaf: [jnp.tanh(leaf)], jax.typeof(leaf))
        (tanh,) = program.equations
        fixed = replace(tanh, outputs=(Value(jax.typeof(jnp.ones(leaf.shape))),))
        with pytest.raises(ValueError, match="varying over rows") as error:
            check_program(replace(program, equations=(fixed,), stacked=fixed.outputs), set())
        found.append(error)
        return leaf

    jax.shard_map(rows, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones(2))
    assert found
