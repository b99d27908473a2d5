"""What ``negolab train`` and ``negolab sft`` have in common: how settings are given, and how a run of them ends."""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any


def add_settings(parser: argparse.ArgumentParser, profiles: str, required: bool = False) -> None:
    """``--profile``, ``--set``, ``--out`` and ``--quiet``. ``profiles``: which there are, for the help."""
    parser.add_argument("--profile", required=required, metavar="NAME", help=profiles)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="a setting in place of the profile's; deeper ones as lora.rank=8",
    )
    parser.add_argument("--out", metavar="DIR", help="run folder: new, or this run's own to resume it")
    parser.add_argument("--quiet", action="store_true", help="show no progress: neither a bar nor lines in its place")


def add_list(parser: argparse.ArgumentParser, of: str) -> None:
    """``--list-settings``. ``of``: the settings' class as ``module:name``, imported only when it is asked for."""
    parser.add_argument("--list-settings", action=_ListSettings, const=of, help="print the settings and leave")


class _ListSettings(argparse.Action):
    """Print and leave, whatever else was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        from negolab.trainer.options import explained

        module, _, name = str(self.const).partition(":")
        print(explained(getattr(import_module(module), name)))
        parser.exit()


def play(args: argparse.Namespace, settings: Any, train: Callable[..., Any], **options: Any) -> Any | None:
    """What ``train`` makes of ``settings`` in the folder that ``args`` names; None where another process of the run
    has failed, which says why. Raises ``NegolabError`` where there is no folder."""
    from negolab.errors import NegolabError
    from negolab.trainer.processes import Elsewhere

    if not args.out:
        raise NegolabError("--out is required: the run folder")
    try:
        return train(settings, args.out, progress=False if args.quiet else None, **options)
    except Elsewhere:
        return None
