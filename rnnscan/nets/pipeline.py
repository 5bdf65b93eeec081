"""A chain whose layers lie on different devices: a wavefront over chunks of steps.

While layer l runs chunk k, layer l + 1 runs chunk k - 1, on the next device. So K chunks pass through L layers in
K + L - 1 rounds. After each round every device sends its outputs to the next one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rnnscan._util.messages import listing
from rnnscan._util.step_wrappers import valid_steps
from rnnscan._util.varying import known_mesh, vary
from rnnscan.compose.output import output_of
from rnnscan.nets.base import Net, Options


# The entry of parameters that are stacked.
STACKED = "layers"

# At most so many chunks for each layer, if their number is not given: a fifth of the rounds of a device are idle.
_CHUNKS = 4


def find_pipeline(axis: str, layers: int, trees: Any) -> Any:
    """The mesh of a pipeline; None if its axis has one device, which runs the layers one after the other.

    Raises:
        ValueError: if no mesh has this axis, or the number of its devices is not that of the layers.
    """
    mesh = known_mesh(jax.tree.leaves(trees))
    if mesh is None or axis not in mesh.axis_names:
        has = "none" if mesh is None else f"axes {listing(mesh.axis_names)}"
        raise ValueError(
            f"chain: pipeline={axis!r} needs a mesh with this axis; got {has}. Call the net under jax.jit, on "
            "arrays on the mesh or under jax.set_mesh(mesh)."
        )
    devices = mesh.shape[axis]
    if devices not in (1, layers):
        raise ValueError(
            f"chain: the axis {axis!r} of the mesh must have one device for each of the {layers} layers; got "
            f"{devices}. Change the mesh, or chain as many layers; a layer may be a chain."
        )
    return None if devices == 1 else mesh


def check_layers(nets: Sequence[Net], dropout: float) -> None:
    """Check that the layers of a pipeline are equal and run forward."""
    for net in nets:
        if net.needs_whole is not None:
            raise ValueError(
                f"chain: every layer of a pipeline must run chunk by chunk; got {net}. {net.needs_whole} Use layers of "
                "one direction, or leave out `pipeline`."
            )
        if net != nets[0]:
            raise ValueError(
                f"chain: all devices of a pipeline run one program, so its layers must be equal; got {net} after "
                f"{nets[0]}. Chain other layers around the pipeline: chain(first, chain(..., pipeline=...))."
            )
    if dropout:
        raise ValueError(f"chain: a pipeline has no dropout; got {dropout}. Leave out `pipeline`, or set dropout=0.")


def run_pipelined(
    net: Any, mesh: Any, axis: str, chunks: int | None, params: Any, xs: Any, carry: Any, settings: Options
) -> tuple[tuple[Any, ...], Any]:
    """Run equal layers as a pipeline.

    Args:
        net: the layer.
        mesh: the mesh.
        axis: its axis, with one device for each layer.
        chunks: the number of chunks; None: chosen.
        params: the parameters, `{"net_0": ...}` or those of `stack_layers`.
        xs: the inputs `(T, N, D)`.
        carry: the initial carry of each layer.
        settings: the options.

    Returns:
        The last carries, and the outputs of the last layer.
    """
    _check(net, xs, settings)
    length, layers = xs.shape[0], len(carry)
    count = _count(length, layers, chunks)
    cut = lambda leaf: leaf.reshape(count, length // count, *leaf.shape[1:])  # noqa: E731
    mask = settings.mask if settings.seq_lengths is None else valid_steps(settings.seq_lengths, length)
    rows = {name: value for name, value in (("mask", mask), ("reset", settings.reset)) if value is not None}
    params = params if is_stacked(params, layers) else stack_layers(params)
    stacked = params[STACKED], jax.tree.map(lambda *leaves: jnp.stack(leaves), *carry)
    of_layer = settings.of_part(0, net.names)
    options = {"memory": of_layer.memory, "engine": of_layer.engine, "parallel": of_layer.parallel}
    by_layer, whole = PartitionSpec(axis), PartitionSpec()
    rounds = jax.shard_map(
        partial(_rounds, net, axis, layers, options),
        mesh=mesh,
        in_specs=(by_layer, whole),
        out_specs=(by_layer, whole),
        axis_names={axis},
    )
    carries, ys = rounds(stacked, (cut(xs), jax.tree.map(cut, rows)))
    ys = jax.tree.map(lambda leaf: leaf.reshape(length, *leaf.shape[2:]), ys)
    return tuple(jax.tree.map(lambda leaf, layer=layer: leaf[layer], carries) for layer in range(layers)), ys


def _rounds(net: Any, axis: str, layers: int, options: dict[str, Any], stacked: Any, inputs: Any) -> tuple[Any, Any]:
    """All rounds of the layer of this device."""
    layer = lax.axis_index(axis)
    params, carry = jax.tree.map(lambda leaf: leaf[0], stacked)
    xs, rows = vary(inputs, frozenset({axis}))
    count = xs.shape[0]
    # A last round would send nothing on: layer 0 goes to 1, and so on.
    following = [(number, number + 1) for number in range(layers - 1)]

    def run(state: Any, number: Any) -> tuple[Any, Any]:
        carry, received = state
        chunk = number - layer
        at = jnp.clip(chunk, 0, count - 1)
        x = jnp.where(layer == 0, xs[at], received)
        new_carry, ys = net(params, x, carry=carry, **jax.tree.map(lambda leaf: leaf[at], rows), **options)
        # Before its first chunk and after its last one a device works on values that nobody reads.
        works = (chunk >= 0) & (chunk < count)
        carry = jax.tree.map(lambda new, old: jnp.where(works, new, old), new_carry, carry)
        return (carry, lax.ppermute(output_of(ys), axis, following)), ys

    start = carry, jnp.zeros_like(xs[0])
    (carry, _), ys = lax.scan(run, start, jnp.arange(count + layers - 1))
    is_last = layer == layers - 1
    of_last = jax.tree.map(lambda leaf: jnp.where(is_last, leaf[layers - 1 :], jnp.zeros_like(leaf[:count])), ys)
    return jax.tree.map(lambda leaf: leaf[None], carry), lax.psum(of_last, axis)


def stack_layers(params: Any) -> dict[str, Any]:
    """Stack the parameters of the layers of a pipeline, so that each device may hold only those of its layer.

    Args:
        params: those of `rs.chain(..., pipeline=...)`: `{"net_0": ..., "net_1": ...}`.

    Returns:
        `{"layers": ...}`, leaves `(layers, ...)`. The chain takes it in place of `params`. Shard the first axis of all
        leaves over the pipeline's axis of the mesh. Gradients and the state of an optimizer then lie there too.

    Raises:
        ValueError: if the layers have parameters of several shapes.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> net = rs.chain(*[rs.layer(rs.cells.GRU(4))] * 3, pipeline="layers")
        >>> params = stack_layers(net.init(jax.random.key(0), input_size=4))
        >>> params["layers"]["kernel"].shape
        (3, 4, 12)
    """
    layers = [params[f"net_{number}"] for number in range(len(params))]
    shapes = [jax.tree.map(jnp.shape, one) for one in layers]
    if any(one != shapes[0] for one in shapes):
        raise ValueError(
            "stack_layers: the parameters of all layers must have the same shapes, so the inputs of a pipeline have as "
            "many features as its outputs; got several shapes. Put a layer before the pipeline: chain(first, "
            "chain(..., pipeline=...))."
        )
    return {STACKED: jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}


def unstack_layers(params: Any) -> dict[str, Any]:
    """The inverse of `stack_layers`.

    Args:
        params: `{"layers": ...}`, leaves `(layers, ...)`.

    Returns:
        `{"net_0": ..., "net_1": ...}`.

    Example:
        >>> list(unstack_layers({"layers": {"bias": jnp.zeros((2, 4))}}))
        ['net_0', 'net_1']
    """
    count = len(jax.tree.leaves(params)[0])
    return {
        f"net_{number}": jax.tree.map(lambda leaf, number=number: leaf[number], params[STACKED])
        for number in range(count)
    }


def is_stacked(params: Any, layers: int) -> bool:
    """Whether parameters are those of `stack_layers`, for this number of layers."""
    if not isinstance(params, dict) or [*params] != [STACKED]:
        return False
    return all(jnp.shape(leaf)[:1] == (layers,) for leaf in jax.tree.leaves(params))


def _check(net: Any, xs: Any, settings: Options) -> None:
    if xs.shape[-1] != net.output_size:
        raise ValueError(
            f"chain: the layers of a pipeline must have inputs of {net.output_size} features, as many as outputs; got "
            f"{xs.shape[-1]} features. Put a layer before the pipeline: chain(first, chain(..., pipeline=...))."
        )
    refused = [
        name
        for name, value, default in (
            ("reset_to", settings.reset_to, None),
            ("truncate", settings.truncate, None),
            ("padding", settings.padding, "zero"),
        )
        if value != default
    ]
    if refused:
        raise ValueError(
            f"chain: a pipeline takes no {listing(refused)}; got {refused[0]}={getattr(settings, refused[0])!r}. Leave "
            "it out, or leave out `pipeline`."
        )


def _count(length: int, layers: int, chunks: int | None) -> int:
    """The number of chunks, which divides the number of steps."""
    if chunks is None:
        most = min(length, _CHUNKS * layers)
        return max((count for count in range(1, most + 1) if length % count == 0), default=1)
    if length % chunks:
        raise ValueError(
            f"chain: `chunks` must divide the number of steps; got {chunks} chunks for {length} steps. Choose a "
            "divisor, or pad `xs` and pass `seq_lengths`."
        )
    return chunks
