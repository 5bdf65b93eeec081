"""Products of many decays, rounded about once.

A product of n numbers is rounded n - 1 times. All values that a product of decays weighs get the same error, which does
not average out, as the errors of a loop do. So a product carries its rounding error along.

Source: Dekker 1971, "A Floating-Point Technique for Extending the Available Precision", sections 4 and 5.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


# The leading bits of a float32: those of two halves have exact products.
_LEADING_BITS = -(1 << 12)


class Product(NamedTuple):
    """A product, and its rounding error.

    Attributes:
        value: the number that is nearest to the product.
        missing: the product less `value`, in float32; else 0. It has no derivative.
    """

    value: Any
    missing: Any

    @staticmethod
    def of(number: Any) -> "Product":
        """A number that lacks nothing."""
        return Product(number, lax.full_like(number, 0))

    def times(self, other: "Product") -> "Product":
        """The product of both."""
        if self.value.dtype != jnp.float32:
            return Product.of(self.value * other.value)
        left, right = lax.stop_gradient((self, other))
        missing = _rounding_error(left.value, right.value) + (left.value * right.missing + left.missing * right.value)
        return _completed(self.value * other.value, missing)

    def times_number(self, number: Any) -> "Product":
        """The product with a number that lacks nothing."""
        if self.value.dtype != jnp.float32:
            return Product.of(self.value * number)
        left, right = lax.stop_gradient((self, number))
        return _completed(self.value * number, _rounding_error(left.value, right) + left.missing * right)


def _completed(product: Any, missing: Any) -> Product:
    """A product from its rounded value and what that lacks.

    The sum of both is rounded to the value, so that no derivative reads the error: a backward pass need not keep
    it.
    """
    value = product + missing
    return Product(value, missing - (lax.stop_gradient(value) - lax.stop_gradient(product)))


def _rounding_error(left: Any, right: Any) -> Any:
    """The rounding error of `left * right`."""
    (high, low), (other_high, other_low) = _halves(left), _halves(right)
    return ((high * other_high - left * right) + high * other_low + low * other_high) + low * other_low


def _halves(number: Any) -> tuple[Any, Any]:
    bits = lax.bitcast_convert_type(number, jnp.int32) & _LEADING_BITS
    high = lax.bitcast_convert_type(bits, number.dtype)
    return high, number - high
