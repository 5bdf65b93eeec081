"""Sizes in bytes: parse a budget, and print a size."""

import re

from rnnscan._util.messages import is_count, listing


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def budget_bytes(budget: int | str, caller: str = "plan") -> int:
    """Parse a budget.

    Args:
        budget: a number of bytes, or one with a unit: "512MiB", "2 GB", "1.5GiB".
        caller: the function that takes it, for the message.

    Returns:
        The bytes.

    Raises:
        ValueError: if it is not a size above 0.

    Example:
        >>> from rnnscan._util.byte_sizes import budget_bytes
        >>> budget_bytes("1.5KiB"), budget_bytes("2 kB"), budget_bytes(7)
        (1536, 2000, 7)
    """
    count: float | None = budget if is_count(budget, least=-(10**30)) else None  # type: ignore[assignment]
    if isinstance(budget, str) and (match := re.fullmatch(r"\s*(-?[\d.]+)\s*([A-Za-z]*)\s*", budget)):
        unit = _UNITS.get(match[2].upper() or "B")
        try:
            count = None if unit is None else float(match[1]) * unit
        except ValueError:
            count = None
    if count is None or not count > 0:
        raise ValueError(
            f"{caller}: `budget` must be a number of bytes above 0, or a size such as '512MiB'; got {budget!r}. "
            f"Units are {listing(['B', 'KiB', 'MiB', 'GiB', 'TiB', 'kB', 'MB', 'GB', 'TB'])}."
        )
    return int(count)


def readable_bytes(count: int | float, digits: int = 3) -> str:
    """Print a number of bytes, in powers of 1024.

    Args:
        count: the number of bytes.
        digits: the number of digits.

    Returns:
        The digits and a unit; whole numbers without decimals.

    Example:
        >>> readable_bytes(1536), readable_bytes(20 * 2**20), readable_bytes(999)
        ('1.50 KiB', '20 MiB', '999 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000 or unit == "GiB":
            break
        count /= 1024
    whole = count == int(count) or count >= 10 ** (digits - 1)
    return f"{count:.0f} {unit}" if whole else f"{count:#.{digits}g} {unit}"


def readable_apart(one: int, other: int) -> tuple[str, str]:
    """Print two sizes with as many digits as tell them apart, three or more.

    Args:
        one: a number of bytes.
        other: a different number of bytes.

    Returns:
        The texts of both.

    Example:
        >>> readable_apart(8 * 2**20, 8 * 2**20 + 4000), readable_apart(1000, 3000)
        (('8 MiB', '8.004 MiB'), ('0.977 KiB', '2.93 KiB'))
    """

    def rounded(count: int, digits: int) -> tuple[float, str]:
        number, unit = readable_bytes(count, digits).split()
        return float(number), unit

    digits = next((some for some in range(3, 16) if rounded(one, some) != rounded(other, some)), 16)
    return readable_bytes(one, digits), readable_bytes(other, digits)
