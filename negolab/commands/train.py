"""``negolab train``: reinforcement learning of one seat, from a profile."""

import argparse
from typing import TYPE_CHECKING, Any

from negolab.commands.arguments import whole
from negolab.errors import NegolabError

if TYPE_CHECKING:
    from negolab.trainer.loop import Trained
    from negolab.trainer.settings import TrainSettings


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "train",
        help="train a language model to bargain, by reinforcement learning on its own episodes",
        description="Trains the model that a profile names. Run the same command again to resume: an interrupted run "
        "goes on after its last checkpoint.",
    )
    parser.add_argument(
        "--profile", required=True, metavar="NAME", help="smoke, laptop, laptop_buyer, gpu, gpu_buyer, or a YAML file"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="a setting in place of the profile's; deeper ones as lora.rank=8",
    )
    parser.add_argument("--out", metavar="DIR", help="run folder: new, or this run's own to resume it")
    group = parser.add_argument_group("dry run")
    group.add_argument("--dry-run", action="store_true", help="check the settings, say what is needed, and leave")
    group.add_argument("--gpu", metavar="KIND", help="estimate for this kind of GPU instead of the one that is here")
    group.add_argument("--gpus", type=whole(1, 1024), metavar="N", help="and for so many of them")
    parser.add_argument("--list-settings", action=_ListSettings, help="print the settings and leave")
    parser.set_defaults(run=run)


class _ListSettings(argparse.Action):
    """``--list-settings``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        from negolab.trainer.settings import settings_help

        print(settings_help())
        parser.exit()


def run(args: argparse.Namespace) -> int:
    """Read the profile, train, say where the time went."""
    from negolab.report import note
    from negolab.trainer.settings import load_profile

    settings = load_profile(args.profile, args.changes)
    if args.dry_run:
        return _dry_run(settings, args)
    if args.gpu is not None or args.gpus is not None:
        raise NegolabError("--gpu and --gpus go with --dry-run")
    if not args.out:
        raise NegolabError("--out is required: the run folder")
    from negolab.trainer.loop import train

    found = train(settings, args.out, say=note)
    print(summary(found))
    return 0


def _dry_run(settings: "TrainSettings", args: argparse.Namespace) -> int:
    """Print what the run would do and need."""
    from negolab.trainer import gpu
    from negolab.trainer.dry_run import dry_run

    box = gpu.box_here() if args.gpu is None else gpu.box(args.gpu, args.gpus or 1)
    for line in dry_run(settings, box._replace(gpus=args.gpus or box.gpus), args.out):
        print(line)
    return 0


def summary(found: "Trained") -> str:
    """Where a run lies, and where its seconds went."""
    lines = [f"{found.steps} steps; the trained model: {found.folder / 'model'}"]
    if found.steps_now:
        each = {name: seconds / found.steps_now for name, seconds in found.seconds.items() if name != "whole"}
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.items())
        whole = found.seconds["whole"] / found.steps_now
        lines.append(f"seconds for each of {found.steps_now} steps: {parts}; in all {whole:.2f}")
    return "\n".join(lines)
