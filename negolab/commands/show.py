"""``negolab show``."""

from typing import Any


def add_parser(commands: Any) -> None:
    """Register the command."""
