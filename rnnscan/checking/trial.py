"""Run a model on random inputs: its results and their gradients, with few compiled programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.checking.leaves import by_path, cast, is_inexact, random_like
from rnnscan.checking.model import Model


# The steps of checks whose faults show in few, and of inputs that have fewer. A fault in as many is looked for step by
# step.
FEW = 8


class Size(NamedTuple):
    """Steps and rows of an input. A model without a batch axis has one row."""

    steps: int
    rows: int


class Arrays(NamedTuple):
    """The arguments of a run. Leaves are NumPy arrays, which compile nothing where they are changed."""

    params: Any
    carry: Any
    xs: Any


class Results(NamedTuple):
    """What a run returns, by place: `y`, `carry/0`; and gradients: `params/kernel`, `carry/0`, `xs`."""

    outputs: dict[str, Any]
    gradients: dict[str, Any]
    carry: Any


@dataclass(frozen=True)
class Trial:
    """A model with what its inputs look like.

    Attributes:
        model: the model.
        given: params, carry and xs as the user passed them, arrays or types.
        has_rows: whether leaves of xs are `(T, N, ...)`.
        size: the size at which checks run first.
        short: that of the checks whose faults show in few steps; None: the same.
        dtype: the dtype of the arguments.
        tolerance: the largest difference between results that must be equal to rounding.
        narrow: a narrower dtype that the model computes in by itself, or None.
        seed: the seed of random inputs.
        forms: other forms of the model, by the user's names.
        broken: whether the model does not run, because a step does not keep the types of its carry.
    """

    model: Model
    given: tuple[Any, Any, Any]
    has_rows: bool
    size: Size
    dtype: Any
    tolerance: float
    short: Size | None = None
    narrow: Any = None
    seed: int = 0
    forms: Mapping[str, Model] = field(default_factory=dict)
    broken: bool = False

    @property
    def setting(self) -> str:
        """The sizes and the dtype, in words."""
        rows = f", {self.size.rows} rows" if self.has_rows else ""
        narrow = f", in which the model computes in {jnp.dtype(self.narrow).name}" if self.narrow is not None else ""
        steps = f"{self.size.steps} steps{self._of_short}"
        return f"{steps}{rows}, {jnp.dtype(self.dtype).name}{narrow}, tolerance {self.tolerance:g}"

    @property
    def _of_short(self) -> str:
        if self.short is None:
            return ""
        return f" ({self.short.steps} where a fault shows in few)"

    def at_short_size(self) -> "Trial":
        """The trial of the checks whose faults show in few steps. What is made once is shared."""
        assert self.short is not None
        short = replace(self, size=self.short)
        short.__dict__["_memo"] = self._memo
        return short

    @cached_property
    def _memo(self) -> dict[Any, Any]:
        return {}

    def remember(self, key: Any, make: Callable[[], Any]) -> Any:
        """A value that is made once, such as a compiled program or the results of a run."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def random(self, *what: Any) -> np.random.Generator:
        """A generator of its own for each purpose."""
        return np.random.default_rng([self.seed, *map(_number, what)])

    # Arguments.

    def params(self) -> Any:
        """The user's parameters, or random ones of their types, in the dtype of the trial."""
        return self.remember("params", self._make_params)

    def _make_params(self) -> Any:
        random = self.random("params")

        def make(leaf: Any) -> Any:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return leaf
            value = random_like(random, leaf, leaf.shape)
            return value / 2 if is_inexact(leaf) else value

        return cast(jax.tree.map(make, self.given[0]), self.dtype)

    def inputs(self, size: Size, purpose: str = "xs") -> Any:
        """Random inputs of a size, in the range of the user's."""
        random = self.random(purpose, size)
        shape = size if self.has_rows else size[:1]

        def make(leaf: Any) -> Any:
            like = None if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
            return random_like(random, leaf, (*shape, *leaf.shape[len(shape) :]), like=like)

        return cast(jax.tree.map(make, self.given[2]), self.dtype)

    def start(self, size: Size) -> Any:
        """The initial carry: the model's own, or else the user's for this number of rows."""
        return self.remember(("start", size.rows), lambda: self._make_start(size))

    def _make_start(self, size: Size) -> Any:
        if self.model.start is not None:
            start = self.model.start(self.params(), self.inputs(size))
            return cast(jax.tree.map(_as_numpy, start), self.dtype)
        random = self.random("carry", size)
        rows = jax.tree.leaves(self.given[2])[0].shape[1] if self.has_rows else None

        def make(leaf: Any) -> Any:
            has_rows = rows is not None and leaf.shape[:1] == (rows,)
            if isinstance(leaf, jax.ShapeDtypeStruct):
                return random_like(random, leaf, (size.rows, *leaf.shape[1:]) if has_rows else leaf.shape)
            return leaf[np.arange(size.rows) % leaf.shape[0]] if has_rows else leaf

        return cast(jax.tree.map(make, self.given[1]), self.dtype)

    def arrays(self, size: Size) -> Arrays:
        """Random arguments, with a carry that the model reached after some steps: no zeros, rows differ, and valid."""
        return self.remember(("arrays", size), lambda: self._make_arrays(size))

    def _make_arrays(self, size: Size) -> Arrays:
        carry = self.start(size)
        if "carry" in self.model.options:
            carry = self.run(Arrays(self.params(), carry, self.inputs(size, "before"))).carry
        return Arrays(self.params(), jax.tree.map(_as_numpy, carry), self.inputs(size))

    # Runs.

    def cotangents(self, arrays: Arrays, **options: Any) -> dict[str, Any]:
        """Random cotangents of the outputs, by place. They depend on the shapes of the outputs alone."""
        key = ("outputs", _signature(arrays), *sorted(map(str, options)))
        outputs = self.remember(key, lambda: self._output_types(arrays, options))
        return {
            name: random_like(self.random("cotangents", name), leaf, leaf.shape)
            for name, leaf in outputs.items()
            if is_inexact(leaf)
        }

    def _output_types(self, arrays: Arrays, options: dict[str, Any]) -> dict[str, Any]:
        return outputs_by_path(*jax.eval_shape(lambda arrays: self.model.run(*arrays, **options), arrays))

    def run(
        self,
        arrays: Arrays,
        cotangents: Mapping[str, Any] | None = None,
        *,
        model: Model | None = None,
        options: Mapping[str, Any] | None = None,
        wrap: Callable[..., Any] = jax.jit,
        **static: Any,
    ) -> Results:
        """The results of a run and their gradients.

        Args:
            arrays: the arguments.
            cotangents: those of the floating outputs, by place; None: random ones.
            model: another model of the same arguments.
            options: options of the run that are arrays.
            wrap: what compiles the program.
            static: options of the run that are not arrays.
        """
        model = self.model if model is None else model
        options = dict(options or {})
        if cotangents is None:
            cotangents = self.cotangents(arrays)
        key = ("program", id(model), wrap, tuple(sorted((name, repr(value)) for name, value in static.items())))
        program = self.remember(key, lambda: wrap(program_of(model, static)))
        outputs, gradients, carry = program(arrays, options, dict(cotangents))
        return Results(_all_numpy(outputs), _all_numpy(gradients), carry)

    def resets(self, size: Size, reset: Any) -> dict[str, Any]:
        """The options of a run with resets."""
        options = {"reset": reset if self.has_rows else reset[:, 0]}
        own = self.model.kind in ("net", "function") or (self.model.kind == "cell" and self.model.start is not None)
        return options if own else {**options, "reset_to": self.start(size)}

    def lengths(self, lengths: Any) -> dict[str, Any]:
        """The options of a run with padding."""
        lengths = np.asarray(lengths, np.int32)
        return {"seq_lengths": lengths if self.has_rows else lengths[0]}


