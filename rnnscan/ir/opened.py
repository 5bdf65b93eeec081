"""The equations of jaxprs, with what JAX or the engine keeps in objects among their parameters.

Names and `jax.checkpoint` are read under `JAX_REMAT3=1` as they are without it. There JAX keeps what they do in an
object among their parameters, and has no public way to read it. That object's key and types, and the older primitive of
names, are the private names here. `make test-newest` and `make test-remat` fail without them.
"""

import sys
from dataclasses import dataclass
from typing import Any

from rnnscan.ir.jaxprs import inner_jaxprs


@dataclass(frozen=True)
class _Name:
    """A primitive that gives a value a name, as an equation of a `Program` calls it.

    Policies read names in jaxprs. Evaluated, it is the identity: the equation that JAX would make lowers in JAX's own
    calls only.
    """

    name: str = "name"
    multiple_results: bool = False

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters of `bind`."""
        return params

    def bind(self, operand: Any, *, name: str) -> Any:
        """The operand."""
        return operand


_NAME = _Name()


def opened(eqn: Any) -> tuple[Any, dict[str, Any]]:
    """The primitive and the parameters of an equation of a jaxpr. A name's are those of JAX's older equation of it."""
    params = _params_of("CheckpointName", eqn)
    if params is not None:
        return _NAME, params
    return eqn.primitive, eqn.params


def checkpointed(eqn: Any) -> Any:
    """The body of a `jax.checkpoint` in such an object; None for other equations."""
    params = _params_of("RematTraced", eqn)
    return None if params is None else params["jaxpr"]


def is_high(equation: Any) -> bool:
    """Whether an equation of a `Program`, or one within it, is of JAX's high level: only JAX's own calls lower it.

    JAX asks the methods `is_high` of primitives and jaxprs, which its documentation does not list. Without them no
    equation is.
    """
    asked = getattr(equation.primitive, "is_high", None)
    if asked is not None and asked(*(atom.aval for atom in equation.inputs), **equation.params):
        return True
    return any(getattr(jaxpr, "is_high", False) for jaxpr in inner_jaxprs(equation.params))


def saves(eqn: Any, policy: Any) -> bool:
    """Whether a policy of `jax.checkpoint` saves the results of an equation.

    A policy returns a boolean, or an object whose type has no public name.
    """
    if policy is None:
        return False
    primitive, params = eqn.primitive, eqn.params
    named = _params_of("CheckpointName", eqn)
    if named is not None:
        # JAX asks policies about its older primitive of names, in the module of the new one.
        primitive, params = sys.modules[type(params["_prim"]).__module__].name_p, named
    answer = policy(primitive, *(var.aval for var in eqn.invars), **params)
    return answer if isinstance(answer, bool) else type(answer).__name__ in ("SaveableType", "Offloadable")


def policy_of(eqn: Any) -> Any:
    """The policy of a `jax.checkpoint`; None if it has none."""
    return (_params_of("RematTraced", eqn) or eqn.params).get("policy")


def _params_of(kind: str, eqn: Any) -> dict[str, Any] | None:
    """The parameters of an equation's object, if it is of this kind."""
    primitive = eqn.params.get("_prim")
    return primitive.params if type(primitive).__name__ == kind else None
