"""``negolab pocket``: the small language model that comes along, and how it was made."""

import argparse
import json
from typing import Any

from negolab.commands.arguments import whole
from negolab.scenario import MAX_SEED


def add_parser(commands: Any) -> None:
    """Register the command and its two actions."""
    parser = commands.add_parser(
        "pocket",
        help="make the pocket model, or list those that come along",
        description="The pocket model is a language model of a million parameters that speaks the whole protocol. "
        "It plays as `transformers:pocket-base` and so on, and is what `negolab train --profile laptop` begins with.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="the pocket models that come along", description="What comes along.")
    shown.set_defaults(run=run_list)
    made = actions.add_parser(
        "pretrain",
        help="make the base model from nothing",
        description="Make the base model from nothing, on scripted play with invented products: about half an hour on "
        "two cores. The same seed, threads and versions give the same model. Run the same command again to resume: an "
        "interrupted or killed run goes on after its last checkpoint, to the same model. Checkpoints lie in "
        "DIR/unfinished until the model is saved.",
    )
    made.add_argument("--out", required=True, metavar="DIR", help="a new folder, or this run's own to resume it")
    made.add_argument("--seed", type=whole(0, MAX_SEED), default=0, help="of everything drawn (0)")
    made.add_argument("--episodes", type=whole(1, 10_000_000), help="how many scripted episodes to read")
    made.add_argument("--from", dest="start", metavar="DIR", help="go on from this pocket model (with another seed)")
    made.add_argument("--muon-lr", type=float, help="first learning rate of the matrices; it falls to zero")
    made.add_argument("--adamw-lr", type=float, help="first learning rate of embeddings and norms")
    made.add_argument("--threads", type=whole(1, 1024), help="processor threads; default: torch's choice")
    made.add_argument(
        "--save-every", type=whole(1, 10_000_000), metavar="STEPS", help="between checkpoints (150, about 3 minutes)"
    )
    made.set_defaults(run=run_pretrain)


def run_list(args: argparse.Namespace) -> int:
    """Print name, size and origin of every pocket model."""
    from negolab.policies.spec import pocket_models

    for name, folder in pocket_models().items():
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        origin = "trained" if (folder / "training.json").exists() else "pretrained"
        print(f"{name}  {size:.1f} MB  {origin}")
    return 0


def run_pretrain(args: argparse.Namespace) -> int:
    """Make the base and print what became of it."""
    from negolab.errors import NegolabError
    from negolab.report import note

    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise NegolabError(f"{error.name} is needed to make a model: pip install 'negolab[train]'") from None
    from negolab.pocket.pretrain import SAVE_EVERY, pretrain
    from negolab.pocket.settings import PocketSettings

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    given = {name: getattr(args, name) for name in ("episodes", "muon_lr", "adamw_lr")}
    for name in ("muon_lr", "adamw_lr"):
        if given[name] is not None and not 0 < given[name] <= 1:
            raise NegolabError(f"--{name.replace('_', '-')} is {given[name]}; allowed: above 0, at most 1")
    settings = PocketSettings(seed=args.seed, **{name: value for name, value in given.items() if value is not None})
    save_every = SAVE_EVERY if args.save_every is None else args.save_every
    found = pretrain(settings, args.out, start=args.start, save_every=save_every, say=note)
    print(json.dumps(found))
    return 0
