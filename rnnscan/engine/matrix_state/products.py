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
    """A product that was rounded, and what it lacks.

    Attributes:
        rounded: the product.
        missing: the exact product less `rounded`, in float32; else 0. It has no derivative.
    """

    rounded: Any
    missing: Any

    @staticmethod
    def of(number: Any) -> "Product":
        """A number that lacks nothing."""
        return Product(number, lax.full_like(number, 0))

    def times(self, other: "Product") -> "Product":
        """The product of both."""
        if self.rounded.dtype != jnp.float32:
            return Product.of(self.rounded * other.rounded)
        one, two = lax.stop_gradient((self, other))
        missing = one.rounded * two.missing + one.missing * two.rounded
        return Product(self.rounded * other.rounded, _rounding_error(one.rounded, two.rounded) + missing)

    def times_number(self, number: Any) -> "Product":
        """The product with a number that lacks nothing."""
        if self.rounded.dtype != jnp.float32:
            return Product.of(self.rounded * number)
        one, two = lax.stop_gradient((self, number))
        return Product(self.rounded * number, _rounding_error(one.rounded, two) + one.missing * two)

    @property
    def value(self) -> Any:
        """The number that is nearest."""
        return self.rounded + self.missing


def _rounding_error(one: Any, two: Any) -> Any:
    """What `one * two` lacks."""
    (high, low), (other_high, other_low) = _halves(one), _halves(two)
    return ((high * other_high - one * two) + high * other_low + low * other_high) + low * other_low


def _halves(number: Any) -> tuple[Any, Any]:
    bits = lax.bitcast_convert_type(number, jnp.int32) & _LEADING_BITS
    high = lax.bitcast_convert_type(bits, number.dtype)
    return high, number - high