def program_of(model: Model, static: Mapping[str, Any]) -> Callable[..., Any]:
    """The function from arrays, options and cotangents to outputs, gradients and the carry."""

    def program(arrays: Arrays, options: dict[str, Any], cotangents: dict[str, Any]) -> Any:
        leaves, structure = jax.tree.flatten(arrays)
        varying = [is_inexact(leaf) for leaf in leaves]

        def run(floats: list[Any]) -> Any:
            rest = iter(floats)
            merged = [next(rest) if varies else leaf for varies, leaf in zip(varying, leaves, strict=True)]
            carry, ys = model.run(*jax.tree.unflatten(structure, merged), **static, **options)
            outputs = outputs_by_path(carry, ys)
            floating = {name: leaf for name, leaf in outputs.items() if name in cotangents}
            return floating, (outputs, carry)

        floats = [leaf for varies, leaf in zip(varying, leaves, strict=True) if varies]
        floating, pull, (outputs, carry) = jax.vjp(run, floats, has_aux=True)
        given = {name: cotangents[name].astype(leaf.dtype) for name, leaf in floating.items()}
        (gradients,) = pull(given)
        return outputs, dict(zip(gradient_names(arrays), gradients, strict=True)), carry

    return program


def outputs_by_path(carry: Any, ys: Any) -> dict[str, Any]:
    """The outputs of a run by place."""
    return by_path(carry, "carry") | by_path(ys, "y")


def gradient_names(arrays: Arrays) -> list[str]:
    """The places of the arguments that have gradients."""
    places = by_path(arrays.params, "params") | by_path(arrays.carry, "carry") | by_path(arrays.xs, "xs")
    return [name for name, leaf in places.items() if is_inexact(leaf)]


def _all_numpy(leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_numpy(leaf) for name, leaf in leaves.items()}


def _as_numpy(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf)


def _signature(arrays: Arrays) -> Any:
    return tuple(leaf.shape for leaf in jax.tree.leaves((arrays.carry, arrays.xs)))


def _number(what: Any) -> int:
    if isinstance(what, str):
        return sum((index + 1) * ord(letter) for index, letter in enumerate(what))
    return int(what) if not isinstance(what, tuple) else sum(1000**index * each for index, each in enumerate(what))
