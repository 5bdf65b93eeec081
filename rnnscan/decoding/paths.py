"""Follow the parents of finished hypotheses back to the start."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from rnnscan._util.step_wrappers import select_rows


class Finished(NamedTuple):
    """Finished hypotheses, `(N, n_best)`, best first.

    Attributes:
        scores: -inf where there is none.
        last_steps: the index of the last token's step; -1 where there is none.
        parents: the place that the last token extended.
        tokens: the last tokens.
        token_scores: their log-probabilities.
    """

    scores: Any
    last_steps: Any
    parents: Any
    tokens: Any
    token_scores: Any


class Steps(NamedTuple):
    """Records of the live hypotheses at all steps, `(T, N, size, ...)`.

    Attributes:
        tokens: the token that each place was given.
        parents: the place that it extended.
        token_scores: the token's log-probability.
        aux: the aux of the step, by the place that was extended.
    """

    tokens: Any
    parents: Any
    token_scores: Any
    aux: Any


def gather_places(leaf: Any, places: Int[Array, "rows chosen"]) -> Any:
    """Select places in each row of `(N, size, ...)`: `(N, chosen, ...)`."""
    return jax.vmap(lambda row, chosen: row[chosen])(leaf, places)


def follow(finished: Finished, steps: Steps, padding: int) -> tuple[Any, Any, Any]:
    """The finished hypotheses, token by token.

    Args:
        finished: the hypotheses.
        steps: the records of all steps.
        padding: the token after the last one.

    Returns:
        Tokens and their log-probabilities `(T, N, n_best)`, and aux, leaves `(T, N, n_best, ...)`.
    """

    def step_back(places: Any, at: tuple[Any, Steps]) -> tuple[Any, Any]:
        index, step = at
        is_last, is_within = index == finished.last_steps, index <= finished.last_steps
        here = jax.tree.map(lambda leaf: gather_places(leaf, places), step._replace(aux=None))
        last = Steps(finished.tokens, finished.parents, finished.token_scores, None)
        here = select_rows(is_last, last, here)
        parents = jnp.where(is_within, here.parents, places)
        aux = jax.tree.map(lambda leaf: gather_places(leaf, parents), step.aux)
        token = jnp.where(is_within, here.tokens, padding)
        zeros = jax.tree.map(jnp.zeros_like, (here.token_scores, aux))
        return parents, (token, *select_rows(is_within, (here.token_scores, aux), zeros))

    indices = jnp.arange(len(steps.tokens))
    # Any places do before the last step, and these vary over a mesh as the others do.
    _, outputs = lax.scan(step_back, finished.parents, (indices, steps), reverse=True)
    return outputs
