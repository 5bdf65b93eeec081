"""Tests make programs in few contexts of MLIR (tests/support/ir_contexts.py): fails if jax renames what makes one."""

import jax


def test_programs_share_contexts():
    programs = [jax.jit(lambda x, step=step: x + step).lower(1.0).compiler_ir() for step in range(3)]
    # Two, where a context has had its number of programs between them.
    assert len({id(program.context) for program in programs}) <= 2
