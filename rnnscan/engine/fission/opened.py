"""The equations of names and of `jax.checkpoint` under `JAX_REMAT3=1`, as they are without it.

There JAX keeps what they do in an object among their parameters, and has no public way to read it. That object's key is
the one private name here. `make test-remat` fails without it.
"""

from dataclasses import dataclass
from typing import Any

from jax.ad_checkpoint import checkpoint_name


_OBJECT = "_prim"


@dataclass(frozen=True)
class _Name:
    """A primitive that gives a value a name, as an equation of a `Program` calls it."""

    name: str = "name"
    multiple_results: bool = False

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters of `bind`."""
        return params

    def bind(self, operand: Any, *, name: str) -> Any:
        """The operand, with its name."""
        return checkpoint_name(operand, name)


_NAME = _Name()


def opened(eqn: Any) -> tuple[Any, dict[str, Any]]:
    """The primitive and the parameters of an equation of a jaxpr. A name's are those of JAX's older equation of it."""
    params = getattr(eqn.params.get(_OBJECT), "params", {})
    return (_NAME, params) if params.keys() == {"name"} else (eqn.primitive, eqn.params)


def checkpointed(eqn: Any) -> Any:
    """The body of a `jax.checkpoint` in such an object; None for other equations."""
    params = getattr(eqn.params.get(_OBJECT), "params", {})
    return params.get("jaxpr") if "policy" in params else None
