"""The base of all cells of the library: a configuration that can be compared, hashed, pickled and printed."""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from rnnscan._util import pytrees
from rnnscan._util.arguments import check_key, check_step_input
from rnnscan._util.dtypes import promoted
from rnnscan._util.ranks import over_rows
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.cells import checks
from rnnscan.cells.activations import check_activation


Params: TypeAlias = dict[str, Array]
Carry: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True, repr=False)
class Cell:
    """The base of cells: sizes, dtypes and checks.

    A subclass defines the shapes of its parameters (`_shapes`) and of its carry (`_carry_shapes`), makes its parameters
    (`_make`), and computes a step (`__call__`, which begins with `_enter`).

    Args:
        hidden_size: H, the number of units.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Each step keeps the dtype of its carry.
    """

    # The parts of the carry and the named values. Properties if they depend on the options.
    carry_names: ClassVar[Any]
    names: ClassVar[Any]
    # The parts of the carry that are complex, and those that are boolean; the others are real.
    complex_parts: ClassVar[frozenset[str]] = frozenset()
    boolean_parts: ClassVar[frozenset[str]] = frozenset()
    # The index of the part of the new carry that equals y, or None. Wrappers that change that part also change y.
    # A property if it depends on the options.
    output_part: ClassVar[Any] = 0
    # The boolean options that determine the parameters: the likely cause if parameters do not fit.
    parameter_options: ClassVar[tuple[str, ...]] = ()
    # The same for options that are one of several words.
    parameter_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # Whether a step takes `recurrent_mask`, which multiplies the first part of the carry in the recurrent product.
    takes_recurrent_mask: ClassVar[bool] = False
    # Whether unit i reads only feature i, so that D must be H. A property if it depends on the options.
    one_feature_per_unit: ClassVar[Any] = False
    # The spatial axes of x, between the batch and the features.
    input_axes: ClassVar[Any] = ()

    hidden_size: int
    _: KW_ONLY
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_dtype: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        pytrees.register(cls)

    def __post_init__(self) -> None:
        checks.check_size(self._title, "hidden_size", self.hidden_size)
        for field in ("dtype", "param_dtype", "carry_dtype"):
            # Normalized, so that cells with jnp.bfloat16 and "bfloat16" are equal. A type, because
            # np.dtype("float64") == None, so a cell in float64 would equal one without a dtype.
            dtype = checks.floating(self._title, field, getattr(self, field), optional=field != "param_dtype")
            object.__setattr__(self, field, dtype)
        for field in ("activation", "gate_activation"):
            if hasattr(self, field):
                check_activation(self._title, field, getattr(self, field))

    def __repr__(self) -> str:
        """The options that differ from their defaults."""
        return show_options(self)

    @property
    def output_size(self) -> int:
        """The size of y's last axis."""
        return self.hidden_size

    def init(self, key: Array, input_size: int) -> Params:
        """Make parameters.

        Args:
            key: a PRNG key.
            input_size: D, the size of the input's last axis.

        Returns:
            A dictionary of arrays of `param_dtype`. The cell's docstring lists their names and shapes.

        Raises:
            TypeError: if `key` is not a PRNG key.
            ValueError: if `input_size` is not at least 1, or does not fit `hidden_size`.
        """
        check_key(self._title, key)
        checks.check_size(self._title, "input_size", input_size)
        self._check_features(input_size)
        return self._make(key, input_size)

    def initial_carry(self, x: Num[Array, "*batch features"]) -> tuple[Array, ...]:
        """Make a carry of zeros, typed like one step's input.

        Args:
            x: one step's input `(N, D)`; its values do not matter.

        Returns:
            A tuple of arrays `(N, ...)`, in the order of `carry_names`.

        Raises:
            TypeError: if `x` is not an array or a type of one.
        """
        check_step_input(self._title, x)
        dtype = self.carry_dtype
        if dtype is None:
            dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else self.param_dtype
        return tuple(
            zeros_sharded_like(x, shape, self._part_dtype(name, dtype))
            for name, shape in zip(self.carry_names, self._carry_shapes(x), strict=True)
        )

    def _part_dtype(self, name: str, dtype: Any) -> Any:
        """The dtype of a part of the carry, whose real parts have `dtype`."""
        if name in self.boolean_parts:
            return jnp.bool_
        return _complex(dtype) if name in self.complex_parts else dtype

    @property
    def _title(self) -> str:
        """The name of the cell in messages."""
        return type(self).__name__

    def _make(self, key: Array, input_size: int) -> Params:
        """Make parameters."""
        raise NotImplementedError

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        """The shapes of the parameters, with "D" for the input size, which is read off the parameters."""
        raise NotImplementedError

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        """The shapes of the carry's parts, for one step's input."""
        return ((*x.shape[:-1], self.hidden_size),) * len(self.carry_names)

    def _enter(
        self, params: Params, carry: Any, x: Array, recurrent_mask: Array | None = None
    ) -> tuple[Params, Carry, Array]:
        """Check the arguments of a step, and cast them to the dtype of the computation.

        The mask multiplies the first part of the returned carry, which only recurrent products may read. Take a state
        that is passed on from the original carry.
        """
        input_size = self._check_params(params)
        checks.check_input(self._title, ("N", *self.input_axes, input_size), x)
        part_dtypes = [self._part_dtype(name, jnp.float32) for name in self.carry_names]
        checks.check_carry(self._title, self.carry_names, self._carry_shapes(x), carry, x, part_dtypes)
        dtype = jnp.result_type(x, *jax.tree.leaves(params)) if self.dtype is None else self.dtype
        # Cast inside the step, so that the gradients of all steps are summed in param_dtype.
        cast_params = {name: _cast(leaf, dtype) for name, leaf in params.items()}
        first, *rest = (_cast(leaf, dtype) for leaf in carry)
        if recurrent_mask is not None:
            first = first * over_rows(recurrent_mask.astype(dtype), first)
        return cast_params, (first, *rest), _cast(x.astype(dtype) if x.dtype == bool else x, dtype)

    def _check_params(self, params: Any) -> int:
        input_size = checks.check_params(
            self._title, f"{self.hidden_size} units", self._shapes(), params, likely_cause=self._likely_cause
        )
        self._check_features(input_size)
        return input_size

    def _check_features(self, input_size: int) -> None:
        if self.one_feature_per_unit:
            checks.check_one_feature_per_unit(self._title, self.hidden_size, input_size)

    def _likely_cause(self, params: Any) -> str:
        for option, other in self._other_options():
            changed: Any = {option: other}
            if checks.fitting_input_size(replace(self, **changed)._shapes(), params) is not None:
                return f"They were made with {option}={other!r}, and the cell has {getattr(self, option)!r}."
        return "They belong to a cell of another kind or size."

    def _other_options(self) -> Iterator[tuple[str, Any]]:
        """The options that determine the parameters, with each value that the cell does not have."""
        for option in self.parameter_options:
            yield option, not getattr(self, option)
        for option, choices in self.parameter_choices.items():
            yield from ((option, choice) for choice in choices if choice != getattr(self, option))


def _cast(leaf: Array, dtype: Any) -> Array:
    if leaf.dtype == bool:
        return leaf
    return leaf.astype(_complex(dtype) if jnp.iscomplexobj(leaf) else dtype)


def _complex(dtype: Any) -> Any:
    """The complex dtype with at least the precision of a floating dtype."""
    return promoted(jnp.dtype(dtype), jnp.dtype(jnp.complex64))


def show_options(configuration: Any) -> str:
    """The repr of a dataclass with the options that differ from their defaults, positional ones first."""
    shown = []
    for field in sorted(fields(configuration), key=lambda field: bool(field.kw_only)):
        value = getattr(configuration, field.name)
        if value != field.default:
            shown.append(f"{field.name}={getattr(value, '__name__', repr(value))}")
    return f"{type(configuration).__name__}({', '.join(shown)})"
