"""``negolab sft``: supervised fine-tuning on recorded or scripted episodes."""

import argparse
from typing import TYPE_CHECKING, Any

from negolab.commands.arguments import names, whole
from negolab.commands.training import add_list, add_settings, play

if TYPE_CHECKING:
    from negolab.trainer.sft import Tuned


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "sft",
        help="fine-tune a language model on recorded or scripted episodes",
        description="Trains a model on what a seat said in recorded episodes, in scripted ones, or both. Run the same "
        "command again to resume: an interrupted run goes on after its last checkpoint.",
    )
    parser.add_argument("--model", metavar="NAME", help="a folder with a model, a pocket model, or a name on the hub")
    parser.add_argument("--episodes", nargs="+", metavar="RUN", help="finished run folders, of any game")
    parser.add_argument(
        "--teacher", metavar="NAME", help="play scripted markets with this seller: prober, ..., or module:factory"
    )
    parser.add_argument(
        "--regimes",
        type=names,
        metavar="A,B",
        help="regimes of the scripted games: in_distribution, ood_diverse, bilateral, trade (default with --teacher: "
        "the first two); weights and knobs by --set regimes.NAME.KEY=VALUE",
    )
    parser.add_argument(
        "--scripted",
        type=whole(0, 10_000_000),
        metavar="N",
        help="scripted episodes in all; 0: none, whatever the profile says",
    )
    parser.add_argument(
        "--seats", metavar="WHO", help="whose replies are learnt: learner (default), seller, buyers, buyer-1, ..., all"
    )
    add_settings(parser, "smoke, laptop, trade_8b, trade_14b, or a YAML file (default: none)")
    parser.add_argument("--dry-run", action="store_true", help="check the settings, print the data's statistics, leave")
    add_list(parser, "negolab.trainer.sft_settings:SftSettings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the profile, learn, say what became of it."""
    from negolab.errors import NegolabError
    from negolab.trainer import sft
    from negolab.trainer.sft_settings import load_sft

    given = {name: getattr(args, name) for name in ("model", "teacher", "scripted", "seats")}
    over: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.episodes is not None:
        over["runs"] = args.episodes
    settings = load_sft(args.profile or "", args.changes, over, args.regimes)
    if args.dry_run:
        if not settings.model:
            raise NegolabError("--model is required: its tokenizer says what a token is")
        data = sft.read(settings)
        for line in [*data.lines(), _amount(sft.steps_of(settings, len(data.train)), settings.batch)]:
            print(line)
        return 0
    found: Tuned | None = play(args, settings, sft.tune, say=_say)
    if found is None:
        return 2
    print(summary(found))
    return 0


def _say(line: str) -> None:
    # As it stands: the table of the data has columns.
    import sys
    from contextlib import suppress

    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _amount(steps: int, batch: int) -> str:
    from negolab.trainer.progress import counted

    return f"{counted(steps, 'step')} of {counted(batch, 'sample')}."


def summary(found: "Tuned") -> str:
    """Where a run lies, and what it did."""
    from negolab.trainer.progress import counted

    lines = [f"{counted(found.steps, 'step')}; {found.folder}"]
    if found.steps_now == 1:
        lines.append(f"loss {found.first_loss:.4f} in this step; {found.seconds:.2f} seconds")
    elif found.steps_now:
        lines.append(
            f"loss {found.first_loss:.4f} in the first tenth of {counted(found.steps_now, 'step')}, "
            f"{found.last_loss:.4f} in the last; {found.seconds / found.steps_now:.2f} seconds a step"
        )
    return "\n".join(lines)
