"""A cell, its arguments and the options of scan, all at random from one seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from fuzz import options as scan_options
from fuzz.carries import KINDS, Carry
from fuzz.draw import Draw
from fuzz.operations import OPERATIONS


# These take long to compile, so there are fewer of them.
RARE_OPERATIONS = frozenset(
    {"cond", "switch", "scan within", "rnnscan within", "while of integers", "sort", "convolution"}
)
CELL_FEATURES = (
    *(f"operation: {name}" for name in OPERATIONS),
    *(f"carry: {name}" for name in KINDS),
    "no carry",
    "carries that do not feed each other",
    "carries that feed each other",
    "no inputs",
    "input without rows",
    "integer input",
    "key input",
    "weights used twice",
    "weights from weights",
    "weights: params",
    "weights: closed",
    "weights: constant",
    "parameters in float32",
    "name",
    "name within jit",
    "name of an input",
    "name of a carry",
    "two names of one value",
    "one name of a pytree",
    "output: none",
    "output: value",
    "output: new carry",
    "output: old carry",
    "output: input",
    "output: invariant",
    "output: integers",
    "output: without rows",
)
LOSS_FEATURES = (
    "loss of all",
    "loss of the outputs",
    "loss of the last carry",
    "loss of some leaves",
    "gradient in some arguments",
)
BACKEND_FEATURES = ("choices of a cpu", "choices of a gpu", "choices of a tpu")
FEATURES = (*CELL_FEATURES, *BACKEND_FEATURES, *scan_options.OPTION_FEATURES, *LOSS_FEATURES)


@dataclass(frozen=True)
class Case:
    """A random cell with all that a scan of it takes.

    Attributes:
        seed: what all follows from.
        length: number of steps.
        batch: number of rows.
        kinds: name of each part of the carry -> what it is.
        has_inputs: whether there are inputs.
        rows: options that speak of rows.
        order: options that speak of the order of the steps.
        carries: what a part of the carry can be.
        operations: what a step can compute.
    """

    carries: ClassVar[Mapping[str, Carry]] = KINDS
    operations: ClassVar[Mapping[str, Callable[[Draw], Any]]] = OPERATIONS

    seed: int
    length: int
    batch: int
    kinds: dict[str, str]
    has_inputs: bool
    rows: dict[str, Any]
    order: dict[str, Any]

    @classmethod
    def of(cls, seed: int) -> Self:
        random = np.random.default_rng([seed, 0])
        length, batch = scan_options.random_length(random), int(random.integers(1, 4))
        return cls._with(random, seed, length, batch, scan_options.random_rows(random, length, batch))

    @classmethod
    def _with(cls, random: np.random.Generator, seed: int, length: int, batch: int, rows: dict[str, Any]) -> Self:
        possible = [name for name, kind in cls.carries.items() if kind.by_rows or not rows]
        if rows.get("padding") == "drop":
            possible = [name for name in possible if cls.carries[name].has_zero]
        count = int(random.choice(5, p=[0.03, 0.29, 0.38, 0.22, 0.08]))
        # The order in which JAX sees them is not the one in which they are computed.
        places = random.permutation(list("abcd"))[:count]
        kinds = {str(place): str(random.choice(possible)) for place in places}
        has_inputs = bool(rows or random.random() < 0.93)
        return cls(seed, length, batch, kinds, has_inputs, rows, scan_options.random_order(random, length))

    @cached_property
    def _traced(self) -> tuple[Draw, dict[str, Any]]:
        """The draw of a first trace, and the arrays that the cell asks for."""
        arrays: dict[str, list[Any]] = {"params": [], "closed": []}
        draw = Draw(self.seed, self.batch, arrays, inner=None, names=False)
        jax.make_jaxpr(lambda carry, x: self._step(draw, carry, x))(self.carry, self._first_inputs())
        return draw, arrays

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What gradients are taken in: params, what is closed over, carry and xs."""
        made = jax.tree.map(jnp.asarray, self._traced[1])
        params = {"used": made["params"], "unused": jnp.ones(2), "none": None, "count": jnp.arange(2)}
        return {"params": params, "closed": made["closed"], "carry": self.carry, "xs": self.xs}

    @cached_property
    def carry(self) -> dict[str, Any]:
        random = np.random.default_rng([self.seed, 3])
        return {
            place: self.carries[kind].initial(random, self.batch, int(random.integers(1, 4)))
            for place, kind in self.kinds.items()
        }

    @property
    def rows_and_order(self) -> dict[str, Any]:
        """The options that speak of rows and of the order of the steps; resets go to another row's carry."""
        reset_to = {"reset_to": jax.tree.map(lambda leaf: leaf[::-1], self.carry)} if "reset" in self.rows else {}
        return {**self.rows, **reset_to, **self.order}

    @cached_property
    def xs(self) -> Any:
        if not self.has_inputs:
            return None
        random = np.random.default_rng([self.seed, 4])
        rows = (self.length, self.batch)
        signal = random.normal(size=(*rows, int(random.integers(1, 4))))
        xs: dict[str, Any] = {"signal": jnp.asarray(signal), "none": None}
        if random.random() < 0.3:
            xs["factor"] = jnp.asarray(random.normal(size=self.length))
        if random.random() < 0.3:
            xs["token"] = jnp.asarray(random.integers(0, 5, size=rows))
        if random.random() < 0.06:
            xs["key"] = jax.random.split(jax.random.key(self.seed), self.length)
        return xs

    @cached_property
    def memory(self) -> rs.Memory:
        random = np.random.default_rng([self.seed, 5])
        return scan_options.random_memory(random, self.length, list(self._traced[0].labels))

    @cached_property
    def unroll(self) -> int | bool:
        return scan_options.random_unroll(np.random.default_rng([self.seed, 6]), self.length, self.memory)

    @cached_property
    def backend(self) -> str:
        """Whose choices the engine makes, what to batch among them."""
        return str(np.random.default_rng([self.seed, 9]).choice(["cpu", "gpu", "tpu"], p=[0.6, 0.2, 0.2]))

    @cached_property
    def features(self) -> frozenset[str]:
        """What the cell and the options have, in words."""
        given = {**self.rows, **self.order, "unroll": self.unroll}
        features = set(scan_options.option_features(given, self.memory, self.length)) | self._traced[0].features
        features.update(f"carry: {kind}" for kind in self.kinds.values())
        features.add(f"choices of a {self.backend}")
        xs = self.xs or {}
        present = {
            "no carry": not self.kinds,
            "no inputs": not xs,
            "input without rows": "factor" in xs,
            "integer input": "token" in xs,
            "key input": "key" in xs,
            "name": bool(self._traced[0].labels),
        }
        return frozenset(features | {feature for feature, is_present in present.items() if is_present})

    def cell(
        self, closed: list[Any], *, inner: dict[str, Any] | None = None, names: bool = True
    ) -> Callable[[Any, Any, Any], Any]:
        """The cell. `inner` are options of the scans within it, in place of those that are drawn."""

        def cell(params: Any, carry: Any, x: Any) -> Any:
            draw = Draw(self.seed, self.batch, {"params": params["used"], "closed": closed}, inner=inner, names=names)
            return self._step(draw, carry, x)

        return cell

    def _first_inputs(self) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.xs)

    def _step(self, draw: Draw, carry: dict[str, Any], x: Any) -> tuple[Any, Any]:
        self._read_inputs(draw, x)
        feed_each_other = draw.chance(0.4)
        if feed_each_other and len(self.kinds) > 1:
            draw.features.add("carries that feed each other")
        if not feed_each_other and len(self.kinds) > 1:
            draw.features.add("carries that do not feed each other")
        if feed_each_other:
            for place, kind in self.kinds.items():
                self.carries[kind].read(draw, carry[place])
        self._compute(draw, draw.integer(0, 2), free=not feed_each_other)
        new_carry = {}
        for place, kind in self.kinds.items():
            if not feed_each_other:
                self.carries[kind].read(draw, carry[place])
            self._compute(draw, draw.integer(0, 1), free=False)
            new_carry[place] = self.carries[kind].next(draw, carry[place])
            if draw.chance(0.3):
                self.carries[kind].read(draw, new_carry[place])
        self._compute(draw, draw.integer(0, 2), free=False)
        return new_carry, self._outputs(draw, carry, new_carry, x)

    def _read_inputs(self, draw: Draw, x: Any) -> None:
        if x is None or draw.chance(0.1):
            draw.add(jnp.sin(draw.weights(self.batch, 2)), free=True)
        if x is None:
            return
        draw.add(x["signal"], free=True)
        if "factor" in x:
            draw.add(x["signal"] * x["factor"], free=True)
        if "token" in x:
            draw.indices.append(x["token"])
        if "key" in x:
            draw.add(jax.random.uniform(x["key"], (self.batch, 2), jnp.float64), free=True)
        if draw.chance(0.1):
            draw.features.add("name of an input")
            draw.add(draw.named(x["signal"], draw.any_label()), free=True)

    def _outputs(self, draw: Draw, carry: Any, new_carry: Any, x: Any) -> Any:
        possible: dict[str, Callable[[], Any]] = {"value": draw.value, "none": lambda: None}
        possible["invariant"] = lambda: jnp.cos(draw.weights(self.batch, 2))
        if draw.indices:
            possible["integers"] = lambda: draw.pick(draw.indices)
        if x is not None:
            possible["input"] = lambda: x["signal"]
        if "seq_lengths" not in self.rows and "mask" not in self.rows:
            possible["without rows"] = lambda: draw.value().sum()
        kinds = {place: self.carries[kind] for place, kind in self.kinds.items()}
        places = [place for place, kind in kinds.items() if kind.by_rows and kind.has_zero]
        if places:
            possible["new carry"] = lambda: new_carry[draw.pick(places)]
            possible["old carry"] = lambda: carry[draw.pick(places)]
        often = ["value", "value", *(["new carry", "new carry"] if places else [])]
        outputs = []
        for _ in range(draw.integer(0 if self.kinds else 1, 3)):
            kind = draw.pick([*often, *possible])
            draw.features.add(f"output: {kind}")
            outputs.append(possible[kind]())
        if not outputs:
            draw.features.add("output: none")
            return None
        return draw.pick([lambda: outputs, lambda: {"nested": tuple(outputs), "none": None}, lambda: outputs[0]])()

    def _compute(self, draw: Draw, count: int, *, free: bool) -> None:
        """Add so many operations to the values."""
        for _ in range(count):
            name = draw.pick(list(self.operations))
            if name in RARE_OPERATIONS and draw.chance(0.5):
                name = draw.pick(list(self.operations))
            draw.features.add(f"operation: {name}")
            value = draw.named(self.operations[name](draw), draw.label())
            if draw.chance(0.05):
                draw.features.add("two names of one value")
                value = draw.named(draw.named(value, draw.any_label()), draw.any_label())
            if draw.chance(0.05):
                draw.features.add("one name of a pytree")
                value = draw.named({"value": value, "other": draw.value()}, draw.any_label())["value"]
            draw.add(value, free=free)
