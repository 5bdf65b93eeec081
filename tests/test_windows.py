"""A sequence in windows, with its carry handed on, equals the whole, with resets and padding at random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
import zoo.cases
from rnnscan import attention, cells
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

LENGTH, BATCH, SIZE = 5, 2, 3


class Draw:
    """Random options of a sequence: where rows start anew, which steps are valid, and where windows end."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.reset = jnp.asarray(random.random((LENGTH, BATCH)) < 0.4)
        by_length = np.arange(LENGTH)[:, None] < random.integers(0, LENGTH + 2, size=BATCH)
        valid = [None, random.random((LENGTH, BATCH)) < 0.7, by_length][seed % 3]
        self.options = {}
        if valid is not None:
            valid[0, 0] = True  # Something happens.
            self.options["mask"] = jnp.asarray(valid)
        self.padding = ["zero", "drop"][int(random.integers(2))]
        cuts = random.choice(np.arange(1, LENGTH), size=int(random.integers(1, 3)), replace=False)
        self.windows = list(zip([0, *sorted(cuts.tolist())], [*sorted(cuts.tolist()), LENGTH], strict=True))

    def whole_and_pieces(self, run, carry, xs):
        """What `run(carry, xs, first step, **options)` returns of the whole, of windows, and of single steps."""
        given = {"reset": self.reset, **self.options}

        def of(carry, first, last):
            # The first step is traced where single steps are run, because they are one program.
            cut = lambda leaf: leaf[first:last]  # noqa: E731
            return run(carry, jax.tree.map(cut, xs), first, padding=self.padding, **jax.tree.map(cut, given))

        def one(carry, step):
            number, x, options = step
            stacked = jax.tree.map(lambda leaf: leaf[None], (x, options))
            carry, ys = run(carry, stacked[0], number, padding=self.padding, **stacked[1])
            return carry, jax.tree.map(lambda leaf: leaf[0], ys)

        last, pieces = carry, []
        for first, end in self.windows:
            last, ys = of(last, first, end)
            pieces.append(ys)
        windows = last, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)
        return of(carry, 0, LENGTH), windows, jax.lax.scan(one, carry, (jnp.arange(LENGTH), xs, given))


def check(run, carry, xs, seed):
    draw = Draw(seed)
    whole, windows, steps = jax.jit(lambda carry, xs: draw.whole_and_pieces(run, carry, xs))(carry, xs)
    assert_trees_close(windows, whole)
    assert_trees_close(steps, whole)
    return whole


# The chain below has an LSTM and a stack. One RGLRU computes the first step after a reset differently.
@pytest.mark.parametrize("name", variants(zoo.cases.CASES.keys(), ("LRU", "RGLRU plain first step", "Zoneout")))
def test_every_cell(name):
    case = zoo.cases.CASES[name]
    params, carry, xs = case.arguments(length=LENGTH, batch=BATCH)
    seed = list(zoo.cases.CASES).index(name)

    def run(carry, xs, first, **options):
        # Resets are made around the cell, whatever engine runs it, and plain autodiff compiles quickest.
        return case.scan(params, carry, xs, memory=None, **options)

    whole = check(run, carry, xs, seed)
    assert any(leaf.any() for leaf in jax.tree.leaves(whole))


NETS = {
    "layer": lambda: rs.layer(cells.LSTM(4)),
    "dropout": lambda: rs.layer(rs.dropout(rs.zoneout(cells.GRU(4), 0.3), 0.5)),
    "chain": lambda: rs.chain(rs.layer(cells.GRU(4)), rs.layer(rs.stack(cells.LSTM(3), cells.RNN(2))), dropout=0.4),
}


@pytest.mark.parametrize("name", variants(NETS.keys(), ["chain"]))
def test_every_net_that_runs_in_pieces(name):
    net = NETS[name]()
    random = np.random.default_rng(1)
    xs = jnp.asarray(random.normal(size=(LENGTH, BATCH, SIZE)))
    fill = lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape))  # noqa: E731
    params, carry = jax.tree.map(fill, (net.init(jax.random.key(0), SIZE), net.initial_carry(xs)))
    key = jax.random.key(3)

    def run(carry, xs, first, **options):
        return net(params, xs, carry=carry, key=key, first_step=first, **options)

    check(run, carry, xs, seed=list(NETS).index(name) + 1)


def test_an_attention_decoder_and_a_learned_carry_to_go_back_to():
    configuration = attention.decoder(cells.GRU(4), attention.Coverage(encoder_size=3, attention_size=4))
    params = configuration.init(jax.random.key(0), SIZE)
    random = np.random.default_rng(1)
    xs = jnp.asarray(random.normal(size=(LENGTH, BATCH, SIZE)))
    cell = configuration.over(params, xs)
    fill = lambda leaf: jnp.asarray(random.normal(size=leaf.shape))  # noqa: E731
    carry, there = (jax.tree.map(fill, cell.initial_carry(xs[0])) for _ in range(2))

    def run(carry, xs, first, **options):
        return rs.scan(cell, params, carry, xs, reset_to=there, **options)

    check(run, carry, xs, seed=4)
