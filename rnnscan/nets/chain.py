"""Nets in sequence."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._checks import check_params
from rnnscan._util import pytrees
from rnnscan._util.arguments import check_key
from rnnscan._util.messages import in_words, is_count
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.compose.output import output_of
from rnnscan.compose.wrapper import check_rate
from rnnscan.nets.axes import NoArgument, check_positional
from rnnscan.nets.base import Net, Options, check_carries, check_parts, part_of
from rnnscan.nets.pipeline import check_layers, find_pipeline, is_stacked, run_pipelined, unstack_layers
from rnnscan.paths import part as path_part
from rnnscan.protocols import problem_of
from rnnscan.randomness import drop, warn_if_differentiated, warns_without_key


@dataclass(frozen=True)
class Chain(Net):
    """Nets in sequence. Made by `chain`."""

    nets: tuple[Any, ...]
    dropout: float = 0.0
    pipeline: str | None = None
    chunks: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nets' intermediates; a name applies to all nets."""
        return tuple(dict.fromkeys(name for net in self.nets for name in net.names))

    @property
    def input_axes(self) -> tuple[Any, ...] | None:
        """The spatial axes of one step's input: the first net's."""
        return self.nets[0].input_axes

    @property
    def needs_whole(self) -> str | None:
        """Why the chain does not run in pieces: the first such net's reason; None if all nets do."""
        return next((net.needs_whole for net in self.nets if net.needs_whole is not None), None)

    @property
    def output_size(self) -> int:
        """The size of the outputs' last axis: the last net's."""
        return self.nets[-1].output_size

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: `{"net_0": ..., "net_1": ...}`, the first net first."""
        check_key("chain", key)
        params = {}
        for part, net, net_key in zip(self._parts, self.nets, jax.random.split(key, len(self.nets)), strict=True):
            params[part] = net.init(net_key, input_size)
            input_size = net.output_size
        return params

    def initial_carry(self, xs: Any) -> tuple[Any, ...]:
        """A tuple of the nets' carries of zeros, for inputs `(T, N, ...)`."""
        carries = []
        for net in self.nets:
            carries.append(net.initial_carry(xs))
            xs = zeros_sharded_like(xs, (*xs.shape[:-1], net.output_size))
        return tuple(carries)

    def __call__(
        self,
        params: Any,
        xs: Any,
        *positional: NoArgument,
        carry: Any = None,
        key: Array | None = None,
        **options: Any,
    ) -> tuple[tuple[Any, ...], Any]:
        """Run the nets in sequence, each over the outputs of the one before.

        Args:
            params: the parameters that `init` made; of a pipeline also those of `rs.sharding.stack_layers`.
            xs: the inputs, time-major, `(T, N, D)`.
            positional: nothing, because the carry is passed by name.
            carry: a tuple of the initial carries; None: zeros.
            key: a PRNG key for random choices: training; each net derives its own. None: evaluation.
            options: as in `Layer`.

        Returns:
            A tuple of the nets' last carries, and the outputs of the last net. If an earlier net outputs a tuple, as an
            attention decoder does, the next net takes its first value and the others are dropped.

        Raises:
            TypeError: if the carry is given by its place, or there is no such option.
            TypeError, ValueError: as `scan` does.
        """
        check_positional("chain", positional)
        settings = Options.of_call("chain", options)
        stacked = self.pipeline is not None and is_stacked(params, len(self.nets))
        check_parts("chain", self._parts, dict.fromkeys(self._parts) if stacked else params)
        check_carries("chain", len(self.nets), partial(self.initial_carry, xs), carry=carry, reset_to=settings.reset_to)
        check_params(params, function="chain")
        settings.check_names("chain", self.names)
        xs = settings.as_sequence("chain", self, xs, carry)
        settings = settings.planned(self, params, xs, carry, key)
        mesh = None if self.pipeline is None else find_pipeline(self.pipeline, len(self.nets), (params, xs, carry))
        if mesh is not None:
            return self._run_pipelined(mesh, params, xs, carry, key, settings)
        if stacked:
            params = unstack_layers(params)
        carries = []
        for number, (part, net) in enumerate(zip(self._parts, self.nets, strict=True)):
            net_key = None if key is None else jax.random.fold_in(key, 2 * number)
            of_part = vars(settings.of_part(number, net.names))
            with path_part(part):
                new_carry, xs = net(params[part], xs, carry=part_of(carry, number), key=net_key, **of_part)
            carries.append(new_carry)
            if number + 1 < len(self.nets):
                xs = output_of(xs)
                if key is not None and self.dropout:
                    xs = self._drop(jax.random.fold_in(key, 2 * number + 1), settings.first_step, xs)
        results: tuple[tuple[Any, ...], Any] = (tuple(carries), xs)
        if key is None and self.dropout and warns_without_key():
            results = warn_if_differentiated(results, "chain", f"a chain with dropout={self.dropout}")
        return results

    def _run_pipelined(
        self, mesh: Any, params: Any, xs: Any, carry: Any, key: Any, settings: Options
    ) -> tuple[tuple[Any, ...], Any]:
        if key is not None:
            raise ValueError(
                "chain: a pipeline makes no random choices; got a key. Leave out `key`, or leave out `pipeline`."
            )
        first, axis = self.nets[0], str(self.pipeline)
        carry = self.initial_carry(xs) if carry is None else carry
        return run_pipelined(first, mesh, axis, self.chunks, params, xs, carry, settings)

    def _drop(self, key: Array, first_step: Any, ys: Array) -> Array:
        def drop_step(index: Array, y: Array) -> Array:
            return drop(
                y, jax.random.bernoulli(jax.random.fold_in(key, index), 1 - self.dropout, y.shape), self.dropout
            )

        # The backward pass draws the mask again instead of keeping it.
        steps = first_step + jnp.arange(ys.shape[0])
        return jax.checkpoint(jax.vmap(drop_step))(steps, ys)

    @property
    def drops_between(self) -> bool:
        """Whether the chain, or one within it, has dropout between its nets."""
        return self.dropout > 0 or any(net.drops_between for net in self.nets)

    @property
    def scan_names(self) -> tuple[str, ...]:
        """The names of the chain's scans, in order."""
        return tuple(
            f"{part}.{inner}" if inner else part
            for part, net in zip(self._parts, self.nets, strict=True)
            for inner in net.scan_names
        )

    @property
    def _parts(self) -> tuple[str, ...]:
        return tuple(f"net_{number}" for number in range(len(self.nets)))


