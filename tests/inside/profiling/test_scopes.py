"""The scopes of operations, and the time that operations share."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rnnscan.inside.profiling.operations import Operation, Operations
from rnnscan.inside.profiling.scopes import Scope, scope_of
from rnnscan.inside.profiling.timeline import Event, shared


@pytest.mark.parametrize(
    ("origin", "path", "is_backward"),
    [
        ("jit(loss)/jvp(LSTM)/while/body/gates/dot_general", ("LSTM", "gates"), False),
        ("jit(loss)/transpose(jvp(LSTM))/while/body/closed_call/transpose(jvp(gates))/mul", ("LSTM", "gates"), True),
        ("jit(<lambda>)/net_0/layer_1/GRU/jit(_where)/select_n", ("net_0", "layer_1", "GRU"), False),
        ("jit(step)/vmap(jvp(net_0/LSTM))/checkpoint/rematted_computation/tanh", ("net_0", "LSTM"), False),
        ("jit(f(x))/cond/branch_1_fun/inner/add", ("inner",), False),
        ("jit(f)/jvp()/mul;jit(f)/transpose(jvp(GRU))/broadcast_in_dim", (), False),
        ("reduce_sum", (), False),
        ("", (), False),
    ],
)
def test_a_scope_is_what_users_name(origin, path, is_backward):
    assert scope_of(origin) == Scope(path, is_backward)


LOOP, A, B = "while.1", "add.1", "dot.2"
OPERATIONS = {
    LOOP: Operation(Scope(("cell",)), (), True),
    A: Operation(Scope(("cell", "a")), (LOOP,), False),
    B: Operation(Scope(("cell", "b")), (LOOP,), False),
}


def test_operations_within_a_loop_take_its_time_and_leave_it_the_rest():
    times = shared([Event(0, 10, LOOP, 0), Event(2, 5, A, 0), Event(5, 9, B, 0)], OPERATIONS)
    assert times.within == {A: 3, B: 4}
    assert times.between == {LOOP: 3}


def test_operations_that_run_at_once_share_the_time():
    times = shared([Event(0, 10, LOOP, 0), Event(0, 6, A, 1), Event(4, 8, B, 2)], OPERATIONS)
    assert times.within == {A: 5, B: 3}
    assert times.between == {LOOP: 2}


def test_a_moment_without_operations_belongs_to_none():
    times = shared([Event(0, 1, A, 0), Event(5, 7, B, 0), Event(7, 7, A, 0)], OPERATIONS)
    assert times.within == {A: 1, B: 2}
    assert not times.between


def test_operations_of_a_program_have_loops_and_scopes():
    def step(carry, x):
        with jax.named_scope("inner"):
            carry = jnp.tanh(carry @ carry) + x
        return carry, carry

    def function(carry, xs):
        with jax.named_scope("outer"):
            return lax.scan(step, carry, xs)[1]

    compiled = jax.jit(function).lower(jnp.ones((64, 64)), jnp.ones((200, 64, 64))).compile()
    operations = Operations(compiled.as_text())
    ((name, loop),) = operations.loops.items()
    assert (loop.scope, loop.iterations) == (Scope(("outer",)), 200)
    assert operations[name].is_container
    inside = [one for one in operations.values() if name in one.loops]
    assert {one.scope.path for one in inside} == {("outer",), ("outer", "inner")}
    assert "no operation" not in operations


def test_a_kernel_is_the_operation_of_its_name():
    text = """HloModule jit_f

ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %loop_add_fusion.2 = f32[2]{0} add(%p, %p), metadata={op_name="jit(f)/cell/add"}
}
"""
    operations = Operations(text)
    assert operations["loop_add_fusion_2"] is operations["loop_add_fusion.2"]
    assert operations["loop_add_fusion_2"].scope == Scope(("cell",))
