"""Follow elements that are not finite back through loops and branches.

A loop runs forward once, compiled. Then it is followed back, step by step where steps differ.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import lax

from rnnscan.inside.nonfinite.bodies import Body, body_of, on_host, reached, results_in, values_in
from rnnscan.inside.nonfinite.dependence import not_finite, union
from rnnscan.inside.nonfinite.patterns import Mask, is_inexact
from rnnscan.inside.nonfinite.steps import StepRunner
from rnnscan.inside.nonfinite.walk import KINDS, Inside, walk_back
from rnnscan.ir.bodies import carry_of_scan
from rnnscan.ir.program import Equation


def open_jaxpr(jaxpr: Any) -> Body:
    """The equations of a jaxpr, with the loops and branches among them."""
    return body_of(jaxpr, _inner_of)


def _inner_of(equation: Equation) -> Any:
    kinds: dict[str, Any] = {"scan": _Scan, "while": While, "cond": Branches}
    return kinds[equation.name](equation) if equation.name in kinds else None


class Loop:
    """A loop over steps.

    Attributes:
        bodies: its body.
    """

    is_loop = True

    def __init__(self, body: Body, consts: int, carry: int, *, reverse: bool) -> None:
        self.bodies = [body]
        self._body, self._reverse = body, reverse
        self._consts, self._end = consts, consts + carry
        self._runner = StepRunner(body, consts, carry)

    def walk_steps(
        self, operands: Sequence[Any], masks: Sequence[Mask], length: int
    ) -> tuple[list[Mask], list[Inside | None]]:
        """Follow elements of the final carry and the stacked results.

        Returns:
            For each operand the elements to blame; and the first step with births of each kind.
        """
        turned = (lambda leaf: leaf[::-1]) if self._reverse else (lambda leaf: leaf)
        xs = [turned(on_host(leaf)) for leaf in operands[self._end :]]
        steps = self._runner.run([*operands[: self._end], *xs], length)
        carry = self._end - self._consts
        of_carry, of_ys = list(masks[:carry]), [None if mask is None else turned(mask) for mask in masks[carry:]]
        of_consts: list[Mask] = [None] * self._consts
        of_xs: list[Mask] = [None] * len(xs)
        first: list[Inside | None] = [None for _ in KINDS]
        step = length - 1
        while step >= 0:
            of_results = [*of_carry, *(_part(mask, step) for mask in of_ys)]
            if all(mask is None for mask in of_results):
                step -= 1
                continue
            walk = walk_back(self._body, steps.values(step), of_results)
            new_consts, of_carry, of_x = self._split(walk.inputs)
            of_consts = [union(*pair) for pair in zip(of_consts, new_consts, strict=True)]
            kinds = [kind for kind in KINDS if walk.first(kind) is not None]
            for kind in kinds:
                place = length - 1 - step if self._reverse else step
                first[kind] = Inside(walk, self._places(len(operands), step == 0), place, self._consts)
            start = step
            if _are_equal(of_carry, of_results[:carry]):  # Steps before may do the same.
                start = steps.first_alike(step, [mask for mask in of_ys if mask is not None])
                start += bool(kinds) and start < step  # A report has the values of the first.
            for number, mask in enumerate(of_x):
                if mask is not None:
                    of_xs[number] = np.zeros(np.shape(xs[number]), bool) if of_xs[number] is None else of_xs[number]
                    of_xs[number][start : step + 1] = mask
            step = start - 1
        return [*of_consts, *of_carry, *(None if mask is None else turned(mask) for mask in of_xs)], first

    def results_after(self, of_step: Sequence[bool], body: Body) -> list[bool]:
        """The results that depend on some results of a step, through later steps too."""
        depends, before = list(of_step), list[bool]()
        while depends != before:
            before = depends
            carried = [each for each, flag in zip(body.inputs[self._consts : self._end], before, strict=False) if flag]
            reach = reached(body.equations, carried)
            depends = [flag or atom in reach for flag, atom in zip(before, body.outputs, strict=True)]
        return depends

    def _places(self, count: int, is_first: bool) -> list[int | None]:
        return [place if is_first or not self._consts <= place < self._end else None for place in range(count)]

    def _split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        return list(values[: self._consts]), list(values[self._consts : self._end]), list(values[self._end :])


def _part(mask: Mask, step: int) -> Mask:
    """The mask of one step; None: no element."""
    return None if mask is None or not mask[step].any() else mask[step]


def _are_equal(masks: Sequence[Mask], others: Sequence[Mask]) -> bool:
    return all(
        one is other or (one is not None and other is not None and np.array_equal(one, other))
        for one, other in zip(masks, others, strict=True)
    )


class _Scan(Loop):
    """A `lax.scan`."""

    def __init__(self, equation: Equation) -> None:
        body = open_jaxpr(equation.params["jaxpr"])
        carry = carry_of_scan(body.inputs, body.outputs, equation.inputs, equation.outputs)
        self._length = equation.params["length"]
        super().__init__(body, carry.start, len(carry), reverse=equation.params["reverse"])

    def walk(self, operands: Sequence[Any], masks: Sequence[Mask]) -> tuple[list[Mask], list[Inside | None]]:
        """Follow elements of the results."""
        return self.walk_steps(operands, masks, self._length)


class While:
    """A `lax.while_loop`, whose steps are counted first.

    Attributes:
        bodies: its body.
    """

    is_loop = True

    def __init__(self, equation: Equation) -> None:
        self._equation = equation
        self._tests, self._consts = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        carry = len(equation.inputs) - self._tests - self._consts
        self._loop = Loop(open_jaxpr(equation.params["body_jaxpr"]), self._consts, carry, reverse=False)
        self.bodies = self._loop.bodies

    def walk(self, operands: Sequence[Any], masks: Sequence[Mask]) -> tuple[list[Mask], list[Inside | None]]:
        """Follow elements of the results."""
        length = int(self._count(list(operands)))
        of_operands, first = self._loop.walk_steps(operands[self._tests :], masks, length)
        return [None] * self._tests + of_operands, [each and self._moved(each) for each in first]

    def results_after(self, of_step: Sequence[bool], body: Body) -> list[bool]:
        """The results that depend on some results of a step, through later steps too."""
        return self._loop.results_after(of_step, body)

    def _moved(self, inside: Inside) -> Inside:
        """Count the operands of the test too."""
        places = [None if place is None else place + self._tests for place in inside.operands]
        return Inside(inside.walk, places, inside.step, inside.invariant)

    @cached_property
    def _count(self) -> Callable[[list[Any]], Any]:
        test, body = open_jaxpr(self._equation.params["cond_jaxpr"]), self.bodies[0]
        start = self._tests + self._consts

        def count(operands: list[Any]) -> Any:
            tests, consts = operands[: self._tests], operands[self._tests : start]

            def goes_on(state: Any) -> Any:
                return results_in(test, values_in(test, [*tests, *state[1]]))[0]

            def run(state: Any) -> Any:
                return state[0] + 1, results_in(body, values_in(body, [*consts, *state[1]]))

            return lax.while_loop(goes_on, run, (0, operands[start:]))[0]

        return jax.jit(count)


class Branches:
    """A `lax.cond` or `lax.switch`.

    Attributes:
        bodies: its branches.
    """

    is_loop = False

    def __init__(self, equation: Equation) -> None:
        self.bodies = [open_jaxpr(branch) for branch in equation.params["branches"]]

    def walk(self, operands: Sequence[Any], masks: Sequence[Mask]) -> tuple[list[Mask], list[Inside | None]]:
        """Follow elements of the results through the branch that runs."""
        body = self.bodies[min(max(int(operands[0]), 0), len(self.bodies) - 1)]
        walk = walk_back(body, body.values(operands[1:]), masks)
        inside = Inside(walk, list(range(1, len(operands))))
        return [None, *walk.inputs], [None if walk.first(kind) is None else inside for kind in KINDS]

    def results_after(self, of_branch: Sequence[bool], body: Body) -> list[bool]:
        """The results that depend on some results of a branch: these."""
        return list(of_branch)


def walk_function(body: Body, inputs: Sequence[Any]) -> Any:
    """Run a function, and follow all elements of its results that are not finite."""
    values = body.values(inputs)
    results = results_in(body, values)
    masks = [not_finite(np.asarray(result)) if is_inexact(result) else None for result in results]
    return walk_back(body, values, masks)
