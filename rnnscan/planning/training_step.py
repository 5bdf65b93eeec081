"""The training step that planning is for: a scan and its gradient under any memory choice."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.messages import is_float
from rnnscan.memory import Memory
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.bytes import kept_bytes, temporary_bytes
from rnnscan.planning.memory_prediction import predict_temporary


# Gets a line of text.
Report: TypeAlias = Callable[[str], None]


def _without_optimizing_code() -> dict[str, bool | str] | None:
    """Options of XLA under which a CPU's program takes half the time to compile, and has the same buffers.

    They are assigned before LLVM writes the code.
    """
    return {"xla_backend_optimization_level": "0"} if jax.default_backend() == "cpu" else None


class TrainingStep:
    """The gradient, in parameters, carry and inputs, of the squared distance of a scan's outputs to targets.

    Under a loss that is linear in the outputs, XLA stores neither the outputs nor their cotangents.

    Args:
        arguments: the arguments of the scan.
        last_only: whether the loss depends on the last carry alone.
        report: gets a line of text before each prediction and each compilation.

    Attributes:
        compiled: the choices that were compiled, with their `temporary_bytes`.
    """

    def __init__(self, arguments: Arguments, *, last_only: bool, report: Report = lambda line: None) -> None:
        self._last_only = last_only
        self._report = report
        self._predictions = 0
        self._arguments = arguments
        self._arrays, self._shapes = arguments.arrays, arguments.shapes
        roots = ("params", "carry", "xs")
        pairs = enumerate(zip(arguments.roots, arguments.shapes, strict=True))
        self._differentiated = [place for place, (root, leaf) in pairs if root in roots and is_float(leaf)]
        self._targets = jax.eval_shape(partial(self._run, Memory()), *self._shapes)
        self.kept_bytes = cache(self._kept_bytes)
        self._program = cache(self._traced_program)
        self.predicted_bytes = cache(self._reported(self._predicted_bytes))
        self.compiled: dict[Memory, int | None] = {}

    def _kept_bytes(self, memory: Memory) -> int:
        """Bytes kept between the passes, arguments included."""
        return kept_bytes(partial(self._run, memory), *self._shapes)

    def _reported(self, predict: Callable[[Memory], int]) -> Callable[[Memory], int]:
        def predict_and_report(memory: Memory) -> int:
            self._report(f"{self._progress}, predicting {memory!r}")
            self._predictions += 1
            return predict(memory)

        return predict_and_report

    def _predicted_bytes(self, memory: Memory) -> int:
        """Bytes besides arguments and results, predicted from the jaxpr."""
        return predict_temporary(*self._program(memory)).nbytes

    def temporary_bytes(self, memory: Memory) -> int | None:
        """Bytes besides arguments and results, by XLA's memory analysis; None if the backend has none."""
        if memory not in self.compiled:
            self._report(f"{self._progress}, compiling {memory!r}")
            self.compiled[memory] = self._temporary_bytes(memory)
        return self.compiled[memory]

    @property
    def _progress(self) -> str:
        needs = [needed for needed in self.compiled.values() if needed is not None]
        least = f", the least {readable_bytes(min(needs))}" if needs else ""
        return f"choices: {self._predictions} predicted, {len(self.compiled)} compiled{least}"

    def _temporary_bytes(self, memory: Memory) -> int | None:
        gradient, *shapes = self._program(memory)
        return temporary_bytes(jax.jit(gradient).lower(*shapes).compile(_without_optimizing_code()))

    def _traced_program(self, memory: Memory) -> tuple[Any, ...]:
        """The gradient as a function of arrays alone, and their shapes."""
        traced = jax.make_jaxpr(self._gradient(memory))(*self._targets, *self._shapes)
        # The cell may close over tracers of an outer jit. As arguments, only their shapes matter.
        constants = [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in traced.consts]

        def gradient(*leaves: Any) -> Any:
            arrays, rest = leaves[: len(constants)], leaves[len(constants) :]
            return core.jaxpr_as_fun(core.ClosedJaxpr(traced.jaxpr, arrays))(*rest)

        return gradient, *constants, *self._targets, *self._shapes

    def build(self, memory: Memory | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The loss under a memory choice and its arguments, for `measure_losses`. This needs arrays."""
        random = np.random.default_rng(0)
        targets = [jnp.asarray(random.normal(size=leaf.shape), leaf.dtype) for leaf in self._targets]
        primals = tuple(self._arrays[place] for place in self._differentiated)
        return lambda *differentiated: self._loss(memory, targets, self._with(differentiated, self._arrays)), primals

    def _gradient(self, memory: Memory) -> Callable[..., Sequence[Any]]:
        def gradient(*leaves: Any) -> Sequence[Any]:
            targets, arrays = leaves[: len(self._targets)], leaves[len(self._targets) :]

            def loss(*differentiated: Any) -> Any:
                return self._loss(memory, targets, self._with(differentiated, arrays))

            primals = tuple(arrays[place] for place in self._differentiated)
            argnums = tuple(range(len(primals)))
            return jax.tree.leaves(jax.value_and_grad(loss, argnums)(*primals)) if primals else ()

        return gradient

    def _loss(self, memory: Memory | None, targets: Sequence[Any], arrays: Sequence[Any]) -> Any:
        outputs = self._run(memory, *arrays)
        return sum((_squared_distance(leaf, target) for leaf, target in zip(outputs, targets, strict=True)), 0.0)

    def _run(self, memory: Memory | None, *arrays: Any) -> list[Any]:
        carry, ys = self._arguments.run(arrays, memory=memory)
        return [leaf for leaf in jax.tree.leaves(carry if self._last_only else (carry, ys)) if is_float(leaf)]

    def _with(self, differentiated: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """The arrays, with the differentiated ones replaced."""
        changed = dict(zip(self._differentiated, differentiated, strict=True))
        return [changed.get(place, leaf) for place, leaf in enumerate(arrays)]


def _squared_distance(leaf: Any, target: Any) -> Any:
    """As users write it. Of `abs(x) ** 2` XLA writes the cotangent over the output, and of `x ** 2` it may not."""
    difference = leaf - target
    return jnp.sum(jnp.abs(difference) ** 2 if jnp.iscomplexobj(difference) else difference**2)
