"""The base of nets, and the options of their calls."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan._checks import check_leaves
from rnnscan._util import step_wrappers
from rnnscan._util.arguments import is_typed_array
from rnnscan._util.messages import describe, describe_tree, is_array_like, listing, nearest
from rnnscan._util.step_wrappers import Padding
from rnnscan.memory import Memory, MemoryBudget, without_training
from rnnscan.nets.axes import NoArgument, as_sequence, check_positional, check_step
from rnnscan.nets.pieces import check_runs_in_pieces
from rnnscan.newton import Newton, NewtonInNet
from rnnscan.planning.choose import fit


class Net:
    """The base class of nets.

    A net has `init(key, input_size)`, `initial_carry(xs)`, `names` and `output_size`, and is called as
    `net(params, xs, *, carry=None, key=None, ...) -> (carry, ys)`; the options are those of `Layer`.
    """

    @property
    def input_axes(self) -> tuple[Any, ...] | None:
        """The spatial axes of one step's input, besides batch and features; None if the cell does not say."""
        return None

    @property
    def needs_whole(self) -> str | None:
        """Why the net needs the whole sequence, in one sentence; None if it runs in pieces."""
        return None

    @property
    def drops_between(self) -> bool:
        """Whether the net drops outputs between its scans in training, besides what its cells do."""
        return False

    @property
    def scan_names(self) -> tuple[str, ...]:
        """The names of the net's scans, in order, such as `"net_0"` and `"net_1.forward"`."""
        raise NotImplementedError

    @property
    def runs_in_pieces(self) -> bool:
        """Whether pieces of a sequence, with the carry handed on, equal the whole."""
        return self.needs_whole is None

    def step(
        self, params: Any, x: Any, *positional: NoArgument, carry: Any = None, reset: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        """Run one step: the net over a sequence of one.

        Args:
            params: the parameters that `init` made.
            x: one step's input, `(N, D)`, or `(D,)` for one row.
            positional: nothing, because the carry is passed by name.
            carry: the carry to start from; None: zeros.
            reset: `(N,)` booleans, true where an episode or document begins at this step.
            options: `key`, `first_step` (the number of this step), `reset_to`, `memory`, `engine` and `parallel`, as in
                a call.

        Returns:
            The new carry, and the output `(N, P)`.

        Raises:
            TypeError: if the carry is given by its place.
            ValueError: if `x` has a time axis, or the net needs the whole sequence, as a bidirectional one does.
            TypeError, ValueError: as a call of the net does.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> net = rs.chain(rs.layer(rs.cells.LSTM(4)), rs.layer(rs.cells.GRU(5)))
            >>> params = net.init(jax.random.key(0), input_size=3)
            >>> act = jax.jit(net.step)
            >>> carry, y = act(params, jnp.ones((2, 3)))
            >>> carry, y = act(params, jnp.ones((2, 3)), carry=carry)
            >>> y.shape
            (2, 5)
        """
        net: Any = self
        check_positional("step", positional, call="net.step(params, x, carry=carry)")
        check_runs_in_pieces("step", self)
        x = jax.tree.map(jnp.asarray, x)
        check_step(self, x, carry)
        refused = options.keys() & {"seq_lengths", "mask", "padding", "truncate"}
        if refused:
            raise TypeError(
                f"step: one step takes no padding or truncation; got {listing(sorted(refused))}. "
                "Select rows of the carry with jnp.where."
            )
        xs = jax.tree.map(lambda leaf: leaf[None], x)
        if reset is not None:
            options["reset"] = jnp.asarray(reset)[None]
        carry, ys = net(params, xs, carry=net.initial_carry(xs) if carry is None else carry, **options)
        return carry, jax.tree.map(lambda leaf: leaf[0], ys)


@dataclass(frozen=True)
class Options:
    """The options of a call of a net, as in `Layer`."""

    first_step: Any = 0
    seq_lengths: Integer[Array, "*batch"] | None = None
    mask: Bool[Array, " time *batch"] | None = None
    reset: Bool[Array, " time *batch"] | None = None
    reset_to: Any = None
    padding: Padding = "zero"
    truncate: int | None = None
    memory: Memory | MemoryBudget | None = field(default_factory=Memory)
    engine: str = "auto"
    parallel: Newton | None = None

    @classmethod
    def of_call(cls, net: str, given: dict[str, Any]) -> "Options":
        """The options of a call.

        Args:
            net: the net's function, for messages.
            given: the options by name.

        Raises:
            TypeError: if there is no such option.
        """
        known = [each.name for each in fields(cls)]
        reject_unknown(net, [name for name in given if name not in known])
        return cls(**given)

    def of_part(self, number: int, names: tuple[str, ...]) -> "Options":
        """The options for one sub-net: its own `reset_to`, and of the memory choice the names that it defines."""
        memory, reset_to = self.memory, part_of(self.reset_to, number)
        parallel = NewtonInNet(**vars(self.parallel)) if isinstance(self.parallel, Newton) else self.parallel
        if not isinstance(memory, Memory):
            return replace(self, reset_to=reset_to, parallel=parallel)
        recompute: Any = memory.recompute
        if recompute != "all":
            recompute = tuple(name for name in recompute if name in names)
        offload = tuple(name for name in memory.offload if name in names)
        memory = replace(memory, recompute=recompute, offload=offload)
        return replace(self, reset_to=reset_to, memory=memory, parallel=parallel)

    def planned(self, net: Net, params: Any, xs: Any, carry: Any, key: Any) -> "Options":
        """The options with a planned memory choice in place of a budget for the whole net."""
        memory = without_training(self.memory)
        if not isinstance(memory, MemoryBudget):
            return replace(self, memory=memory)
        options = {**vars(self), "key": key}
        return replace(self, memory=fit(options.pop("memory"), run_net, net, params, carry, xs, options))

    def as_sequence(self, name: str, net: Net, xs: Any, carry: Any) -> Any:
        """The inputs as arrays, if they have a time axis and cannot be mistaken for one step or one row."""
        return as_sequence(name, net, xs, carry, (self.seq_lengths, 0), (self.mask, 1), (self.reset, 1))

    def check_names(self, net: str, names: tuple[str, ...]) -> None:
        """Reject names that no sub-net defines; each sub-net receives only its own."""
        if not isinstance(self.memory, Memory):
            return
        asked = () if self.memory.recompute == "all" else self.memory.recompute
        for name in (*asked, *self.memory.offload):
            if name not in names:
                raise ValueError(
                    f"{net}: a memory choice must use names of the net; got {name!r}, and the net has {listing(names)}."
                    f"{nearest(name, names)}"
                )


# What calls of Flax, torch and JAX call an option.
_CALLED_ELSEWHERE = {
    **dict.fromkeys(("initial_carry", "initial_state", "init", "state", "states", "hx"), "carry"),
    **dict.fromkeys(("rng", "rngs", "init_key"), "key"),
    **dict.fromkeys(("length", "sequence_lengths"), "seq_lengths"),
}


def reject_unknown(net: str, names: Iterable[str]) -> None:
    """Reject options that a net's call does not have.

    Args:
        net: the net's function, for messages.
        names: the names of these options.

    Raises:
        TypeError: if there are any.
    """
    known = ("carry", "key", *(each.name for each in fields(Options)))
    for name in names:
        elsewhere = _CALLED_ELSEWHERE.get(name)
        hint = nearest(name, known) if elsewhere is None else f" Did you mean {elsewhere!r}?"
        raise TypeError(f"{net}: the options of a net's call must be among {listing(known)}; got {name!r}.{hint}")


def run_net(net: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """Run a net on arguments in the order of `scan`."""
    return net(params, xs, carry=carry, **options)


def one_step(xs: Any) -> Any:
    """Zeros like one step's input, also for a sequence without steps."""
    if not all(is_typed_array(leaf) and len(leaf.shape) for leaf in jax.tree.leaves(xs)):
        raise TypeError(
            "initial_carry: a net takes a sequence (T, N, D), arrays or jax.ShapeDtypeStruct, of which only the types "
            f"matter; got {describe_tree(xs)}. Write net.initial_carry(xs)."
        )
    return jax.tree.map(step_wrappers.one_step, xs)


def part_of(tree: Any, number: int) -> Any:
    """The carry of one sub-net, or None."""
    return None if tree is None else tree[number]


def check_parts(net: str, parts: tuple[str, ...], params: Any) -> None:
    """Reject parameters without one entry for each sub-net."""
    if not isinstance(params, dict) or sorted(params) != sorted(parts):
        got = listing(params) if isinstance(params, dict) else describe(params)
        raise ValueError(
            f"{net}: the parameters must be a dictionary with the entries {listing(parts)}; got {got}. "
            "Make them with net.init(key, input_size)."
        )


def check_carries(net: str, count: int, like: Callable[[], Any], *, carry: Any, reset_to: Any) -> None:
    """Reject carries without one entry for each sub-net.

    Args:
        net: the net's function, for messages.
        count: the number of sub-nets.
        like: makes the net's own carry.
        carry: the initial carry, or None.
        reset_to: the carry after a reset, or None.

    Raises:
        TypeError: if one is no such tuple, or has leaves that are no arrays.
    """
    for argument, root, tree in (("the carry", "carry", carry), ("`reset_to`", "reset_to", reset_to)):
        if tree is None:
            continue
        check_leaves(tree, root, function=net)
        fits = isinstance(tree, tuple) and len(tree) == count
        if fits and any(map(is_array_like, tree)):  # The carry of one cell, or that of cells without tuples.
            structures: list[Any] = [jax.tree.structure(jax.eval_shape(like)), jax.tree.structure(tree)]
            fits = structures[0] == structures[1]
        if not fits:
            raise TypeError(
                f"{net}: {argument} must be a tuple with one carry for each of its {count} nets, in their order: "
                f"{describe_tree(jax.eval_shape(like))}; got {describe_tree(tree)}. Start from net.initial_carry(xs)."
            )
