"""Write an export."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.export import quantize
from rnnscan.export.common import files
from rnnscan.export.common.extras import import_extra
from rnnscan.export.common.named_inputs import by_name
from rnnscan.export.common.specs import spec_of
from rnnscan.export.common.symbols import Axes, symbolic_types
from rnnscan.export.lower import Program
from rnnscan.export.manifest import Manifest, Stream, dump
from rnnscan.export.parameters import encode_all, named_arrays
from rnnscan.export.programs import lower_all
from rnnscan.export.streaming import Steps, check_carry, steps_of
from rnnscan.export.vocabulary import Vocabulary, check_vocabulary
from rnnscan.export.vocabulary import dump as dump_vocabulary


PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def save(
    path: str | Path,
    fn: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    dynamic: Axes = ("T", "N"),
    *,
    cell: Any = None,
    store: quantize.Store | None = None,
    vocabulary: Sequence[bytes] | None = None,
) -> None:
    """Write `fn(params, *inputs)` to a folder that `load` runs without the code of `fn`.

    The folder holds a StableHLO program for each platform, the parameters as safetensors, and a manifest with the hash
    of every file. An old export there is replaced in one step: if the process is killed, the old one stays whole. Only
    one process may write.

    Gradients are not exported, nor parameters that `fn` does not read. A net runs without random choices such as
    dropout.

    Each program is lowered with the engine's choices for its platform; no such device is needed. If the number of steps
    is dynamic, the engine runs all work step by step. Fix it, with `dynamic=(None, "N")`, to let the engine batch work.

    Args:
        path: the folder.
        fn: a net, or any function of `params` and the inputs. It returns arrays in dictionaries, lists and tuples.
        params: the parameters, any pytree of arrays.
        inputs: an example of each input, or its `jax.ShapeDtypeStruct`, in the order of the arguments of `fn`. A
            dictionary has them by the names of the arguments. An input may be a pytree.
        platforms: the platforms to lower for: "cpu", "cuda", "tpu", "rocm".
        dynamic: the names of the leading axes of each input, whose sizes may change between calls. None is a fixed
            axis. For inputs with different axes pass a dictionary: `{"xs": ("T", "N"), "seq_lengths": ("N",)}`.
        cell: the cell or net that `Predictor.step` runs, with parameters `params`, if `fn` is a function. Its input is
            one step of the first input. A net needs none: it streams if it runs in pieces.
        store: "bfloat16" stores floating-point parameters as bfloat16. "int8" stores those with two axes or more as
            int8, with a scale for each index of the last axis. Loading gives them their own dtype back. The manifest
            has the error of each parameter and, if the inputs are arrays, of the outputs. None: exact.
        vocabulary: the tokens of a language model, in the order of its logits. With it `Predictor.generate` makes
            text. A step must take the numbers of tokens, `(N,)`, and return logits, `(N, V)`.

    Raises:
        TypeError: if a parameter, input or output is not an array.
        ValueError: if an argument has a wrong value, or `fn` has side effects.
        FileExistsError: if the folder holds other files.
        ImportError: if safetensors or flatbuffers is not installed.

    Example:
        >>> import tempfile
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rs.export.save(folder, net, params, [jnp.ones((10, 2, 3))], platforms=["cpu"])
        ...     loaded = rs.export.load(folder)
        >>> carry, ys = loaded.predict(jnp.ones((7, 5, 3)))
        >>> ys.shape
        (7, 5, 4)
        >>> carry, y = loaded.step(loaded.init(N=2), jnp.ones((2, 3)))
        >>> y.shape
        (2, 4)
    """
    folder = Path(path)
    files.check_target(folder)
    quantize.check_store(store)
    _check_platforms(platforms)
    for module in ("safetensors", "flatbuffers"):
        import_extra(module)
    examples, called = by_name(fn, inputs)
    types = symbolic_types(examples, dynamic)
    steps = steps_of(fn, cell, types)
    words = None if vocabulary is None else Vocabulary(tuple(vocabulary))
    leaves = named_arrays(params)
    structure: Any = jax.tree.structure(params)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves.values()]
    lowered, used = lower_all(called, steps, jax.tree.unflatten(structure, shapes), list(types.values()), platforms)
    first = lowered[platforms[0]]
    names = list(leaves)
    parameters, restored, tensors = encode_all({names[number]: leaves[names[number]] for number in used}, store)
    restored_params = jax.tree.unflatten(structure, (leaves | restored).values())

    stream = _stream(steps, first, words)

    contents = {"parameters": ("safetensors", tensors)}
    if words is not None:
        contents["vocabulary"] = ("json", dump_vocabulary(words))
    for platform, functions in lowered.items():
        contents |= {f"{name}.{platform}": ("jax_export", program.serialized) for name, program in functions.items()}
    named = {stem: files.name_of(stem, *content) for stem, content in contents.items()}
    manifest = Manifest(
        inputs={name: jax.tree.map(spec_of, tree) for name, tree in types.items()},
        outputs=first["predict"].outputs,
        stream=stream,
        parameters=parameters,
        store=_store(store, called, params, restored_params, list(examples.values())),
        programs={
            platform: {name: named[f"{name}.{platform}"][0] for name in functions}
            for platform, functions in lowered.items()
        },
        parameters_file=named["parameters"][0],
        vocabulary_file=None if words is None else named["vocabulary"][0],
        files=dict(named.values()),
        versions={name: version(name) for name in ("rnnscan", "jax", "jaxlib")},
    )
    files.write_all(folder, dump(manifest), {named[stem][0]: content for stem, (_, content) in contents.items()})


def _check_platforms(platforms: Sequence[str]) -> None:
    if isinstance(platforms, str) or not platforms or not set(platforms) <= set(PLATFORMS):
        raise ValueError(f"export.save: `platforms` must be some of {PLATFORMS}; got {platforms!r}.")


def _stream(steps: Steps | None, programs: dict[str, Program], words: Vocabulary | None) -> Stream | None:
    if steps is None:
        if words is not None:
            raise ValueError(
                "export.save: a function with `vocabulary` must stream; got one that does not. Pass `cell` too."
            )
        return None
    carry = programs["init"].outputs
    after, y = programs["step"].outputs
    check_carry(carry, after)
    x = jax.tree.map(spec_of, steps.x)
    if words is not None:
        check_vocabulary(words, x, y)
    return Stream(x, carry, y)


def _store(store: Any, called: Callable[..., Any], params: Any, restored: Any, inputs: list[Any]) -> dict[str, Any]:
    """The storage, and the largest error that it makes in the outputs for these inputs."""
    error = None
    if store is not None and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(inputs)):
        run = jax.jit(lambda params: called(params, *inputs))
        pairs = zip(*(jax.tree.leaves(run(tree)) for tree in (params, restored)), strict=True)
        error = max((float(np.abs(_wide(b) - _wide(a)).max(initial=0)) for a, b in pairs), default=0.0)
        error = error if np.isfinite(error) else None
    return {"dtype": store, "largest_error_of_outputs": error}


def _wide(leaf: Any) -> np.ndarray:
    return np.asarray(leaf).astype(np.complex128 if jnp.iscomplexobj(leaf) else np.float64)
