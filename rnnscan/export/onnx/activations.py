"""rnnscan's activations as those of ONNX's recurrent operators."""

from typing import Any, NamedTuple

import jax

from rnnscan.export.onnx.builder import NoOperatorError
from rnnscan.interop.nets import activation_name


class OnnxActivation(NamedTuple):
    """An activation of ONNX, with the parameters that it takes."""

    name: str
    alpha: float | None = None
    beta: float | None = None


_KNOWN: dict[Any, OnnxActivation] = {
    "elu": OnnxActivation("Elu", 1.0),
    "hard_sigmoid": OnnxActivation("HardSigmoid", 0.2, 0.5),
    jax.nn.hard_sigmoid: OnnxActivation("HardSigmoid", 1 / 6, 0.5),
    "identity": OnnxActivation("Affine", 1.0, 0.0),
    "leaky_relu": OnnxActivation("LeakyRelu", 0.01),
    "relu": OnnxActivation("Relu"),
    "sigmoid": OnnxActivation("Sigmoid"),
    "softplus": OnnxActivation("Softplus"),
    "softsign": OnnxActivation("Softsign"),
    "tanh": OnnxActivation("Tanh"),
}

# Activations with 1 - f(z) = f(-z).
_SYMMETRIC = ("Sigmoid", "HardSigmoid")


def is_symmetric(activation: Any) -> bool:
    """Whether `1 - activation(z)` is `activation(-z)`."""
    known = _KNOWN.get(activation_name(activation))
    return known is not None and known.name in _SYMMETRIC


def activations_of(cell: Any) -> list[OnnxActivation]:
    """The activations of one direction, in the order of ONNX: gates, candidate, and an LSTM's state.

    Raises:
        NoOperatorError: if ONNX has none of them.
    """
    options = [option for option in ("gate_activation", "activation") if hasattr(cell, option)]
    activations = []
    for option in options:
        activation = getattr(cell, option)
        known = _KNOWN.get(activation_name(activation))
        if known is None:
            raise NoOperatorError(f"ONNX has no activation like {option}={activation!r} of {cell!r}")
        activations.append(known)
    return [*activations, activations[-1]] if type(cell).__name__ == "LSTM" else activations


def attributes_of(activations: list[OnnxActivation]) -> dict[str, Any]:
    """The attributes of an operator. Parameters are consumed in order by the activations that take them."""
    attributes: dict[str, Any] = {"activations": [activation.name for activation in activations]}
    for parameter in ("alpha", "beta"):
        values = [
            getattr(activation, parameter) for activation in activations if getattr(activation, parameter) is not None
        ]
        if values:
            attributes[f"activation_{parameter}"] = values
    return attributes
