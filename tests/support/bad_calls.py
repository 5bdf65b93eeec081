"""Bad calls, each with the error that it gets. A good call of each kind is `scan()` and `net()`."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback

import rnnscan as rs
from slow_reference import arguments, cell


LENGTH, BATCH = 5, 3


def scan(cell=cell, *, change_carry=lambda carry: carry, change_xs=lambda xs: xs, **options):
    params, carry, xs = arguments(0, LENGTH, BATCH)
    return lambda: rs.scan(cell, params, change_carry(carry), change_xs(xs), **options)


def returning(new_carry):
    """A cell whose new carry is changed."""

    def changed(params, carry, x):
        carry, y = cell(params, carry, x)
        return new_carry(carry), y

    return changed


def unbatched_output(params, carry, x):
    return carry, jnp.sum(carry["hidden"])


def counting(calls):
    """A cell that counts how often it is run."""

    def counted(params, carry, x):
        io_callback(calls.append, None, x["scale"], ordered=True)
        return cell(params, carry, x)

    return counted


def key_output(params, carry, x):
    return carry, jax.random.split(jax.random.key(0), BATCH)


def net_cell(params, input_t, hidden_t_prev, state_t_prev):
    return {"hidden_t": jnp.tanh(hidden_t_prev + input_t), "state_t": rs.name(state_t_prev * input_t, "product")}


def net(cell_net=net_cell, **changes):
    options = {
        "inputs": {"input_t": jnp.ones((LENGTH, BATCH, 4))},
        "initial_cell_inputs": {"hidden_t_prev": jnp.ones((BATCH, 4)), "state_t_prev": jnp.ones(4)},
        "links": {"hidden_t_prev": "hidden_t", "state_t_prev": "state_t"},
    }
    return lambda: rs.recurrent_net(cell_net, None, **(options | changes))


LINKS = {"hidden_t_prev": "hidden_t", "state_t_prev": "state_t"}
STATES = {"hidden_t_prev": jnp.ones((BATCH, 4)), "state_t_prev": jnp.ones((BATCH, 4))}

BAD_CALLS = {
    # name: (call, exception, parts of the message)
    "label is not a string": (
        lambda: rs.name(jnp.ones(3), 3),
        TypeError,
        ["non-empty string", "got 3", "value comes first"],
    ),
    "label is empty": (lambda: rs.name(jnp.ones(3), ""), TypeError, ["non-empty string", "got ''"]),
    "one name as a string": (
        lambda: rs.Memory(recompute="gates"),
        TypeError,
        ["tuple of names", "'gates'", "recompute=('gates',)"],
    ),
    "names that are numbers": (lambda: rs.Memory(recompute=(1,)), TypeError, ["tuple of names", "(1,)"]),
    "segment of zero": (lambda: rs.Memory(segment=0), ValueError, ["`segment`", "at least 1", "got 0"]),
    "segment of a wrong word": (lambda: rs.Memory(segment="root"), ValueError, ['"sqrt"', "got 'root'"]),
    "a schedule for another length": (
        scan(memory=rs.Memory(segment=rs.checkpointing.nested(7, slots=7))),
        ValueError,
        ["a schedule in `segment`", "of 7 steps, and T = 5", "nested(5, ...)"],
    ),
    "empty segments": (lambda: rs.Memory(segment=()), ValueError, ["`segment`", "got ()"]),
    "segments that grow": (lambda: rs.Memory(segment=(10, 20)), ValueError, ["shorter from left to right", "(10, 20)"]),
    "chunk of zero": (lambda: rs.Memory(chunk=0), ValueError, ["`chunk`", "at least 1", "got 0"]),
    "offload and recompute": (
        lambda: rs.Memory(offload=("a",), recompute=("a",)),
        ValueError,
        ["'a'", "Take it out of one"],
    ),
    "offload and recompute all": (
        lambda: rs.Memory(offload=("a",), recompute="all"),
        ValueError,
        ["'a'", "recompute='all'"],
    ),
    "offload and segment": (
        lambda: rs.Memory(offload=("a",), segment=4),
        ValueError,
        ["`offload` must be empty", "segment=4"],
    ),
    "memory that is none": (scan(memory="all"), TypeError, ["`memory` must be an rnnscan.Memory", "got 'all'"]),
    "chunk for lax": (
        scan(memory=rs.Memory(chunk=4), engine="lax"),
        ValueError,
        ["without chunks", "chunk=4", "Leave chunk=None"],
    ),
    "unknown name": (
        scan(memory=rs.Memory(recompute=("gat",))),
        ValueError,
        ["`recompute`", "'gat'", "'preactivation', 'gate'", "Did you mean 'gate'?"],
    ),
    "unknown name to offload": (
        scan(memory=rs.Memory(offload=("x",))),
        ValueError,
        ["`offload`", "'x'", "'preactivation'"],
    ),
    "engine": (scan(engine="fision"), ValueError, ["`engine` must be one of", "'fision'"]),
    "padding": (scan(padding="same"), ValueError, ["`padding` must be one of ('zero', 'hold', 'drop')", "'same'"]),
    "unroll": (scan(unroll=0), ValueError, ["`unroll`", "at least 1", "got 0"]),
    "truncate": (scan(truncate=0), ValueError, ["`truncate`", "at least 1", "got 0"]),
    "inputs of different lengths": (
        scan(change_xs=lambda xs: {**xs, "scale": jnp.ones(4)}),
        ValueError,
        ["same number of steps", "5 at `xs['signal']`", "4 at `xs['scale']`", "time-major"],
    ),
    "length against inputs": (scan(length=4), ValueError, ["same number of steps", "4 at `length`"]),
    "negative length": (scan(length=-1), ValueError, ["`length`", "at least 0", "got -1"]),
    "a scalar input": (
        scan(change_xs=lambda xs: {**xs, "scale": 1.0}),
        ValueError,
        ["(T, ...)", "the scalar float32[] at `xs['scale']`", "`params`"],
    ),
    "neither inputs nor length": (
        scan(change_xs=lambda xs: None),
        ValueError,
        ["neither an input in `xs` nor `length`"],
    ),
    "an input that is no array": (
        scan(change_xs=lambda xs: {**xs, "scale": "abc"}),
        TypeError,
        ["array or a number", "got str at `xs['scale']`"],
    ),
    "an output that is no array": (
        scan(lambda params, carry, x: (carry, "abc")),
        TypeError,
        ["arrays or numbers", "got str at `y`"],
    ),
    "no pair": (scan(lambda params, carry, x: carry), TypeError, ["the pair (carry, y)", "got dict", "(carry, None)"]),
    "three values": (scan(lambda p, c, x: (c, x, x)), TypeError, ["the pair (carry, y)", "got a tuple of 3"]),
    "carry that changes its structure": (
        scan(returning(lambda carry: {"hidden": carry["hidden"]})),
        TypeError,
        ["carry of the structure", "'count'", "(carry, y)"],
    ),
    "carry that changes its shape": (
        scan(returning(lambda carry: {**carry, "hidden": carry["hidden"][:2]})),
        TypeError,
        ["`carry['hidden']` went in as float32[3,4] and came out as float32[2,4]", "Cast the new carry"],
    ),
    "carry that changes its dtype": (
        scan(returning(lambda carry: {**carry, "count": carry["count"].astype(float)})),
        TypeError,
        ["`carry['count']` went in as int32[3] and came out as float32[3]"],
    ),
    "lengths of the wrong size": (
        scan(seq_lengths=jnp.array([1, 2])),
        ValueError,
        ["`seq_lengths` or `mask` has 2 rows", "axis 0 of `carry['count']` must have size 2", "int32[3]"],
    ),
    "lengths that are floats": (scan(seq_lengths=jnp.ones(3)), ValueError, ["integers of shape (N,)", "float32[3]"]),
    "lengths of two axes": (
        scan(seq_lengths=jnp.ones((3, 1), int)),
        ValueError,
        ["integers of shape (N,)", "one integer for a row", "int32[3,1]"],
    ),
    "lengths and mask": (
        scan(seq_lengths=jnp.ones(3, int), mask=jnp.ones((5, 3), bool)),
        ValueError,
        ["got both", "mask & "],
    ),
    "mask that is batch-major": (
        scan(mask=jnp.ones((3, 5), bool)),
        ValueError,
        ["bool[5,N]", "bool[3,5]", "Transpose"],
    ),
    "mask of numbers": (scan(mask=jnp.ones((5, 3))), ValueError, ["bool[5,N]", "float32[5,3]", "mask != 0"]),
    "reset of numbers": (scan(reset=jnp.ones((5, 3))), ValueError, ["`reset` must be bool[5,N]", "reset != 0"]),
    "mask and reset of different rows": (
        scan(mask=jnp.ones((5, 3), bool), reset=jnp.ones((5, 2), bool)),
        ValueError,
        ["same rows", "3", "2"],
    ),
    "an input without rows": (
        scan(change_xs=lambda xs: {**xs, "scale": jnp.ones((5, 2))}, seq_lengths=jnp.ones(3, int)),
        ValueError,
        ["axis 1 of `xs['scale']` must have size 3", "float32[5,2]", "(T,)"],
    ),
    "an output without rows": (
        scan(unbatched_output, seq_lengths=jnp.ones(3, int)),
        ValueError,
        ["axis 0 of `y` must have size 3", "float32[]"],
    ),
    "an output of keys over padding": (
        scan(key_output, seq_lengths=jnp.ones(3, int)),
        TypeError,
        ["padding='zero'", "no zero key", "key_data"],
    ),
    "no inputs": (net(inputs={}), ValueError, ["at least one input", "rnnscan.scan"]),
    "recompute of side effects": (
        scan(counting([]), memory=rs.Memory(segment=2)),
        ValueError,
        ["side effects must not be recomputed", "segment=2"],
    ),
    "inputs that are no dictionary": (net(inputs=jnp.ones((5, 3, 4))), TypeError, ["`inputs` must be a dictionary"]),
    "input of one axis": (
        net(inputs={"input_t": jnp.ones(5)}),
        ValueError,
        ["(T, N, ...)", "float32[5] at `inputs['input_t']`"],
    ),
    "inputs of different batches": (
        net(inputs={"input_t": jnp.ones((5, 3, 4)), "other": jnp.ones((5, 2, 4))}),
        ValueError,
        ["same number of rows", "3 at `inputs['input_t']`", "2 at `inputs['other']`"],
    ),
    "a state that is no array": (
        net(initial_cell_inputs={**STATES, "state_t_prev": (jnp.ones((BATCH, 4)), jnp.ones((BATCH, 4)))}),
        TypeError,
        ["must be an array or a number", "got tuple for 'state_t_prev'"],
    ),
    "a linked output that is no array": (
        net(lambda params, input_t, hidden_t_prev, state_t_prev: {"hidden_t": (input_t,), "state_t": input_t}),
        TypeError,
        ["must be an array", "got tuple for 'hidden_t', linked to 'hidden_t_prev'"],
    ),
    "a shared state of another size": (
        net(initial_cell_inputs={**STATES, "state_t_prev": jnp.ones(1)}),
        ValueError,
        ["float32[3,1] for the state 'state_t_prev', which is float32[1] shared by all rows"],
    ),
    "an input called params": (
        net(inputs={"params": jnp.ones((5, 3, 4))}),
        ValueError,
        ["other than 'params'", "'params' more than once"],
    ),
    "inputs of different length": (
        net(
            lambda params, input_t, other, **states: net_cell(params, input_t, **states),
            inputs={"input_t": jnp.ones((5, 3, 4)), "other": jnp.ones((4, 3, 4))},
        ),
        ValueError,
        ["same number of steps", "5 at `xs['input_t']`", "4 at `xs['other']`"],
    ),
    "a name that is input and state": (
        net(timestep="input_t"),
        ValueError,
        ["different names", "'input_t' more than once"],
    ),
    "missing link": (
        net(links={"hidden_t_prev": "hidden_t"}),
        ValueError,
        ["no link for 'state_t_prev'", "links for 'hidden_t_prev'", "{'state_t_prev': <output>, ...}", "`params`"],
    ),
    "link of an unknown state": (
        net(links={**LINKS, "hiden_t_prev": "hidden_t"}),
        ValueError,
        ["'hiden_t_prev'", "Did you mean 'hidden_t_prev'?", "{state: output}"],
    ),
    "link to a missing output": (
        net(links={**LINKS, "state_t_prev": "stat_t"}),
        ValueError,
        ["a link of 'state_t_prev' to 'stat_t'", "returned 'hidden_t', 'state_t'", "Did you mean 'state_t'?"],
    ),
    "two links to one output": (
        net(links={"hidden_t_prev": "hidden_t", "state_t_prev": "hidden_t"}),
        ValueError,
        ["its own output", "'hidden_t' linked to 'hidden_t_prev', 'state_t_prev'", "under two names"],
    ),
    "state and output of different shape": (
        net(initial_cell_inputs={**STATES, "state_t_prev": jnp.ones((BATCH, 1))}),
        ValueError,
        ["float32[3,1] for the state 'state_t_prev'", "float32[3,4] for the output 'state_t'"],
    ),
    "state and output of different dtype": (
        net(initial_cell_inputs={**STATES, "state_t_prev": jnp.ones((BATCH, 4), jnp.bfloat16)}),
        TypeError,
        ["bfloat16[3,4] for the state 'state_t_prev'", "float32[3,4] for the output 'state_t'"],
    ),
    "state of another batch": (
        net(initial_cell_inputs={**STATES, "state_t_prev": jnp.ones((7, 4))}),
        ValueError,
        ["N = 3", "float32[7,4] for 'state_t_prev'"],
    ),
    "alias of an unknown state": (
        net(aliases={"states": ("hidden_t", 0)}),
        ValueError,
        ["'states' of 'hidden_t'", "Did you mean 'hidden_t_prev'?"],
    ),
    "alias without an offset": (
        net(aliases={"states": "hidden_t_prev"}),
        TypeError,
        ["a pair (state, offset)", "'hidden_t_prev'"],
    ),
    "alias beyond the end": (
        net(aliases={"states": ("hidden_t_prev", 6)}),
        ValueError,
        ["T = 5 steps", "from -6 to 5", "got 6 for 'states'"],
    ),
    "alias with the name of a result": (
        net(aliases={"hidden_t_all": ("hidden_t_prev", 1)}),
        ValueError,
        ["its own name", "'hidden_t_all' more than once"],
    ),
    "cell net without a dictionary": (
        net(lambda params, **blobs: (1, 2)),
        TypeError,
        ["a dictionary {output name: value}", "tuple"],
    ),
    "unknown result with gradients": (
        net(outputs_with_grads=("hidden_t",)),
        ValueError,
        ["`outputs_with_grads`", "'hidden_t'", "Did you mean 'hidden_t_all'?"],
    ),
    "a string of results with gradients": (
        net(outputs_with_grads="hidden_t_all"),
        TypeError,
        ["tuple of names", "('hidden_t_all',)"],
    ),
    "unknown name in a net": (net(recompute=("produkt",)), ValueError, ["'produkt'", "Did you mean 'product'?"]),
    "recompute and memory": (net(recompute=("product",), memory=rs.Memory()), ValueError, ["Memory(recompute=...)"]),
    "recompute and plain autodiff": (net(recompute=("product",), memory=None), ValueError, ["memory=None"]),
    "positions and names of results with gradients": (
        net(outputs_with_grads=(0, "hidden_t_all")),
        TypeError,
        ["names, or one of positions", "(0, 'hidden_t_all')", "'hidden_t_all', 'hidden_t_last', 'state_t_all'"],
    ),
    "a position beyond the results": (
        net(outputs_with_grads=(0, 4)),
        ValueError,
        ["from 0 to 3; got 4", "'hidden_t_all', 'hidden_t_last', 'state_t_all', 'state_t_last'"],
    ),
    "a negative position": (net(outputs_with_grads=(-1,)), TypeError, ["positions from 0 on; got (-1,)"]),
    "a position without a tuple": (net(outputs_with_grads=0), TypeError, ["got 0", "outputs_with_grads=(0,)"]),
    "a step that takes timestep where none is named": (
        net(lambda params, input_t, hidden_t_prev, state_t_prev, timestep: {}),
        ValueError,
        ["takes 'input_t', 'hidden_t_prev', 'state_t_prev', 'timestep'", 'Pass timestep="timestep"'],
    ),
    "a step that takes a name that is not given": (
        net(lambda params, input_t, hiden_t_prev, state_t_prev: {}),
        ValueError,
        ["'hiden_t_prev'", "the names 'input_t', 'hidden_t_prev', 'state_t_prev'", "Did you mean 'hidden_t_prev'?"],
    ),
    "a step that does not take its input": (
        net(lambda params, hidden_t_prev, state_t_prev: {}),
        ValueError,
        ["unexpected keyword argument 'input_t'", "from `inputs`"],
    ),
    "a state over whose shape the cell fails": (
        net(initial_cell_inputs={**STATES, "hidden_t_prev": jnp.ones((BATCH, 5))}),
        ValueError,
        ["float32[3,5] for the state 'hidden_t_prev'", "float32[3,4] for the output 'hidden_t'", "cell failed with"],
    ),
    "two states over whose shape the cell fails": (
        net(initial_cell_inputs={"hidden_t_prev": jnp.ones(7), "state_t_prev": jnp.ones(7)}),
        ValueError,
        ["float32[3,7] for the state 'hidden_t_prev' and float32[3,7] for the state 'state_t_prev'", "'state_t'"],
    ),
    "a state over whose dtype the cell fails": (
        net(
            lambda params, input_t, hidden_t_prev, state_t_prev: {
                "hidden_t": lax.add(input_t, hidden_t_prev),
                "state_t": state_t_prev,
            },
            initial_cell_inputs={**STATES, "hidden_t_prev": jnp.ones((BATCH, 4), jnp.bfloat16)},
        ),
        ValueError,
        ["bfloat16[3,4] for the state 'hidden_t_prev'", "float32[3,4] for the output 'hidden_t'"],
    ),
    "forward only and recompute": (
        net(forward_only=True, recompute=("product",)),
        ValueError,
        ["`forward_only` must be given without", "recompute=('product',)", "forward_only=False"],
    ),
    "reset of a net without reset_to": (
        net(reset=jnp.ones((LENGTH, BATCH), bool)),
        ValueError,
        ["must be given together; got no `reset_to`", "reset_to={'hidden_t_prev':"],
    ),
    "reset_to of a net without reset": (net(reset_to=STATES), ValueError, ["must be given together; got no `reset`"]),
    "reset_to of a net without one of the states": (
        net(reset=jnp.ones((LENGTH, BATCH), bool), reset_to={"hidden_t_prev": 0.0}),
        ValueError,
        ["every state, 'hidden_t_prev', 'state_t_prev'; got 'hidden_t_prev'"],
    ),
    "reset_to of a net with another batch": (
        net(reset=jnp.ones((LENGTH, BATCH), bool), reset_to={**STATES, "state_t_prev": jnp.ones((7, 4))}),
        ValueError,
        ["a state in `reset_to`", "N = 3", "float32[7,4] for 'state_t_prev'"],
    ),
    "forward only and plain autodiff": (
        net(forward_only=True, memory=None),
        ValueError,
        ["`forward_only` must be given without", "memory=None", "forward_only=False"],
    ),
}
