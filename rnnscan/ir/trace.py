"""From a jaxpr to a program: calls are inlined, and marked values are found."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import NameStack
from jax.sharding import Sharding

from rnnscan._util.messages import is_key
from rnnscan.ir.dataflow import needed
from rnnscan.ir.jaxprs import all_equations, opened_jaxpr
from rnnscan.ir.opened import checkpointed, opened, policy_of, saves
from rnnscan.ir.program import Atom, Constant, Equation, Origin, Program, Value, concrete
from rnnscan.naming import MARK


# The calls whose body means the same when its equations stand in the caller. Custom rules for derivatives stay whole:
# a gradient of a gradient differentiates these equations, and has to find the rules.
_INLINED = {"jit": "jaxpr", "closed_call": "call_jaxpr", "remat2": "jaxpr"}

# The body computes the values, and a rule of the user's the derivatives.
WITH_RULES = dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "rnnscan_call"), "call_jaxpr")

_CHECKPOINT = "remat2"


def has_checkpoint(jaxpr: Any) -> bool:
    """Whether a jaxpr has a `jax.checkpoint`, in an inner one too."""
    return any(eqn.primitive.name == _CHECKPOINT or checkpointed(eqn) is not None for eqn in all_equations(jaxpr))


def trace(function: Callable[..., Sequence[Any]], *arguments: Any) -> Program:
    """Trace a function of flat arguments that returns flat results.

    Args:
        function: takes arrays, returns a sequence of arrays.
        arguments: arrays or `jax.ShapeDtypeStruct`.

    Returns:
        Its program. Arrays that the function closes over are constants of it.
    """
    return program_of(jax.make_jaxpr(function)(*arguments))


def program_of(body: Any, *, whole: Collection[str] = ()) -> Program:
    """The program of a jaxpr, closed or not, without a loop. `whole`: calls that stay whole."""
    inputs = tuple(Value(var.aval) for var in opened_jaxpr(body)[0].invars)
    equations, outputs = inlined(body, inputs, whole=whole)
    return Program(tuple(equations), known=inputs, stacked=tuple(outputs))


def inlined(body: Any, operands: Sequence[Atom], *, whole: Collection[str] = ()) -> tuple[list[Equation], list[Atom]]:
    """The equations of a jaxpr, closed or not, of some operands, and its results. `whole`: calls that stay whole."""
    inliner, (jaxpr, consts) = Inliner(whole=whole), opened_jaxpr(body)
    results = inliner.inline(jaxpr, [*map(Constant, consts)], operands)
    return inliner.equations, results


def program_as_jaxpr(
    equations: Sequence[Equation], inputs: Sequence[Value], outputs: Sequence[Atom], *, with_effects: bool = False
) -> core.ClosedJaxpr:
    """The jaxpr of the equations that outputs need, and of those with effects, if these are wanted.

    It is made of the equations. To trace them took a tenth of the time of tracing and lowering an LSTM's training step.
    """
    variables: dict[Atom, Any] = {value: core.Var(value.aval) for value in inputs}
    consts: dict[Atom, Any] = {}
    eqns, jax_effects = [], set[Any]()

    def variable(atom: Atom) -> Any:
        if isinstance(atom, Constant) and atom not in variables:
            variables[atom] = literal = _literal(atom) or core.Var(atom.aval)
            consts.update({} if isinstance(literal, core.Literal) else {atom: atom.value})
        return variables[atom]

    for equation in needed(equations, outputs, with_effects=with_effects):
        operands = [*map(variable, equation.inputs)]
        if not isinstance(equation.primitive, core.Primitive):  # That of a name of JAX's high level is the identity.
            variables.update(zip(equation.outputs, operands, strict=True))
            continue
        variables.update((value, core.Var(value.aval)) for value in equation.outputs)
        results, origin = [variables[value] for value in equation.outputs], equation.origin
        operation = equation.primitive, equation.params, equation.jax_effects
        eqns.append(core.new_jaxpr_eqn(operands, results, *operation, origin.source, origin.settings))
        jax_effects |= {*equation.jax_effects}
    results = [*map(variable, outputs)]
    operands = [variables[value] for value in inputs]
    about = core.DebugInfo("rnnscan", "a step", ("",) * len(operands), ("",) * len(results))
    jaxpr = core.Jaxpr([variables[atom] for atom in consts], operands, results, eqns, frozenset(jax_effects), about)
    return core.ClosedJaxpr(jaxpr, [*consts.values()])


def _makes_number(atom: Atom, params: Mapping[str, Any]) -> bool:
    """Whether a cast is of a known number, such as a weakly typed one, to one that NumPy rounds as JAX does."""
    new = params["new_dtype"]
    if atom.shape or is_key(atom) or concrete(atom) is None or params["weak_type"] or params["sharding"] is not None:
        return False
    is_real = not jnp.issubdtype(atom.dtype, jnp.complexfloating)
    keeps = atom.dtype == new or bool(is_real and jnp.issubdtype(new, jnp.floating))
    return keeps and new.itemsize <= 4  # JAX reads a number of NumPy's with fewer bits without `jax.enable_x64`.


def _literal(constant: Constant) -> Any:
    """A number in a jaxpr; None if the constant is none: an array, a key, or what JAX traces."""
    value = None if constant.shape or is_key(constant) else concrete(constant)
    if value is None:
        return None
    return core.Literal(np.asarray(value) if isinstance(value, jax.Array) else value, constant.aval)


class Inliner:
    """Collects the equations of jaxprs, with those of the calls within them.

    Attributes:
        equations: the equations so far.
        marked: the values that `rnnscan.naming` marked, by their positions. A nested `jit` may hold them.
        saved: the values that policies of `jax.checkpoint` save. Its body is inlined, so its policy is kept here.
        named_calls: for each call that was inlined its name, its operands and the number of equations before it.
    """

    def __init__(self, *, whole: Collection[str] = (), all_calls: bool = False) -> None:
        """An inliner.

        Args:
            whole: calls that stay whole, by the names of their primitives.
            all_calls: whether to inline the calls too whose equations alone do not mean the same: functions with rules
                for derivatives, and calls that place their operands.
        """
        self._whole = whole
        self._all_calls = all_calls
        self._bodies = {**_INLINED, **(WITH_RULES if all_calls else {})}
        self.named_calls: list[tuple[str, Sequence[Atom], int]] = []
        self.equations: list[Equation] = []
        self.marked: dict[int, Atom] = {}
        self.saved: list[Atom] = []
        self._policy: Any = None
        self._name_stack = NameStack()  # That of the calls around: a call's body has paths that begin at the call.
        self._call: Any = None  # The traceback of the outermost call around.

    def inline(self, jaxpr: Any, consts: Sequence[Atom], arguments: Sequence[Atom]) -> list[Atom]:
        """Add the equations of a jaxpr, and return its results."""
        atoms: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

        def read(var: Any) -> Atom:
            return Constant(var.val) if isinstance(var, core.Literal) else atoms[var]

        for eqn in jaxpr.eqns:
            operands = [read(var) for var in eqn.invars]
            results = self._equation(eqn, operands)
            if self._policy is not None and saves(eqn, self._policy):
                # A name is an identity. Its operand is the value that derivatives read.
                self.saved.extend(operands if opened(eqn)[0].name == "name" else results)
            atoms.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[Atom]) -> Sequence[Atom]:
        primitive, params = opened(eqn)
        name = str(params.get("name", ""))
        if name.startswith(MARK) and inputs:
            # A gradient within the step marks the value, and after it the cotangent; or nothing, if that is known.
            self.marked.setdefault(int(name.removeprefix(MARK)), inputs[0])
        if primitive.name == "select_n" and all(case is inputs[1] for case in inputs[2:]):
            return inputs[1:2]  # Padding holds a carry leaf that does not change.
        if primitive.name == "convert_element_type" and _makes_number(inputs[0], params):
            return [Constant(np.asarray(concrete(inputs[0])).astype(params["new_dtype"]))]
        source = eqn.source_info
        origin = Origin(eqn.ctx, source.traceback, source.name_stack, self._call).within(self._name_stack)
        inner = checkpointed(eqn)
        kind = primitive.name if inner is None else _CHECKPOINT
        stays_whole = kind in self._whole or (_is_placed(params) and not self._all_calls)
        body = None if stays_whole else params.get(self._bodies.get(kind, ""), inner)
        if body is None:
            outputs = tuple(Value(var.aval) for var in eqn.outvars)
            self.equations.append(Equation(primitive, params, tuple(inputs), outputs, eqn.effects, origin))
            return outputs
        self.named_calls.append((name, inputs, len(self.equations)))
        around, self._name_stack = self._name_stack, origin.name_stack
        call_around, self._call = self._call, self._call_at(source.traceback)
        policy_around, self._policy = self._policy, policy_of(eqn) if kind == _CHECKPOINT else self._policy
        jaxpr, consts = opened_jaxpr(body)
        results = self.inline(jaxpr, [*map(Constant, consts)], inputs)
        self._name_stack, self._policy, self._call = around, policy_around, call_around
        return results

    def _call_at(self, traceback: Any) -> Any:
        """The call that tells the user's line of equations within: the outermost, or of all calls the innermost."""
        if self._all_calls and Origin(traceback=traceback).place:
            return traceback
        return self._call or traceback


def in_place_of(equation: Equation, function: Callable[..., Any], operands: Sequence[Atom]) -> list[Equation]:
    """The equations of a function of some operands that make the result of an equation.

    Args:
        equation: the equation, which has one result.
        function: a function of arrays, whose last operation makes the same result.
        operands: its operands.
    """
    equations, _ = inlined(jax.make_jaxpr(function)(*(atom.aval for atom in operands)), operands)
    *others, last = (replace(made, origin=equation.origin) for made in equations)
    return [*others, replace(last, outputs=equation.outputs)]


def _is_placed(params: Mapping[str, Any]) -> bool:
    """Whether an equation is a `jax.jit` that shards or lays out its operands or results, or has options for XLA."""
    if "in_shardings" not in params:
        return False
    shardings, layouts = (chain(params[f"in_{kind}"], params[f"out_{kind}"]) for kind in ("shardings", "layouts"))
    is_placed = any(isinstance(each, Sharding) for each in shardings) or any(each is not None for each in layouts)
    return is_placed or bool(params["compiler_options_kvs"])
