"""Export the byte-level language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rnnscan.export import save
from rnnscan.scanning import scan
from rnnscan.train.language_model import BYTES, LanguageModel


def export_language_model(
    path: str | Path,
    model: LanguageModel,
    params: dict[str, Any],
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    *,
    store: Literal["bfloat16", "int8"] | None = None,
) -> None:
    """Write a trained language model to a folder that generates text without the code of the model.

    `predict` takes bytes `(T, N)` and gives the logits of the byte after each, `(T, N, 256)`. `step` takes one byte of
    each row. The folder has the 256 bytes as its vocabulary.

    Args:
        path: the folder, as in `rnnscan.export.save`.
        model: the model.
        params: as made by `LanguageModel.init`, trained.
        platforms: the platforms to lower for, as in `rnnscan.export.save`.
        store: as in `rnnscan.export.save`. The manifest has the largest error of the logits for 64 printable bytes.

    Raises:
        ValueError: if a platform or `store` is unknown.
        FileExistsError: if the folder holds other files.
        ImportError: if the extra `export` is not installed.

    Example:
        >>> import tempfile
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.train import LanguageModel, export_language_model
        >>> model = LanguageModel(cell="gru", hidden=8, embedding=4)
        >>> params = model.init(jax.random.key(0))  # train them here
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_language_model(folder, model, params, ["cpu"])
        ...     loaded = rs.export.load(folder)
        >>> text = b"".join(loaded.generate("def ", 10, temperature=0.7))
        >>> len(text)
        10
    """
    step = _Step(model)

    def predict(params: dict[str, Any], text: Int[Array, "time rows"]) -> Float[Array, "time rows 256"]:
        _, hidden = scan(model.cells, params["cells"], step.initial_carry(text[0]), params["embedding"][text])
        return model.logits(params, hidden)

    printable = np.random.default_rng(0).integers(32, 127, (16, 4)).astype(np.int32)
    save(
        path,
        predict,
        params,
        {"text": jnp.asarray(printable)},
        platforms,
        cell=step,
        store=store,
        vocabulary=[bytes([byte]) for byte in range(BYTES)],
    )


@dataclass(frozen=True)
class _Step:
    """One byte of each row: `(params, carry, bytes) -> (carry, logits)`."""

    model: LanguageModel

    def initial_carry(self, text: Int[Array, " rows"]) -> Any:
        # Not the model's initial_carry: the number of rows may be symbolic.
        return self.model.cells.initial_carry(jnp.zeros((text.shape[0], self.model.embedding)))

    def __call__(
        self, params: dict[str, Any], carry: Any, text: Int[Array, " rows"]
    ) -> tuple[Any, Float[Array, "rows 256"]]:
        carry, hidden = self.model.cells(params["cells"], carry, params["embedding"][text])
        return carry, self.model.logits(params, hidden)
