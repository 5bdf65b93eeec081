from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rnnscan.train import TrainState, begin, make_step


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
    """A recurrent mean: its gradient is not finite where the batch is not."""
    carry = jnp.tanh(carry @ params["u"] + batch @ params["w"])
    return jnp.mean(carry**2), carry


def params() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(3), 2)
    return {"w": jax.random.normal(keys[0], (2, 4)), "u": jax.random.normal(keys[1], (4, 4))}


def batch_at(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(3, 2)).astype(np.float32)


def initial(optimizer: optax.GradientTransformation) -> TrainState:
    return begin(params(), optimizer, carry=jnp.full((3, 4), 0.25), seed=5)


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def trained(state: TrainState) -> Any:
    """What a skipped step leaves as it was."""
    return jax.device_get((state.params, state.optimizer_state, state.carry))


def test_a_step_is_that_of_optax_on_the_gradient_of_jax() -> None:
    optimizer = optax.adamw(0.05, weight_decay=0.1)
    step, state = make_step(loss, optimizer), initial(optimizer)
    plain, carry = params(), jnp.full((3, 4), 0.25)
    optimizer_state = optimizer.init(plain)
    for number in range(4):
        (value, carry), gradient = jax.value_and_grad(loss, has_aux=True)(plain, carry, batch_at(number), None)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, plain)
        plain = optax.apply_updates(plain, updates)

        state, metrics = step(state, batch_at(number))

        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-6)
        np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-5)
    assert int(state.step) == 4
    assert int(state.skipped) == 0
    for actual, expected in zip(
        jax.tree.leaves(trained(state)), jax.tree.leaves((plain, optimizer_state, carry)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_the_gradient_is_clipped_to_its_norm(clip_norm: float) -> None:
    optimizer = optax.sgd(1.0)
    before = params()

    state, metrics = make_step(loss, optimizer, clip_norm=clip_norm)(initial(optimizer), batch_at(0))

    gradient = jax.grad(lambda params: loss(params, jnp.full((3, 4), 0.25), batch_at(0), None)[0])(before)
    norm = float(optax.tree.norm(gradient))
    assert 1e-3 < norm < 1e3
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-5)
    for name, leaf in gradient.items():
        moved = before[name] - state.params[name]
        np.testing.assert_allclose(moved, leaf * min(1, clip_norm / norm), rtol=1e-2, atol=3e-7)


def test_the_norm_of_a_float16_gradient_does_not_overflow() -> None:
    def steep(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params * batch), carry

    optimizer = optax.sgd(1.0)
    state = begin(jnp.zeros(4, jnp.float16), optimizer)
    state, metrics = make_step(steep, optimizer, clip_norm=2.0)(state, jnp.full(4, 1000, jnp.float16))
    assert float(metrics["gradient_norm"]) == 2000
    assert state.params.dtype == jnp.float16
    np.testing.assert_allclose(state.params, -1)
    assert int(state.skipped) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_that_is_not_finite_leaves_all_as_it_was_and_is_counted(value: float) -> None:
    optimizer = optax.adam(0.05)
    step, state, undisturbed = make_step(loss, optimizer, clip_norm=1.0), initial(optimizer), initial(optimizer)
    bad = batch_at(0)
    bad[1, 1] = value
    for number in range(3):
        state, _ = step(state, batch_at(number))
        undisturbed, _ = step(undisturbed, batch_at(number))
    before = trained(state)

    for in_a_row in (1, 2):
        state, metrics = step(state, np.full_like(bad, value) if in_a_row == 2 else bad)
        assert_same(trained(state), before)
        assert int(state.skipped_in_a_row) == int(state.skipped) == int(metrics["skipped"]) == in_a_row
    assert int(state.step) == 5

    for number in range(3, 6):
        state, metrics = step(state, batch_at(number))
        undisturbed, _ = step(undisturbed, batch_at(number))
    assert_same(trained(state), trained(undisturbed))
    assert int(state.step) == 8
    assert int(state.skipped) == int(metrics["skipped"]) == 2
    assert int(state.skipped_in_a_row) == 0


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (lambda params, carry, batch: (jnp.sum(params) + jnp.inf, carry), "loss"),
        (lambda params, carry, batch: (jnp.sum(jnp.sqrt((params - 1) ** 2)), carry), "gradient"),
        (lambda params, carry, batch: (jnp.sum(params), carry * jnp.nan), "carry"),
        (lambda params, carry, batch: (jnp.sum(params) * 1e10, carry), "update"),
    ],
)
def test_whatever_is_not_finite_the_step_is_skipped(broken: Any, what: str) -> None:
    optimizer = optax.chain(optax.zero_nans(), optax.sgd(1e30))  # which does not let the gradient's fault through
    state = begin(jnp.ones(3), optimizer, carry=jnp.ones(2))
    state, metrics = make_step(lambda *given: broken(*given[:3]), optimizer)(state, None)
    assert bool(jnp.isfinite(metrics["loss"])) == (what != "loss")
    assert bool(jnp.isfinite(metrics["gradient_norm"])) == (what != "gradient")
    np.testing.assert_array_equal(state.params, jnp.ones(3))
    np.testing.assert_array_equal(state.carry, jnp.ones(2))
    assert int(state.skipped) == 1


