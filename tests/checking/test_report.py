"""The report of `check`, and what bad arguments get."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.checking import CheckError, Outcome
from rnnscan.checking.registry import CHECKS


CELL = rs.cells.RNN(3)
XS = jax.ShapeDtypeStruct((8, 3, 2), jnp.float32)
PARAMS = CELL.init(jax.random.key(0), 2)


def mixed(params, xs):
    return params * xs / (1 + jnp.abs(xs).sum(1, keepdims=True))


def reads_the_future(params, xs):
    return params * xs[::-1]


@pytest.fixture(scope="module")
def report():
    return rs.check(mixed, jnp.float32(0.5), XS, only=["steps", "future", "rows"])


def test_the_report_has_each_check_in_order(report):
    assert [outcome.name for outcome in report.outcomes] == ["steps", "future", "rows"]
    assert [outcome.result for outcome in report.outcomes] == ["does not apply", "holds", "does not hold"]
    assert not report.ok
    assert report.failed == ("rows",)
    assert report["steps"].detail == "a function that takes and returns no carry"


def test_the_report_is_text_rich_and_html(report):
    text = str(report)
    assert text.startswith("mixed: 1 holds, 1 does not hold, 1 does not apply\n8 steps, 3 rows, float64")
    assert "rows    does not hold   1 step, 2 rows: y at step 0, row 1 changes by" in text
    html = report._repr_html_()
    assert "<table" in html
    assert "a counterexample" in html
    from rich.console import Console

    long = replace(report, outcomes=(*report.outcomes, Outcome("types", "does not hold", "bfloat16[3,4] " * 12)))
    with (console := Console(width=60)).capture() as capture:
        console.print(long)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split()[0] for line in lines if "does not hold  " in line] == ["rows", "types"]
    assert "".join(lines).count("bfloat16[3,4]") == 12


def test_a_failure_raises_an_assertion_with_the_smallest_input(report):
    with pytest.raises(CheckError, match=r"mixed is not what it claims\.\n  rows: 1 step, 2 rows: y at step 0"):
        report.raise_if_failed()
    assert issubclass(CheckError, AssertionError)
    rs.check(mixed, jnp.float32(0.5), XS, only="future").raise_if_failed()


def test_an_unknown_check_names_the_nearest(report):
    with pytest.raises(ValueError, match=r"`only` must name checks: 'types'.*; got 'row'\. Did you mean 'rows'\?"):
        rs.check(mixed, None, XS, only="row")
    with pytest.raises(ValueError, match=r"`skip` must name checks.*got 'futures'"):
        rs.check(mixed, None, XS, skip=["rows", "futures"])
    with pytest.raises(KeyError, match="got 'row'"):
        report["row"]


def test_skip_leaves_checks_out():
    report = rs.check(reads_the_future, jnp.float32(1), XS, only=["future", "rows"], skip="future")
    assert [outcome.name for outcome in report.outcomes] == ["rows"]


def test_every_check_has_a_claim_and_a_name_of_its_own():
    assert [*CHECKS] == [check.name for check in CHECKS.values()]
    assert all(check.claim.endswith(".") for check in CHECKS.values())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CELL, PARAMS), r"takes check\(cell, params, carry, xs\); got 1 arguments after the first"),
        ((CELL, PARAMS, XS), r"takes check\(cell, params, carry, xs\); got 2 arguments"),
        ((rs.layer(CELL), PARAMS), r"takes check\(net, params, xs, carry=carry\); got 1"),
        ((3, PARAMS, XS), "a cell, net, function or module comes first; got int"),
        ((rs.cells.RNN, PARAMS, None, XS), "a cell must be callable.*the class RNN"),
        ((lambda params, xs, horizon: xs, PARAMS, XS), r"which needs 'horizon'\. Bind other arguments"),
        ((mixed, PARAMS, jnp.float32(1)), r"xs must be arrays or types with a time axis, \(T, N, \.\.\.\)"),
        ((mixed, PARAMS, None), "xs must be arrays or types with a time axis"),
    ],
)
def test_bad_arguments_get_a_message(arguments, message):
    with pytest.raises(TypeError, match=message):
        rs.check(*arguments, only="rows")


@pytest.mark.bad_input
def test_a_carry_or_a_layout_that_is_not_used_is_an_error():
    with pytest.raises(TypeError, match="takes no carry; got one"):
        rs.check(mixed, None, XS, carry=0)
    with pytest.raises(TypeError, match="got it by name too"):
        rs.check(CELL, PARAMS, None, XS, carry=0)
    with pytest.raises(TypeError, match="`time_major` is for modules of Flax; got time_major=True"):
        rs.check(mixed, None, XS, time_major=True)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"only": 3}, TypeError, "`only` must be the name of a check, or several: 'types'.*; got 3"),
        ({"skip": 3}, TypeError, "`skip` must be the name of a check, or several"),
        ({"seed": "a"}, TypeError, "`seed` must be an integer of at least 0; got 'a'"),
        ({"seed": -1}, ValueError, "`seed` must be an integer of at least 0; got -1"),
        ({"seed": True}, TypeError, "`seed` must be an integer of at least 0; got True"),
        ({"steps": 1}, ValueError, "`steps` must be an integer of at least 2; got 1"),
        ({"steps": 8.0}, TypeError, "`steps` must be an integer of at least 2; got 8.0"),
        ({"tolerance": -1}, ValueError, "`tolerance` must be finite and not negative; got -1"),
        ({"tolerance": float("nan")}, ValueError, "`tolerance` must be finite and not negative; got nan"),
        ({"tolerance": "a"}, TypeError, "`tolerance` must be a number, such as 1e-6; got 'a'"),
        ({"batched": "no"}, TypeError, "`batched` must be True, False or None; got 'no'"),
        ({"forms": [mixed]}, TypeError, "`forms` must be functions by a name for each.*; got list"),
        ({"forms": {3: mixed}}, TypeError, "the names of `forms` must be strings.*; got 3"),
        ({"forms": {"d": 3}}, TypeError, "each of `forms` must be a function.*; got 3 for 'd'"),
        (
            {"forms": {"d": lambda xs: xs}},
            TypeError,
            r"the form 'd' must be a function \(params, xs\) -> ys; got .*\(xs\)",
        ),
        (
            {"forms": {"d": lambda params, xs: (xs, xs)}},
            TypeError,
            r"'d' must return what the model returns, ys: float64",
        ),
    ],
)
def test_bad_options_get_a_message_before_anything_runs(options, error, message, monkeypatch):
    monkeypatch.setattr(lax, "scan", lambda *_, **__: pytest.fail("the error must come before any compute"))
    with pytest.raises(error, match=message):
        rs.check(mixed, jnp.float32(0.5), XS, **options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda params, xs: xs, r"the form 'd' must be a function \(params, carry, xs\) -> \(carry, ys\); got .*"),
        (lambda params, carry, xs: xs, r"must return what the model returns, \(carry, ys\): .*; got float64\[8,3,2\]"),
        (lambda params, carry, xs: (xs, xs, xs), r"must return what the model returns, \(carry, ys\)"),
    ],
)
def test_a_form_of_a_cell_takes_and_returns_a_carry(form, message):
    with pytest.raises(TypeError, match=message):
        rs.check(CELL, PARAMS, None, XS, forms={"d": form}, only="forms")


def test_a_form_that_fails_or_differs_is_a_fault():
    def fails(params, xs):
        raise ValueError("no such thing")

    for form in (fails, lambda params, xs: xs[:-1]):
        assert rs.check(mixed, jnp.float32(0.5), XS, forms={"d": form}, only="forms").failed == ("forms",)


@pytest.mark.bad_input
def test_a_function_takes_parameters_and_inputs():
    with pytest.raises(TypeError, match=r"the model must be a function \(params, xs\) -> ys; got .*\(xs\)\. Bind"):
        rs.check(lambda xs: xs, None, XS)


def test_an_error_of_the_model_is_raised_before_any_check():
    with pytest.raises(ValueError, match="no such thing"):
        rs.check(lambda params, xs: _raise(), None, XS, only="rows")


def _raise():
    raise ValueError("no such thing")


@pytest.mark.typed
def test_types_and_arrays_make_the_same_sizes():
    xs = jnp.ones((100, 64, 2))
    for given in (xs, jax.ShapeDtypeStruct(xs.shape, xs.dtype)):
        setting = rs.check(mixed, jnp.float32(1), given, only="future").setting
        assert setting.startswith("100 steps (8 where a fault shows in few), 3 rows, float64")


@pytest.mark.parametrize(
    ("given", "steps", "ran"),
    [
        (2, None, "8 steps, "),
        (1000, None, "256 steps (8 where a fault shows in few), "),
        (1000, 20, "20 steps (8 where a fault shows in few), "),
        (20, 3, "3 steps, "),
    ],
)
def test_the_report_says_how_many_steps_ran(given, steps, ran):
    xs = jax.ShapeDtypeStruct((given, 3, 2), jnp.float32)
    assert rs.check(mixed, jnp.float32(1), xs, only="types", steps=steps).setting.startswith(f"{ran}3 rows")


def test_a_model_for_one_number_of_steps_runs_no_fewer():
    """Such as one with a parameter for each step."""
    report = rs.check(
        lambda params, xs: xs * params,
        jnp.ones((20, 1, 1)),
        jax.ShapeDtypeStruct((20, 3, 2), jnp.float32),
        only=["future", "finite_differences"],
    )
    assert report.ok
    assert report.setting.startswith("20 steps, 3 rows")


def test_results_beyond_the_range_of_float32_have_no_precision():
    def step(params, carry, x):
        carry = params * carry + x
        return carry, carry

    xs = jax.ShapeDtypeStruct((256, 3, 2), jnp.float32)
    report = rs.check(step, jnp.float32(2), jnp.zeros((3, 2)), xs, only=["steps", "precision"])
    assert report.ok
    assert "values beyond the range of float32, of carry" in report["precision"].detail


def test_a_model_for_float32_alone_is_checked_in_float32():
    def function(params, xs):
        start = jnp.zeros(xs.shape[1:], jnp.float32)
        return lax.scan(lambda carry, x: (jnp.tanh(params * carry + x),) * 2, start, xs)[1]

    report = rs.check(function, jnp.float32(0.5), XS, only=["future", "finite_differences"])
    assert report.setting == "8 steps, 3 rows, float32, tolerance 0.0002"
    assert report["future"].result == "holds"
    assert report["finite_differences"].result == "does not apply"


def test_a_model_that_rounds_is_compared_to_its_rounding():
    cell = rs.cells.RNN(3, dtype=jnp.float32)
    report = rs.check(cell, PARAMS, None, XS, only=["steps", "finite_differences"])
    assert report.setting == "8 steps, 3 rows, float64, in which the model computes in float32, tolerance 0.0002"
    assert report["steps"].result == "holds"
    assert "computes in float32" in report["finite_differences"].detail


def test_one_row_without_a_batch_axis():
    report = rs.check(
        CELL, PARAMS, None, jax.ShapeDtypeStruct((8, 2), jnp.float32), only=["steps", "rows", "documents"]
    )
    assert report.ok
    assert report.setting.startswith("8 steps, float64")
    assert report["rows"].detail == "inputs without a batch axis"


@pytest.mark.typed
def test_token_ids_stay_in_their_range():
    def function(params, tokens):
        return lax.scan(lambda carry, token: (carry + params[token],) * 2, jnp.zeros((3, 4)), tokens)[1]

    table = jax.random.normal(jax.random.key(0), (5, 4))
    tokens = jnp.arange(24).reshape(8, 3) % 5
    report = rs.check(function, table, tokens, only=["future", "rows", "finite_differences"])
    assert report.ok
    assert report["rows"].result == "holds"


def test_a_carry_that_changes_its_type_as_it_is_given_is_the_one_fault():
    def step(params, carry, x):
        return (params * carry + x).astype(jnp.float16), x

    report = rs.check(step, jnp.float32(0.5), jnp.zeros((3, 2)), XS)
    assert report.failed == ("types",)
    assert "carry is float32[1,2] before a step, and float16[1,2] after it" in report["types"].detail
    assert report["steps"].detail.startswith("a model that does not run, because its steps")


def test_a_carry_that_changes_its_structure_is_the_one_fault():
    report = rs.check(lambda params, carry, x: ((carry, x), x), None, jnp.zeros((3, 2)), XS, only=["types", "rows"])
    assert report.failed == ("types",)
    assert report["rows"].result == "does not apply"


def test_results_that_are_not_finite_are_an_error():
    with pytest.raises(ValueError, match=r"must be finite for random inputs; got inf in y at step 0, row 0\."):
        rs.check(lambda params, xs: xs / params, jnp.float32(0), jnp.ones((8, 3, 2)), only="rows")
    with pytest.raises(ValueError, match=r"got nan in the gradient of xs at step 0, row 0"):
        rs.check(lambda params, xs: jnp.sqrt(0 * xs), None, jnp.ones((8, 3, 2)), only="rows")


def test_outputs_without_a_time_axis_are_an_error():
    with pytest.raises(
        ValueError, match=r"a function must return outputs with a time axis.*got float64\[\] for 8 steps"
    ):
        rs.check(lambda params, xs: xs.sum(), None, XS)


def test_the_smallest_input_has_the_fewest_rows_steps_and_features():
    class Mixed(rs.cells.RNN):
        """Reads other rows after ten steps."""

        def initial_carry(self, x):
            return (*super().initial_carry(x), jnp.zeros(x.shape[:1], jnp.int32))

        def __call__(self, params, carry, x):
            *carry, count = carry
            carry, y = super().__call__(params, tuple(carry), x)
            return (*carry, count + 1), jnp.where(count[0] < 10, y, y.sum(0))

    cell = Mixed(3)
    report = rs.check(cell, PARAMS, None, XS, only="rows")
    # The carry of a check is that after as many steps as it runs, so 6 steps are the fewest that count to 10.
    assert report["rows"].detail.startswith("6 steps, 2 rows, 1 feature: y at step 4, row 1 changes by")


@pytest.mark.parametrize("batched", [True, False])
def test_whether_there_are_rows_can_be_said(batched):
    def step(params, carry, x):
        carry = params * carry + x
        return carry, carry

    xs = jax.ShapeDtypeStruct((8, 3), jnp.float32)
    report = rs.check(step, jnp.float32(0.5), jnp.zeros(3), xs, only=["rows", "steps"], batched=batched)
    assert report.ok
    assert report["rows"].result == ("holds" if batched else "does not apply")


@pytest.mark.parametrize("name", ["reset", "document_ids", "segment_ids"])
def test_a_function_may_take_documents_by_each_of_their_names(name):
    def sums(params, xs, ids):
        same = ids[:, None] == ids
        same &= jnp.tri(len(xs), dtype=bool)[..., None]
        return jnp.where(same[..., None], params * xs, 0).sum(1)

    functions = {
        "reset": lambda params, xs, reset: sums(params, xs, jnp.cumsum(reset, 0)),
        "document_ids": lambda params, xs, document_ids: sums(params, xs, document_ids),
        "segment_ids": lambda params, xs, *, segment_ids: sums(params, xs, segment_ids),
    }
    report = rs.check(functions[name], jnp.float32(2), XS, only="documents")
    assert report["documents"].result == "holds"
