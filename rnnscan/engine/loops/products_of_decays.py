"""Products of many decays, rounded about once.

A product of n numbers is rounded n - 1 times. All values that a product of decays weighs get the same error, which does
not average out, as the errors of a loop do. So a product carries along what it lacks.

Source: Dekker 1971, "A Floating-Point Technique for Extending the Available Precision", sections 4 and 5.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


# The leading bits of a float32: those of two halves have exact products.
_LEADING_BITS = -(1 << 12)


class Product(NamedTuple):
    """A product, and what it lacks.

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
        one, two = lax.stop_gradient((self, other))
        missing = _rounding_error(one.value, two.value) + (one.value * two.missing + one.missing * two.value)
        return _completed(self.value * other.value, missing)

    def times_number(self, number: Any) -> "Product":
        """The product with a number that lacks nothing."""
        if self.value.dtype != jnp.float32:
            return Product.of(self.value * number)
        one, two = lax.stop_gradient((self, number))
        return _completed(self.value * number, _rounding_error(one.value, two) + one.missing * two)


def _completed(product: Any, missing: Any) -> Product:
    """A product from its rounded value and what that lacks.

    The sum of both is rounded to the value, so that no derivative reads what is missing: a backward pass need not keep
    it.
    """
    value = product + missing
    return Product(value, missing - (lax.stop_gradient(value) - lax.stop_gradient(product)))


def _rounding_error(one: Any, two: Any) -> Any:
    """What `one * two` lacks."""
    (high, low), (other_high, other_low) = _halves(one), _halves(two)
    return ((high * other_high - one * two) + high * other_low + low * other_high) + low * other_low


def _halves(number: Any) -> tuple[Any, Any]:
    bits = lax.bitcast_convert_type(number, jnp.int32) & _LEADING_BITS
    high = lax.bitcast_convert_type(bits, number.dtype)
    return high, number - high
