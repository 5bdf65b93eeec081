"""Text of pictures: characters that every reader shows, and widths without a font."""

import unicodedata


# Widths of the characters from " " to "~", in hundredths of the size of the font. They are those of DejaVu Sans, which
# is wider than Helvetica, Arial and Liberation Sans, so text of any of these stays within its box.
_WIDTHS = (
    32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84,
    84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63, 61, 73, 68, 99, 69, 61,
    69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63, 63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59,
    82, 59, 59, 52, 64, 34, 64, 84,
)  # fmt: skip
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# Characters that XML does not allow, and those that change a line's direction.
_REPLACED = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    r"""The text on one line, with a replacement for characters that do not print or that XML does not allow.

    Example:
        >>> printable("a\tb")
        'a b'
    """
    shown = []
    for character in text:
        category = unicodedata.category(character)
        if character.isspace():
            shown.append(" ")
        elif category[0] == "C" or ord(character) & 0xFFFE == 0xFFFE:
            shown.append(_REPLACED)
        else:
            shown.append(character)
    return "".join(shown)


def shortened(text: str, most: int = 30) -> str:
    """The text, without its middle if it is longer.

    Example:
        >>> shortened("a" * 20 + "b" * 20, most=9)
        'aaaa\N{HORIZONTAL ELLIPSIS}bbbb'
    """
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def width_of(text: str, size: float) -> float:
    """The width of a text, at least that of the usual fonts without serifs."""
    return sum(map(_width, text)) * size / 100


def _width(character: str) -> int:
    code = ord(character) - 32
    if 0 <= code < len(_WIDTHS):
        return _WIDTHS[code]
    return 0 if unicodedata.combining(character) else 105
