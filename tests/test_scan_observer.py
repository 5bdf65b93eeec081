"""Scans that an observer runs in place of `scan`."""

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from rnnscan.planning.arguments import observing_plans
from rnnscan.scan_observer import observing_scans


class _Doubling:
    """Runs scans with their inputs doubled, and lists their options."""

    def __init__(self):
        self.options = []

    def scan(self, cell, params, carry, xs, **options):
        self.options.append(options)
        return rs.scan(cell, params, carry, 2 * xs, **options)


def _add(params, carry, x):
    return carry + x, carry


def test_an_observer_runs_scans_jitted_ones_too():
    function = jax.jit(lambda xs: rs.scan(_add, None, jnp.float32(0), xs, reverse=True)[0])
    xs, observer = jnp.arange(4.0), _Doubling()
    assert function(xs) == 6
    with observing_scans(observer):
        assert function(xs) == 12
    assert function(xs) == 6
    (options,) = observer.options
    assert options["reverse"] is True
    assert options["memory"] == rs.Memory()
    assert options["seq_lengths"] is None


def test_an_observer_sees_every_scan_of_a_net():
    net = rs.chain(rs.layer(rs.cells.GRU(4)), rs.bidirectional(rs.cells.GRU(3), rs.cells.GRU(3)))
    params, xs, observer = net.init(jax.random.key(0), input_size=2), jnp.ones((5, 2, 2)), _Doubling()
    with observing_scans(observer):
        _, ys = net(params, xs)
    assert len(observer.options) == 3
    assert not np.allclose(ys, net(params, xs)[1])


def test_an_inner_scan_is_the_observer_s_own():
    def outer(params, carry, x):
        return rs.scan(_add, None, carry, jnp.stack([x, x]))

    observer = _Doubling()
    with observing_scans(observer):
        carry, _ = rs.scan(outer, None, jnp.float32(0), jnp.arange(3.0))
    assert len(observer.options) == 1
    assert carry == 12


def test_plans_of_a_jitted_function_are_observed_each_time():
    def outer(params, carry, x):
        return rs.scan(_add, None, carry, jnp.stack([x, x]))[0], x

    function = jax.jit(lambda xs: rs.scan(outer, None, jnp.float32(0), xs)[0])
    for _ in range(2):
        with observing_plans() as observed:
            assert jax.eval_shape(function, jnp.arange(3.0)).shape == ()
        assert [ran.plan.call.length for ran in observed] == [3]  # And not of the scan inside the cell.