def test_what_is_infinite_in_a_carry_or_masked_in_the_parameters_is_no_fault() -> None:
    # Stabilisers of exponential gates begin at minus infinity, and so do masks.
    optimizer = optax.sgd(0.5)
    state = begin({"w": jnp.ones(2), "mask": jnp.array([0.0, -jnp.inf])}, optimizer, carry=jnp.array(-jnp.inf))

    def masked(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params["w"] * jax.nn.softmax(jax.lax.stop_gradient(params["mask"]))), carry

    state, _ = make_step(masked, optimizer)(state, None)
    assert int(state.skipped) == 0
    np.testing.assert_array_equal(state.params["w"], [0.5, 1.0])


def test_each_step_has_its_own_key_which_follows_from_the_seed_and_the_step() -> None:
    def noisy(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params), jax.random.uniform(key)

    optimizer = optax.sgd(0.0)
    step, state, drawn = make_step(noisy, optimizer), begin(jnp.ones(1), optimizer, carry=jnp.float32(0), seed=9), []
    for _ in range(3):
        state, _ = step(state, None)
        drawn.append(float(state.carry))
    keys = [jax.random.fold_in(jax.random.key(9), number) for number in range(3)]
    assert drawn == [float(jax.random.uniform(key)) for key in keys]
    assert len(set(drawn)) == 3


def test_the_loss_may_give_metrics_of_its_own() -> None:
    optimizer = optax.sgd(0.1)

    def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params**2), carry, {"largest": jnp.max(params)}

    _, metrics = make_step(loss, optimizer)(begin(jnp.arange(3.0), optimizer), None)
    assert {name: float(value) for name, value in metrics.items() if name != "gradient_norm"} == {
        "loss": 5.0,
        "largest": 2.0,
        "skipped": 0.0,
    }
    with pytest.raises(ValueError, match=r"names other than step, loss, gradient_norm, skipped; got 'loss'\."):
        make_step(lambda params, *_: (jnp.sum(params), None, {"loss": 1.0}), optimizer)(
            begin(jnp.ones(1), optimizer), None
        )


@pytest.mark.parametrize(
    "optimizer",
    [optax.lbfgs(), optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), optax.contrib.schedule_free_sgd()],
    ids=["line search", "reads the loss", "keeps the parameters in its state"],
)
def test_optimizers_that_need_more_than_the_gradient_work(optimizer: Any) -> None:
    step = make_step(lambda params, carry, batch, key: (jnp.sum((params - batch) ** 2), carry), optimizer)
    state = begin(jnp.zeros(3), optimizer)
    values = []
    for _ in range(10):
        state, metrics = step(state, jnp.array([1.0, 2.0, 3.0]))
        values.append(float(metrics["loss"]))
    assert values[-1] < 0.5 * values[0]
    assert int(state.skipped) == 0


