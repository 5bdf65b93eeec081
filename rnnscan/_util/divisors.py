"""Lengths that leave no remainder."""


def near_divisor(length: int, size: int) -> int:
    """A divisor of the length near a size, or the size itself. A remainder must be cut out, compiled and copied."""
    divisors = [divisor for divisor in range(max(2, size // 2), 2 * size) if length % divisor == 0]
    return min(divisors, key=lambda divisor: abs(divisor - size), default=size)
