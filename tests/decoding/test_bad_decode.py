"""Bad arguments of decode and of strategies: errors before any compute, that say what to do."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import attention, decoding
from rnnscan.decoding import Beam, GNMTPenalty, Greedy, PowerPenalty, Sample
from tiers import variants
from token_models import decoder, model, with_aux


pytestmark = pytest.mark.bad_input

STRATEGIES = {
    "beam of 0": (lambda: Beam(0), ValueError, "`size` must be at least 1; got 0"),
    "beam of a float": (lambda: Beam(2.0), TypeError, "`size` must be an integer; got float"),
    "beam of a bool": (lambda: Beam(True), TypeError, "`size` must be an integer; got bool"),
    "n_best of 0": (lambda: Beam(2, n_best=0), ValueError, "`n_best` must be at least 1"),
    "n_best above size": (lambda: Beam(2, n_best=3), ValueError, "n_best=3 and size=2"),
    "penalty of a number": (lambda: Beam(2, length_penalty=0.6), TypeError, "GNMTPenalty, a PowerPenalty"),
    "rewards of a matrix": (lambda: Beam(2, word_rewards=jnp.ones((2, 2))), ValueError, r"must be \(V,\)"),
    "rewards of NaN": (lambda: Beam(2, word_rewards=(0.0, float("nan"))), ValueError, "NaN or"),
    "rewards of +inf": (lambda: Beam(2, word_rewards=(0.0, float("inf"))), ValueError, "inf to forbid"),
    "rewards of words": (lambda: Beam(2, word_rewards=("a", "b")), TypeError, "must be real numbers"),
    "alpha below 0": (lambda: GNMTPenalty(-1.0), ValueError, "`alpha` must be finite and at least 0; got -1.0"),
    "alpha of NaN": (lambda: PowerPenalty(float("nan")), ValueError, "`alpha` must be finite"),
    "temperature of 0": (lambda: Sample(0.0), ValueError, "`temperature` must be finite and above 0; got 0.0"),
    "temperature below 0": (lambda: Sample(-1), ValueError, "above 0; got -1"),
    "temperatures": (lambda: Sample(jnp.ones(2)), TypeError, r"must be one real number; got float32\[2\]"),
    "temperature of a word": (lambda: Sample("hot"), TypeError, "must be a number; got str"),
    "top_k of 0": (lambda: Sample(top_k=0), ValueError, "`top_k` must be at least 1; got 0"),
    "top_k of a float": (lambda: Sample(top_k=2.5), TypeError, "`top_k` must be an integer"),
    "top_p of 0": (lambda: Sample(top_p=0.0), ValueError, "`top_p` must be finite and above 0 and at most 1; got 0.0"),
    "top_p above 1": (lambda: Sample(top_p=1.1), ValueError, "got 1.1"),
    "min_p below 0": (lambda: Sample(min_p=-0.1), ValueError, "`min_p` must be finite and at least 0 and at most 1"),
    "min_p above 1": (lambda: Sample(min_p=1.5), ValueError, "got 1.5"),
}


@pytest.mark.parametrize(("make", "error", "message"), STRATEGIES.values(), ids=STRATEGIES.keys())
def test_strategies(make, error, message):
    with pytest.raises(error, match=message):
        make()


def returning(change):
    """A decoder whose result is changed."""
    return lambda *arguments: change(*decoder(*arguments))


KEY = jax.random.key(0)
CALLS = {
    "strategy of a class": ({"strategy": Greedy}, TypeError, "`strategy` must be a Greedy, Sample or Beam"),
    "no key": ({"strategy": Sample()}, TypeError, "Sample needs a `key`"),
    "key for Greedy": ({"key": KEY}, TypeError, "Greedy draws nothing, so `key` must be None"),
    "key for Beam": ({"key": KEY, "strategy": Beam(2)}, TypeError, "Beam draws nothing"),
    "a seed": ({"key": 0, "strategy": Sample()}, TypeError, "must be a PRNG key, or N of them; got int"),
    "too few keys": ({"key": jax.random.split(KEY), "strategy": Sample()}, ValueError, "2 at `key`"),
    "keys and starts": (
        {"key": jax.random.split(KEY), "strategy": Sample(), "start": jnp.array([1, 1, 1])},
        ValueError,
        "each of the 3 rows; got 2 keys",
    ),
    "top_k above V": ({"strategy": Sample(top_k=5), "key": KEY}, ValueError, "top_k=5, and the logits have V = 4"),
    "beam too wide": ({"strategy": Beam(37), "max_steps": 3}, ValueError, "size=37, .* at most 36 extensions"),
    "wide without end": (
        {"strategy": Beam(65), "max_steps": 3, "end": None},
        ValueError,
        "size=65, .* at most 64 extensions",
    ),
    "too few rewards": (
        {"strategy": Beam(2, word_rewards=(0.0, 1.0))},
        ValueError,
        r"each of the 4 tokens; got .*\(2,\)",
    ),
    "penalty of a constant": (
        {"strategy": Beam(2, length_penalty=lambda lengths: 1.0)},
        TypeError,
        "`length_penalty` must return an array like the lengths",
    ),
    "end outside": ({"end": 4}, ValueError, "`end` must be a token, from 0 to 3, .* got 4"),
    "end below 0": ({"end": -1}, ValueError, "got -1"),
    "end of a float": ({"end": 1.0}, TypeError, "`end` must be an integer"),
    "start outside": ({"start": 4}, ValueError, "`start` must be tokens, from 0 to 3, .* got 4"),
    "starts outside": ({"start": jnp.array([0, 3, -2])}, ValueError, "got -2"),
    "start of a float": ({"start": 1.0}, TypeError, "`start` must be a token, or integers"),
    "start of a matrix": ({"start": jnp.zeros((3, 1), int)}, ValueError, r"integers \(N,\); got int32\[3,1\]"),
    "starts of other rows": ({"start": jnp.zeros(2, int)}, ValueError, "for 2 rows"),
    "no steps": ({"max_steps": 0}, ValueError, "`max_steps` must be at least 1; got 0"),
    "steps of an array": ({"max_steps": jnp.int32(3)}, TypeError, "cannot be traced"),
    "not callable": ({"decoder": 3}, TypeError, "decoder must be callable"),
    "a net": ({"decoder": rs.layer(rs.cells.GRU(4))}, TypeError, r"rnnscan.decoding.decoder\(net\)"),
    "no encoder": (
        {"decoder": attention.decoder(rs.cells.GRU(4), attention.Dot(4))},
        TypeError,
        r"decoder.over\(params, encoder_outputs\)",
    ),
    "no pair": ({"decoder": lambda *_: jnp.ones((3, 4))}, TypeError, r"the pair \(carry, logits\)"),
    "aux without has_aux": ({"decoder": with_aux}, TypeError, "pass has_aux=True"),
    "has_aux without aux": ({"has_aux": True}, TypeError, r"must return \(carry, \(logits, aux\)\)"),
    "integer logits": (
        {"decoder": returning(lambda carry, logits: (carry, logits.astype(int)))},
        TypeError,
        "logits must be a floating array",
    ),
    "logits with time": (
        {"decoder": returning(lambda carry, logits: (carry, logits[None]))},
        ValueError,
        r"must be \(3, V\), .* got float32\[1,3,4\]",
    ),
    "logits of one row": (
        {"decoder": returning(lambda carry, logits: (carry, logits[0]))},
        ValueError,
        r"float32\[4\]",
    ),
    "no logits": ({"decoder": returning(lambda carry, logits: (carry, None))}, TypeError, "got NoneType"),
    "another structure": (
        {"decoder": returning(lambda carry, logits: (tuple(carry.values()), logits))},
        TypeError,
        "carry of the structure",
    ),
    "another shape": (
        {"decoder": returning(lambda carry, logits: ({**carry, "hidden": carry["hidden"][:, :2]}, logits))},
        TypeError,
        r"`carry\['hidden'\]` went in as float32\[3,3\] and came out as float32\[3,2\]",
    ),
    "another dtype": (
        {"decoder": returning(lambda carry, logits: ({**carry, "sum": carry["sum"] + 0.5}, logits))},
        TypeError,
        r"`carry\['sum'\]` went in as int32\[3\] and came out as float32\[3\]",
    ),
    "scalar aux": (
        {"decoder": returning(lambda carry, logits: (carry, (logits, logits.sum()))), "has_aux": True},
        ValueError,
        "every leaf of aux",
    ),
    "keys as aux": (
        {
            "decoder": returning(lambda carry, logits: (carry, (logits, jax.random.split(KEY, 3)))),
            "has_aux": True,
        },
        TypeError,
        "jax.random.key_data",
    ),
    "a scalar of hypotheses": (
        {
            "decoder": returning(lambda carry, logits: ({**carry, "count": carry["sum"].sum()}, logits)),
            "strategy": Beam(2),
        },
        ValueError,
        "out_axes",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("jit", variants({"eager": False, "jit": True}, quick=("eager",)))
def test_calls(options, error, message, jit):
    with pytest.raises(error, match=message):
        model().decode(**{"decoder": decoder, "jit": jit, **options})


def test_nothing_is_computed_before_an_error():
    calls = []

    def counted(params, carry, token):
        jax.debug.callback(lambda _: calls.append(1), token[0])
        return decoder(params, carry, token)

    for options in ({"end": 9}, {"strategy": Beam(10**9)}, {"strategy": Sample(top_k=9), "key": KEY}):
        with pytest.raises(ValueError, match="decode: "):
            model().decode(counted, jit=False, **options)
    jax.effects_barrier()
    assert not calls


@pytest.mark.parametrize(
    ("carry", "message"),
    [
        ({"a": jnp.zeros((3, 2)), "b": jnp.zeros((2, 3))}, r"3 at `carry\['a'\]`; 2 at `carry\['b'\]`"),
        ((), "carry without rows"),
        (jnp.zeros(()), "carry without rows"),
    ],
    ids=str,
)
def test_carries_without_one_number_of_rows(carry, message):
    with pytest.raises(ValueError, match=message):
        rs.decode(decoder, None, carry, start=1, end=0, max_steps=3)


def test_notes_on_errors_in_the_decoder():
    with pytest.raises(TypeError) as raised:
        rs.decode(lambda *_: jnp.ones(3) + "a", None, jnp.zeros((2, 3)), start=1, end=0, max_steps=3)
    assert "carry = float32[2,3] and token = int32[2]" in "".join(raised.value.__notes__)
    scalar = returning(lambda carry, logits: ({**carry, "count": carry["sum"].sum()}, logits))
    with pytest.raises(ValueError, match="out_axes") as raised:
        model().decode(scalar, strategy=Beam(2))
    assert "must not depend on tokens" in "".join(raised.value.__notes__)
    with pytest.raises(TypeError, match="must be an array or a number"):
        rs.decode(decoder, None, "carry", start=1, end=0, max_steps=3)


MADE = {
    "embed of an array": (lambda: decoding.decoder(rs.cells.GRU(4), embed=jnp.ones((4, 3))), TypeError, "`embed`"),
    "no cell": (lambda: decoding.decoder(3), TypeError, "decoding.decoder: a cell must be callable"),
    "both directions": (
        lambda: decoding.decoder(rs.bidirectional(rs.cells.GRU(4), rs.cells.GRU(4))),
        ValueError,
        "must run in pieces",
    ),
    "no decoders": (lambda: decoding.ensemble(), TypeError, "got none"),
    "a list": (lambda: decoding.ensemble([decoder, decoder]), TypeError, "one by one"),
    "an unknown average": (lambda: decoding.ensemble(decoder, average="votes"), ValueError, "got 'votes'"),
}


@pytest.mark.parametrize(("make", "error", "message"), MADE.values(), ids=MADE.keys())
def test_decoders(make, error, message):
    with pytest.raises(error, match=message):
        make()


def table(params, carry, token):
    return carry, params[token]


def test_ensembles_whose_members_do_not_fit():
    starts = {"start": jnp.array([1, 2]), "end": 0, "max_steps": 2}
    both = decoding.ensemble(table, table)
    with pytest.raises(ValueError, match="must share a vocabulary"):
        rs.decode(both, (jnp.eye(3), jnp.eye(4)), ((), ()), **starts)
    with pytest.raises(TypeError, match="the parameters must be a tuple"):
        rs.decode(both, jnp.eye(3), ((), ()), **starts)
    with pytest.raises(TypeError, match="the carry must be a tuple"):
        rs.decode(both, (jnp.eye(3), jnp.eye(3)), ((),), **starts)
    with pytest.raises(ValueError, match="pass has_aux=True"):
        rs.decode(decoding.ensemble(with_aux), (model().params,), (model().carry,), start=1, end=0, max_steps=2)


def test_parameters_of_a_decoder():
    cell = rs.cells.GRU(4)
    made = decoding.decoder(cell)
    with pytest.raises(ValueError, match="'cell', 'embed', 'project'; got 'cell'"):
        rs.decode(made, {"cell": {}}, jnp.zeros((2, 4)), start=1, end=0, max_steps=2)
    params = {"cell": cell.init(KEY, 3), "embed": jnp.ones((5, 3)), "project": {"kernel": jnp.ones((4, 5))}}
    made = decoding.decoder(cell, has_aux=True)
    with pytest.raises(TypeError, match="needs a cell whose y is a tuple"):
        rs.decode(made, params, (jnp.zeros((2, 4)),), start=1, end=0, max_steps=2, has_aux=True)
