"""What the tests of exports share: a net that streams, with random parameters, and a function that is lowered fast."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from drawn import normal


NET = rs.chain(rs.layer(rs.cells.LSTM(4)), rs.layer(rs.dropout(rs.cells.LSTM(5), 0.5)))
XS = jax.ShapeDtypeStruct((9, 2, 3), jnp.float32)


def random_params(net: Any) -> Any:
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: net.init(jax.random.key(0), 3))
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), shapes)


def sequence(steps: int, rows: int) -> jax.Array:
    return normal(np.random.default_rng(steps + rows), (steps, rows, 3), jnp.float32)


def with_any_batch(params: Any, carry: Any, xs: jax.Array) -> tuple[Any, Any, Any]:
    """The types of a scan's arguments, with a symbolic number of rows in the carry and the inputs."""
    (rows,) = jax.export.symbolic_shape("n")
    return (
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params),
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), carry),
        jax.ShapeDtypeStruct((xs.shape[0], rows, *xs.shape[2:]), xs.dtype),
    )


def save_small(folder: Path, scale: float, **options: Any) -> None:
    """Save `scale * x @ kernel`, whose outputs tell with which scale it was saved."""
    params = {"kernel": jnp.ones((3, 4)), "scale": jnp.asarray(scale)}
    rs.export.save(folder, _small, params, [jnp.ones((2, 3))], ["cpu"], ("N",), **options)


def saved_scale(folder: Path) -> float:
    return float(rs.export.load(folder).predict(jnp.ones((2, 3)))[0, 0]) / 3


def rewrite(folder: Path, **changed: Any) -> None:
    """Change fields of the manifest as a saver would, with a new hash."""
    fields = json.loads((folder / "manifest.json").read_text()) | changed
    del fields["sha256"]
    digest = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields | {"sha256": digest}, indent=1) + "\n")


def forge_program(folder: Path, platform: str, program: Any) -> None:
    """Put another program in the place of `predict`, with hashes that fit."""
    content = bytes(program.serialize())
    digest = hashlib.sha256(content).hexdigest()
    name = f"predict.{platform}-{digest[:16]}.jax_export"
    fields = json.loads((folder / "manifest.json").read_text())
    del fields["files"][fields["programs"][platform]["predict"]]
    (folder / name).write_bytes(content)
    listed = fields["files"] | {name: {"bytes": len(content), "sha256": digest}}
    rewrite(folder, files=listed, programs=fields["programs"] | {platform: {"predict": name}})


def _small(params: Any, x: Any) -> Any:
    return params["scale"] * (x @ params["kernel"])
