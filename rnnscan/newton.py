"""Newton: solve nonlinear recurrences over all steps in parallel."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from rnnscan._util.messages import is_count


Jacobian = Literal["auto", "diagonal"]


@dataclass(frozen=True, repr=False)
class Newton:
    """Solve nonlinear recurrences over many steps in parallel by Newton's method, for `parallel` of `scan`.

    The states of a chunk of steps are the unknowns of one system `h_t = f_t(h_{t-1})`. An iteration linearizes it and
    runs the linear recurrence that results as an associative scan,

        d_t = J_t d_{t-1} + f_t(h_{t-1}) - h_t,    h_t <- h_t + d_t,    J_t = df_t / dh_{t-1}.

    After k iterations the first k steps are exact. A chunk that does not converge runs step by step. Linear loops need
    no iterations: they are one associative scan.

    Args:
        tolerance: a chunk has converged when no correction `d_t` is larger than this part of the largest state so far,
            element by element. The correction is applied, so the error is smaller. None: rounding, the machine epsilon
            of the carry's dtype to the power of 3/4: 1.8e-12 for float64, 6.4e-6 for float32, 0.026 for bfloat16.
        max_iterations: the most iterations for a chunk.
        chunk: the steps to solve together; None: `Memory(chunk=...)`, or 512.
        jacobian: "auto" computes the exact Jacobian of loops whose elements do not mix: one number for each element,
            or a small matrix if up to four leaves of the carry depend on each other. "diagonal" solves loops with
            recurrent matrices too, with the diagonal of their Jacobian. That takes more iterations, about 15 to 20 for
            a new GRU or LSTM, so raise `max_iterations`. Convergence is then 16 machine epsilons.
        damping: the strength of ELK's trust region, a Kalman filter that holds corrections back where steps expand
            them, in proportion to the residual. Try 0.01 for cells whose iterations overflow. Gated cells, such as GRU
            and LSTM, take no fewer iterations with it. 0: Newton's method.

    Raises:
        TypeError: if a field has a wrong type.
        ValueError: if a field has a wrong value.

    Example:
        >>> import rnnscan as rs
        >>> rs.Newton(max_iterations=8)
        Newton(max_iterations=8)

    Source: Lim et al. 2024, "Parallelizing non-linear sequential models over the sequence length" (DEER); Danieli et
    al. 2025, "ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large Language Models". `jacobian="diagonal"`
    is quasi-DEER and `damping` is ELK, Gonzalez et al. 2024, "Towards Scalable and Stable Parallelization of Nonlinear
    RNNs".
    """

    tolerance: float | None = None
    max_iterations: int = 16
    chunk: int | None = None
    jacobian: Jacobian = "auto"
    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            _check_number("tolerance", self.tolerance)
            if not 0 < self.tolerance < 1:
                raise ValueError(
                    f"Newton: `tolerance` must be above 0 and below 1, a part of the states; got {self.tolerance!r}. "
                    "Leave it out for rounding."
                )
        if not is_count(self.max_iterations):
            raise ValueError(
                f"Newton: `max_iterations` must be a number of iterations of at least 1; got {self.max_iterations!r}."
            )
        if self.chunk is not None and not is_count(self.chunk):
            raise ValueError(f"Newton: `chunk` must be a number of steps of at least 1, or None; got {self.chunk!r}.")
        if self.jacobian not in get_args(Jacobian):
            raise ValueError(f"Newton: `jacobian` must be one of {get_args(Jacobian)}; got {self.jacobian!r}.")
        _check_number("damping", self.damping)
        if not 0 <= self.damping < 1:
            raise ValueError(
                f"Newton: `damping` must be at least 0 and below 1; got {self.damping!r}. 0 is Newton's method."
            )

    def __repr__(self) -> str:
        """The fields that differ from the default."""
        chosen = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        shown = ", ".join(f"{name}={value!r}" for name, value, default in chosen if value != default)
        return f"Newton({shown})"


class NewtonInNet(Newton):
    """The `Newton` of a net's parts. A part without a loop is allowed."""


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(f"Newton: `{name}` must be a Python number; got {value!r}. It is fixed while tracing.")
