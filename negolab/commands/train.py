"""``negolab train``: reinforcement learning of one seat, from a profile."""

import argparse
from typing import TYPE_CHECKING, Any

from negolab.commands.arguments import whole
from negolab.commands.training import add_list, add_settings, play
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
    add_settings(
        parser,
        "smoke, laptop, laptop_buyer, gpu, gpu_buyer, gpu_items, trade_8b, trade_14b, or a YAML file",
        required=True,
    )
    group = parser.add_argument_group("dry run")
    group.add_argument("--dry-run", action="store_true", help="check the settings, say what is needed, and leave")
    group.add_argument("--gpu", metavar="KIND", help="estimate for this kind of GPU instead of the one that is here")
    group.add_argument("--gpus", type=whole(1, 1024), metavar="N", help="and for so many of them")
    add_list(parser, "negolab.trainer.settings:TrainSettings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the profile, train, say where the time went."""
    from negolab.report import note
    from negolab.trainer.settings import load_profile

    settings = load_profile(args.profile, args.changes)
    if args.dry_run:
        return _dry_run(settings, args)
    if args.gpu is not None or args.gpus is not None:
        raise NegolabError("--gpu and --gpus go with --dry-run")
    from negolab.trainer.loop import train

    found: Trained | None = play(args, settings, train, say=note)
    if found is None:
        return 2
    print(summary(found))
    return 0


def _dry_run(settings: "TrainSettings", args: argparse.Namespace) -> int:
    """Print what the run would do and need."""
    from negolab.trainer import gpu
    from negolab.trainer.dry_run import dry_run

    box = gpu.box_here() if args.gpu is None else gpu.box(args.gpu, args.gpus or 1)
    if args.gpus is not None:
        box = box._replace(gpus=args.gpus, absent=False)
    for line in dry_run(settings, box, args.out):
        print(line)
    return 0


def summary(found: "Trained") -> str:
    """Where a run lies, and where its seconds went."""
    from negolab.trainer.progress import counted

    lines = [f"{counted(found.steps, 'step')}; the trained model: {found.folder / 'model'}"]
    if found.steps_now:
        each = {name: seconds / found.steps_now for name, seconds in found.seconds.items() if name != "whole"}
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.items())
        whole = found.seconds["whole"] / found.steps_now
        of = "of this step" if found.steps_now == 1 else f"for each of {counted(found.steps_now, 'step')}"
        lines.append(f"seconds {of}: {parts}; in all {whole:.2f}")
    return "\n".join(lines)