def test_what_begin_is_given_outlives_the_training() -> None:
    given, carry, optimizer = params(), jnp.zeros((3, 4)), optax.adam(0.1)
    expected = jax.device_get(given)
    state = begin(given, optimizer, carry=carry)
    make_step(loss, optimizer)(state, batch_at(0))
    assert_same(given, expected)
    np.testing.assert_array_equal(carry, 0)


def test_the_types_of_a_state_are_its_own_from_the_beginning() -> None:
    optimizer = optax.sgd(0.1)
    state = begin({"scale": 2.0, "low": jnp.ones(2, jnp.bfloat16)}, optimizer, carry=0)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state.params, state.carry)))
    compiled = []

    def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        compiled.append(None)
        return params["scale"] * jnp.sum(params["low"]).astype(jnp.float32), carry + 1

    step = make_step(loss, optimizer)
    for _ in range(3):
        state, _ = step(state, None)
    assert len(compiled) == 1
    assert int(state.carry) == 3
    assert state.params["low"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda carry: (carry, carry), r"must have the structure of the given one; got .* for "),
        (lambda carry: carry[:1], r"got float32\[1,4\] for float32\[3,4\] at carry\. Cast it"),
        (lambda carry: carry.astype(jnp.bfloat16), r"got bfloat16\[3,4\] for float32\[3,4\] at carry\. Cast it"),
    ],
)
def test_a_carry_that_the_next_step_cannot_be_given_is_refused(returned: Any, message: str) -> None:
    optimizer = optax.sgd(0.1)
    step = make_step(lambda params, carry, *_: (jnp.sum(params["w"]), returned(carry)), optimizer)
    with pytest.raises(TypeError, match=message):
        step(initial(optimizer), batch_at(0))


def test_a_metric_that_is_no_scalar_is_refused() -> None:
    optimizer = optax.sgd(0.1)
    step = make_step(lambda params, *_: (jnp.sum(params), None, {"each": params}), optimizer)
    with pytest.raises(ValueError, match=r"the metrics of `loss` must be scalars; got 'each' float32\[2\]\."):
        step(begin(jnp.ones(2), optimizer), None)


def test_parameters_are_floats() -> None:
    with pytest.raises(
        TypeError, match=r"begin: the parameters must be floating-point .*; got `params\['n'\]` int32\[2\]"
    ):
        begin({"w": jnp.ones(2), "n": jnp.ones(2, int)}, optax.sgd(0.1))


def test_accumulated_gradients_pass_the_loss_on_to_the_optimizer() -> None:
    """As `optax.MultiSteps` does by itself: `reduce_on_plateau` reads the loss."""
    optimizer = optax.MultiSteps(optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)), 2)
    params = jnp.array([1.0, -2.0])
    squares = lambda params: jnp.sum(params**2)  # noqa: E731
    state = begin(params, optimizer)
    step = make_step(lambda params, carry, *_: (squares(params), carry), optimizer)
    expected, optimizer_state = params, optimizer.init(params)
    for _ in range(5):
        value, gradient = jax.value_and_grad(squares)(expected)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, expected, value=value)
        expected = optax.apply_updates(expected, updates)
        state, _ = step(state, None)
    np.testing.assert_allclose(state.params, expected, rtol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_a_norm_that_is_not_above_zero_is_refused(clip_norm: float) -> None:
    with pytest.raises(ValueError, match=r"make_step: `clip_norm` must be above 0; got "):
        make_step(loss, optax.sgd(0.1), clip_norm=clip_norm)


def test_a_loss_that_returns_its_value_alone_is_refused() -> None:
    optimizer = optax.sgd(0.1)
    step = make_step(lambda params, carry, batch, key: jnp.sum(params["w"]), optimizer)
    with pytest.raises(TypeError, match=r"must return \(loss, carry\) or \(loss, carry, metrics\); got float32\[\]"):
        step(initial(optimizer), batch_at(0))


@pytest.mark.bad_input
def test_an_optimizer_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^make_step: .* and 'adam'\. Write make_step\(loss, optax\.adam"):
        make_step(loss, "adam")
