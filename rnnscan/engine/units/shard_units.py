"""shard_units(): a cell and its parameters, with units sharded over a mesh."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import type_of_step
from rnnscan._util.varying import in_mesh
from rnnscan.engine.units.blocks import BlockedRun, block_sizes, in_blocks, weights
from rnnscan.engine.units.mesh import UnitMesh, unit_mesh
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.ir.trace import Inliner
from rnnscan.naming import StepInfo, name, trace_step
from rnnscan.protocols import Cell


def shard_units(cell: Cell, params: Any, carry: Any, xs: Any) -> tuple[Cell, Any, Any]:
    """Shard the units of a cell over the mesh of its arguments, if that has an axis for them.

    Parameters are sharded here, once for all steps: fused kernels `(D, gates H)` as `(D, gates, H)`, with H sharded.
    The features of the inputs are gathered. The carry follows: XLA shards it as the products that it is made of.

    Args:
        cell: the cell.
        params: its parameters.
        carry: the initial carry.
        xs: the inputs.

    Returns:
        A cell, its parameters and its inputs. Without a mesh these are the arguments.
    """
    mesh = unit_mesh(jax.tree.leaves((params, carry, xs)))
    if mesh is None:
        return cell, params, xs
    try:
        traced = _Traced.of(cell, params, carry, jax.tree.map(type_of_step, xs))
    except Exception:  # `prepare` traces the cell again, and explains the error.
        return cell, params, xs
    if traced.hides_names:
        return cell, params, xs
    sizes = traced.parameter_sizes(mesh)
    leaves, structure = jax.tree.flatten(params)
    sharded = [
        leaf if size is None else mesh.shard(leaf if size == leaf.shape[-1] else in_blocks(leaf, size))
        for leaf, size in zip(leaves, sizes, strict=True)
    ]
    unit_cell = UnitCell(cell, mesh, tuple(map(jnp.shape, leaves)), tuple(sizes))
    return unit_cell, jax.tree.unflatten(structure, sharded), jax.tree.map(mesh.gather_features, xs)


@dataclass(frozen=True, eq=False)
class UnitCell:
    """A cell for the parameters that `shard_units` returns.

    Attributes:
        cell: the cell.
        mesh: the mesh.
        shapes: the shapes of the parameters of `cell`.
        sizes: the length of the blocks of each parameter; None: it is as `cell` takes it.
    """

    cell: Any
    mesh: UnitMesh
    shapes: tuple[tuple[Any, ...], ...]
    sizes: tuple[int | None, ...]

    def __getattr__(self, attribute: str) -> Any:
        # Such as `initial_carry`, if the cell has it.
        return getattr(object.__getattribute__(self, "cell"), attribute)

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step of the cell."""
        leaves, structure = jax.tree.flatten(params)
        types = [
            leaf
            if size is None
            else in_mesh(jax.eval_shape(partial(jnp.reshape, shape=shape), leaf), jax.typeof(leaf), PartitionSpec())
            for leaf, shape, size in zip(leaves, self.shapes, self.sizes, strict=True)
        ]
        return _Traced.of(self.cell, jax.tree.unflatten(structure, types), carry, x).run(self, params, carry, x)


@dataclass(frozen=True, eq=False)
class _Traced:
    """One step of a cell, traced.

    Attributes:
        info: the trace.
        inliner: its equations, and the labelled values.
        params: the parameters.
        inputs: the leaves of carry and input.
        constants: the arrays that the cell closes over.
        outputs: the leaves of the new carry and y.
    """

    info: StepInfo
    inliner: Inliner
    params: Sequence[Value]
    inputs: Sequence[Value]
    constants: Sequence[Value]
    outputs: Sequence[Atom]

    @staticmethod
    def of(cell: Any, params: Any, carry: Any, x: Any) -> "_Traced":
        step = named_after(lambda arguments, x: cell(arguments[0], arguments[1], x), cell)
        info = trace_step(step, (params, carry), x)
        jaxpr, inliner = info.traced.jaxpr, Inliner()
        constants, inputs = ([Value(var.aval) for var in group] for group in (jaxpr.constvars, jaxpr.invars))
        outputs = inliner.inline(jaxpr, constants, inputs)
        count = len(jax.tree.leaves(params))
        return _Traced(info, inliner, inputs[:count], inputs[count:], constants, outputs)

    @property
    def hides_names(self) -> bool:
        """Whether a name is inside a branch or a loop of the cell, which cannot be labelled from outside."""
        return len(self.inliner.marked) != len(self.info.names.labels)

    @property
    def equations(self) -> list[Equation]:
        wanted = [*self.outputs, *self.inliner.marked.values()]
        return needed(self.inliner.equations, wanted, with_effects=True)

    def parameter_sizes(self, mesh: UnitMesh) -> list[int | None]:
        """The length of the blocks of each parameter whose units are sharded; None for others."""
        sizes, of_units = self._sizes(mesh), weights(self.equations, self.params)
        return [
            sizes[value] if value in of_units and value in sizes and not sizes[value] % mesh.devices else None
            for value in self.params
        ]

    def _sizes(self, mesh: UnitMesh) -> dict[Value, int]:
        sizes = block_sizes(self.equations, self.params, self.outputs)
        return {value: size if size % mesh.devices == 0 else value.shape[-1] for value, size in sizes.items()}

    def run(self, cell: UnitCell, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        labels: dict[Value, list[str]] = {}
        for position, atom in sorted(self.inliner.marked.items()):
            if isinstance(atom, Value):
                labels.setdefault(atom, []).append(self.info.names.labels[position])

        def named(value: Value, array: Any) -> Any:
            for label in labels.get(value, ()):
                array = name(array, label)
            return array

        values = dict(zip(self.constants, self.info.traced.consts, strict=True))
        several = {value: size for value, size in self._sizes(cell.mesh).items() if size != value.shape[-1]}
        blocked = BlockedRun(several, cell.mesh.gather, named, values)
        for value, leaf, size in zip(self.params, jax.tree.leaves(params), cell.sizes, strict=True):
            if size is None or size == value.shape[-1]:
                values[value] = named(value, leaf)
            else:
                blocked.set_blocks(value, named(value, leaf))
        inputs = zip(self.inputs, jax.tree.leaves((carry, x)), strict=True)
        values.update((value, named(value, leaf)) for value, leaf in inputs)
        blocked.run(self.equations, self.params)
        results = [blocked.read(atom) for atom in self.outputs]
        return jax.tree.unflatten(jax.tree.structure((self.info.carry, self.info.y)), results)
