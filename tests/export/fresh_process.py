"""Load an export and run it: `fresh_process.py FOLDER INPUTS.npz OUTPUTS.npz`. It has not the code of the model."""

import sys

import jax
import numpy as np

from rnnscan.export import load


def main(folder: str, given: str, results: str) -> None:
    loaded, outputs = load(folder), {}
    with np.load(given) as inputs:
        for name, xs in inputs.items():
            result = loaded.predict(xs)
            carry = loaded.init(N=xs.shape[1])
            for x in xs:
                carry, y = loaded.step(carry, x)
            outputs |= {f"{name}/hidden": result["carry"]["hidden"], f"{name}/ys": result["ys"]}
            outputs |= {f"{name}/streamed": carry["hidden"], f"{name}/last": y}
    np.savez(results, **jax.tree.map(np.asarray, outputs))
    assert not any("own_model" in module for module in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