pytrees.register(Chain, "nets")


def chain(*nets: Any, dropout: float = 0.0, pipeline: str | None = None, chunks: int | None = None) -> Chain:
    """Chain nets: the outputs of each are the inputs of the next.

    Unlike the layers of a `stack`, each net runs over the whole sequence before the next begins. So a bidirectional net
    can feed another net.

    Args:
        nets: the nets in order, each made by `layer`, `bidirectional` or `chain`.
        dropout: the dropout rate in training of the outputs of every net but the last.
        pipeline: an axis of the mesh with one device for each net: each device runs one net, on chunks of steps, while
            the next device runs the chunk before (docs/sharding.md). The nets must be equal, of one direction, with as
            many features as outputs. Results are equal to rounding. None: every device runs all nets.
        chunks: the number of chunks of a pipeline, which divides the number of steps; None: up to 4 for each net.

    Returns:
        A net. Its carry is the tuple of the nets' carries, its parameters are `{"net_0": ..., "net_1": ...}`.

    Raises:
        ValueError: if the list of nets is empty, `dropout` is not a probability below 1, or the nets do not make a
            pipeline; in a call, if no mesh has the axis `pipeline`, or an option is not for pipelines.
        TypeError: if an argument is not a net, such as a cell.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> net = rs.chain(rs.bidirectional(rs.cells.LSTM(4)), rs.layer(rs.cells.GRU(5)))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> carry, ys = net(params, jnp.ones((6, 2, 3)))
        >>> ys.shape
        (6, 2, 5)
    """
    if not nets:
        raise ValueError("chain: there must be at least one net; got none. Pass chain(net, net).")
    check_rate("chain", "dropout", dropout)
    for net in nets:
        if not isinstance(net, Net):
            got = problem_of(net) or f"{in_words(net)}. Make a net of a cell with layer(cell)."
            raise TypeError(f"chain: every argument must be a net; got {got}")
    if pipeline is not None:
        check_layers(nets, dropout)
    if chunks is not None and (pipeline is None or not is_count(chunks, least=1)):
        raise ValueError(
            f"chain: `chunks` must be the number of chunks of a pipeline, at least 1; got {chunks!r} with "
            f"pipeline={pipeline!r}. Set both, or leave it out."
        )
    return Chain(nets, dropout, pipeline, chunks)
