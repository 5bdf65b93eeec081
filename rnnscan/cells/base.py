"""What every cell of the library is: a configuration that can be compared, hashed, pickled and shown."""

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from rnnscan import _pytrees as pytrees
from rnnscan._zeros import zeros_sharded_like
from rnnscan.cells import checks
from rnnscan.cells.activations import check_activation


@dataclass(frozen=True, repr=False)
class Cell:
    """The base of cells: sizes, dtypes, and the checks of what a cell is given.

    A subclass says the shapes of its parameters (`_shapes`) and of its carry (`_carry_shapes`), how its parameters
    start (`_make`), and what a step computes (`__call__`, which begins with `_enter`).

    Args:
        hidden_size: H, the number of units.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. Whatever the carry's dtype is, each step returns it.
    """

    carry_names: ClassVar[tuple[str, ...]]
    names: ClassVar[tuple[str, ...]]
    # The parts of the carry that are complex numbers.
    complex_parts: ClassVar[frozenset[str]] = frozenset()
    # The part of the new carry that y is, or None where y is something else: what changes that part changes y too.
    # A property where it depends on the configuration.
    output_part: ClassVar[Any] = 0
    # Options that are true or false and decide which parameters there are: the likely cause where some do not fit.
    parameter_options: ClassVar[tuple[str, ...]] = ()
    # Whether a step takes `recurrent_mask`, which multiplies the first part of the carry where its product reads it.
    takes_recurrent_mask: ClassVar[bool] = False
    # The axes of x that are not the batch's: the features, and spatial ones where a cell has them.
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
            # One spelling, so that cells given jnp.bfloat16 and "bfloat16" are equal. A type, because
            # np.dtype("float64") equals None, and a cell in float64 would equal one without a dtype.
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

    def init(self, key: Array, input_size: int) -> dict[str, Array]:
        """Make parameters.

        Args:
            key: a PRNG key.
            input_size: D, the size of the input's last axis.

        Returns:
            A dictionary of arrays of `param_dtype`; the cell's docstring gives their names and shapes.

        Raises:
            ValueError: if `input_size` is not at least 1.
        """
        checks.check_size(self._title, "input_size", input_size)
        return self._make(key, input_size)

    def initial_carry(self, x: Num[Array, "*batch features"]) -> tuple[Array, ...]:
        """The carry of zeros, typed like one step's input.

        Args:
            x: one step's input `(N, D)`; its values do not matter.

        Returns:
            A tuple of arrays `(N, ...)`, in the order of `carry_names`.
        """
        dtype = self.carry_dtype
        if dtype is None:
            dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else self.param_dtype
        return tuple(
            zeros_sharded_like(x, shape, _complex(dtype) if name in self.complex_parts else dtype)
            for name, shape in zip(self.carry_names, self._carry_shapes(x), strict=True)
        )

    @property
    def _title(self) -> str:
        """The name under which messages speak of the cell."""
        return type(self).__name__

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        """New parameters."""
        raise NotImplementedError

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        """The shapes of the parameters; "D" stands for the size of the input, which they decide."""
        raise NotImplementedError

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        """The shapes of the parts of the carry, for one step's input."""
        return ((*x.shape[:-1], self.hidden_size),) * len(self.carry_names)

    def _enter(
        self, params: dict[str, Array], carry: Any, x: Array, recurrent_mask: Array | None = None
    ) -> tuple[dict[str, Array], tuple[Array, ...], Array]:
        """Check what the cell was given, and cast it to the dtype of the computation.

        The mask multiplies the first part of the carry in what is returned, which recurrent products read; what is
        handed on unchanged is taken from the carry itself.
        """
        input_size = self._check_params(params)
        checks.check_input(self._title, ("N", *self.input_axes, input_size), x)
        checks.check_carry(self._title, self.carry_names, self._carry_shapes(x), carry, x, self.complex_parts)
        dtype = jnp.result_type(x, *jax.tree.leaves(params)) if self.dtype is None else self.dtype
        # Cast in the step, and not once before the loop: the gradients of all steps are then summed in param_dtype.
        cast_params = {name: _cast(leaf, dtype) for name, leaf in params.items()}
        first, *rest = (_cast(leaf, dtype) for leaf in carry)
        if recurrent_mask is not None:
            first = first * recurrent_mask.astype(dtype)
        return cast_params, (first, *rest), _cast(x, dtype)

    def _check_params(self, params: Any) -> int:
        return checks.check_params(
            self._title, f"{self.hidden_size} units", self._shapes(), params, likely_cause=self._likely_cause
        )

    def _likely_cause(self, params: Any) -> str:
        for option in self.parameter_options:
            mine = getattr(self, option)
            changed: Any = {option: not mine}
            twin = replace(self, **changed)
            if checks.fitting_input_size(twin._shapes(), params) is not None:
                return f"They were made with {option}={not mine}, and the cell has {mine}."
        return "They are those of a cell of another kind or size."


def _cast(leaf: Array, dtype: Any) -> Array:
    return leaf.astype(_complex(dtype) if jnp.iscomplexobj(leaf) else dtype)


def _complex(dtype: Any) -> Any:
    """The complex dtype whose parts are of at least a floating dtype."""
    return jnp.promote_types(dtype, jnp.complex64)


def show_options(configuration: Any) -> str:
    """The repr of a dataclass, without the options that have their defaults."""
    shown = []
    for field in fields(configuration):
        value = getattr(configuration, field.name)
        if value != field.default:
            shown.append(f"{field.name}={getattr(value, '__name__', repr(value))}")
    return f"{type(configuration).__name__}({', '.join(shown)})"
