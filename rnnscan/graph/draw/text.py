"""Text of pictures: characters that every reader shows."""

import unicodedata


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
