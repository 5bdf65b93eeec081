"""An export that was loaded."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._util.messages import listing, nearest
from rnnscan.export.common.specs import ArraySpec, bind
from rnnscan.export.generate import check_sampling, draw_tokens
from rnnscan.export.manifest import Manifest, Stream
from rnnscan.export.vocabulary import Vocabulary


class Predictor:
    """An exported function with its parameters. Made by `load`.

    Arguments are checked against the manifest before anything runs. A program is compiled for each new size of the
    dynamic axes. It has no gradient.

    Attributes:
        manifest: what the export holds, such as `manifest.inputs`, `manifest.outputs`, `manifest.parameters` and
            `manifest.versions`.
        platform: the platform whose program runs, such as "cpu".
        vocabulary: the tokens of a language model, or None.
    """

    def __init__(
        self,
        manifest: Manifest,
        platform: str,
        params: list[Array],
        programs: dict[str, Callable[..., Any]],
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.manifest = manifest
        self.platform = platform
        self.vocabulary = vocabulary
        self._params = params
        self._programs = programs
        # The types of arguments that passed their check. Checking them again takes as long as a small step.
        self._checked: set[Any] = set()
        self._results = {name: jax.tree.structure(tree) for name, tree in manifest.results().items()}

    def __repr__(self) -> str:
        """The inputs with their types."""
        inputs = ", ".join(f"{name}={_shown(spec)}" for name, spec in self.manifest.inputs.items())
        return f"Predictor({inputs}, platform={self.platform!r})"

    @property
    def streams(self) -> bool:
        """Whether there are `init` and `step`."""
        return self.manifest.stream is not None

    def predict(self, *inputs: Any, **named: Any) -> Any:
        """Run the function.

        Args:
            inputs: the inputs, in order.
            named: inputs by name, in place of the last ones.

        Returns:
            The result of the function that was saved.

        Raises:
            TypeError: if an input is missing, unknown or given twice, or has another structure or dtype.
            ValueError: if an input has another rank or size.
        """
        arguments = self._by_name(inputs, named)
        return self._run("predict", {name: (arguments[name], specs) for name, specs in self.manifest.inputs.items()})

    def init(self, **sizes: int) -> Any:
        """Make the carry that a stream starts from.

        Args:
            sizes: the sizes of the dynamic axes of one step's input, such as `N=8`. The default of each is 1.

        Returns:
            The initial carry.

        Raises:
            ValueError: if the function does not stream, or a size is unknown or below 1.
        """
        stream = self._stream("init")
        known = sorted({size for spec in jax.tree.leaves(stream.x) for size in spec.shape if isinstance(size, str)})
        for name, size in sizes.items():
            if name not in known or size < 1:
                raise ValueError(
                    f"init: sizes must be at least 1, of the dynamic axes {listing(known)}; got {name}={size!r}."
                )

        def zeros(spec: ArraySpec) -> Array:
            shape = [sizes.get(size, 1) if isinstance(size, str) else size for size in spec.shape]
            return jnp.zeros(shape, spec.dtype)

        return self._run("init", {"x": (jax.tree.map(zeros, stream.x), stream.x)})

    def step(self, carry: Any, x: Any) -> tuple[Any, Any]:
        """Run one step.

        Args:
            carry: the carry, from `init` or the last step.
            x: one step's input, `(N, ...)`.

        Returns:
            The new carry, and the output of the step.

        Raises:
            TypeError: if the carry or input has another structure or dtype.
            ValueError: if it has another rank or size, or the function does not stream.
        """
        stream = self._stream("step")
        return self._run("step", {"carry": (carry, stream.carry), "x": (x, stream.x)})

    def generate(
        self, prompt: str | bytes = "\n", length: int = 100, *, temperature: int | float = 1.0, seed: int = 0
    ) -> Iterator[bytes]:
        """Draw text from a language model, token by token.

        Args:
            prompt: the text before it; a string is encoded as UTF-8.
            length: the number of tokens.
            temperature: below 1 it favors likely tokens; 0 takes the likeliest.
            seed: the seed of the draws.

        Returns:
            The bytes of each token, as they are drawn.

        Raises:
            ValueError: if the function has no vocabulary, the prompt is empty or holds other tokens, or the length or
                the temperature is below 0.
        """
        if self.vocabulary is None or self.manifest.stream is None:
            raise ValueError(
                f"generate: the export must be a language model with a vocabulary; got {self!r}, which has none. Pass "
                "`vocabulary` to rnnscan.export.save."
            )
        check_sampling(length, temperature)
        numbers = self.vocabulary.encode(prompt)
        if not numbers:
            raise ValueError("generate: `prompt` must have at least one token; got an empty text.")
        rows = [size for size in self.manifest.stream.x.shape if isinstance(size, str)]
        drawn = draw_tokens(
            self.step,
            self.init(**dict.fromkeys(rows, 1)),
            numbers,
            length,
            dtype=self.manifest.stream.x.dtype,
            temperature=temperature,
            seed=seed,
        )
        return map(self.vocabulary.tokens.__getitem__, drawn)

    def _run(self, function: str, arguments: dict[str, tuple[Any, Any]]) -> Any:
        """Check arguments against their specs, and run a program."""
        leaves, structure = jax.tree.flatten([tree for tree, _ in arguments.values()])
        shapes = [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]
        types = (function, structure, *shapes)
        if types not in self._checked:
            sizes: dict[str, int] = {}
            bound = [bind(tree, specs, name, sizes, function) for name, (tree, specs) in arguments.items()]
            leaves = [leaf for each in bound for leaf in each]
            if (None, None) not in shapes:
                self._checked.add(types)
        return jax.tree.unflatten(self._results[function], self._programs[function](*self._params, *leaves))

    def _stream(self, function: str) -> Stream:
        if self.manifest.stream is None:
            raise ValueError(
                f"{function}: the exported function must stream; got {self!r}, which does not. Export a net that runs "
                "in pieces, or pass `cell` to rnnscan.export.save."
            )
        return self.manifest.stream

    def _by_name(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        known = list(self.manifest.inputs)
        for name in named:
            if name not in known:
                raise TypeError(f"predict: the inputs must be {listing(known)}; got {name!r}.{nearest(name, known)}")
        positional = dict(zip(known, inputs, strict=False))
        twice = positional.keys() & named.keys()
        arguments = {**positional, **named}
        if len(inputs) > len(known) or twice or len(arguments) < len(known):
            raise TypeError(
                f"predict: the inputs must be {listing(known)}, each once; got {len(inputs)} in order, and "
                f"{listing(named)} by name."
            )
        return arguments


def _shown(specs: Any) -> Any:
    return str(specs) if isinstance(specs, ArraySpec) else jax.tree.map(str, specs)
