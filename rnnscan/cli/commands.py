"""The classes of the commands. Their help shows no type for a flag, because it takes no value."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command, `--help` among them."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The app."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters before the command, `--help` among them."""
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""  # typer shows `<bool>` for None
    return params
