"""Training runs as the notebooks on training read them: finished ones, committed ones, or a smoke run made here.

A run's folder is what ``negolab train`` writes. Of a committed run (``figures/laptop/training/NAME``) only the tables
and the manifest are there, so that curves can be drawn without torch and without training. Several runs are seeds of
one experiment: they may differ in nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negolab.errors import NegolabError
from negolab.notebook.parameters import COMMITTED, ParameterError, check
from negolab.notebook.profiles import committed_place
from negolab.notebook.study import data_name, output_folder, write_results
from negolab.scenario import PERSONAS
from negolab.store import code_sha256

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from negolab.notebook.frames import Table

NEEDED = ("torch", "transformers", "trl", "accelerate", "datasets")
_FORMAT = "negolab-training-1"
_SMALL = 20_000_000
"""A model trained whole with fewer parameters than this is the pocket model or its like."""
_TEXT = ("regime", "metric")
_MAY_DIFFER = ("seed", "save_every", "keep_checkpoints", "report_to", "sampler_batch")


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training run, read from its folder. ``read_run`` makes it."""

    folder: Path
    manifest: Mapping[str, Any]
    metrics: pd.DataFrame
    """A row per step: means over the step's episodes, NaN for what does not exist."""
    evals: pd.DataFrame
    """``step, regime, metric, mean, se, se_clustered, n``."""
    timings: pd.DataFrame
    """Seconds by step."""

    @property
    def steps(self) -> int:
        """Steps that the run owes in all."""
        return int(self.manifest["settings"]["steps"])

    @property
    def seed(self) -> int:
        """Of markets and replies."""
        return int(self.manifest["settings"]["seed"])

    @property
    def task(self) -> str:
        """``seller`` or ``buyer``, or a seller of several items: its metrics are others, and no notebook draws them."""
        name = str(self.manifest["task"]["name"])
        return f"{name} of several items" if "train_clusters" in self.manifest["task"] else name

    @property
    def regimes(self) -> list[str]:
        """The held-out evaluations, in the order they were played."""
        return list(dict.fromkeys(self.evals["regime"]))

    def evaluation(self, step: int, regime: str) -> Path | None:
        """The run folder of one evaluation, where its episodes were kept."""
        folder = self.folder / "evals" / f"step-{step:06d}" / regime
        return folder if (folder / "manifest.json").is_file() else None


@dataclass(frozen=True, eq=False)
class TrainingStudy:
    """One notebook's training runs and folder, all checked. ``begin_training`` makes it."""

    name: str
    task: str
    runs: tuple[TrainingRun, ...]
    out: Path
    smoke: bool = False
    """Whether the run was made by the notebook itself: it shows that all works, and nothing about training."""
    notes: tuple[str, ...] = field(default=())

    @property
    def steps(self) -> int:
        """Steps of each run."""
        return self.runs[0].steps

    @property
    def model(self) -> str:
        """What was trained, for labels."""
        manifest = self.runs[0].manifest
        if not manifest["adapter"] and manifest["trained_parameters"] < _SMALL:
            return "pocket model (small scale)"
        return str(manifest["base"]["model"])

    @property
    def about(self) -> str:
        """The runs in a line, for titles and captions."""
        first = self.runs[0]
        settings, data = first.manifest["settings"], first.manifest["task"]["data"]["name"]
        seeds = ", ".join(str(run.seed) for run in self.runs)
        size = f"{self.steps} steps of {settings['groups']} x {settings['group_size']} episodes"
        what = "SMOKE RUN, shows nothing about training; " if self.smoke else ""
        return f"{what}{self.model}, {size}, seed{'s' if len(self.runs) > 1 else ''} {seeds}; {data_name(data)}"

    def __repr__(self) -> str:  # a notebook keeps it beside the Markdown
        return f"TrainingStudy({self.name!r}: {self.about})"

    def _repr_markdown_(self) -> str:
        manifest = self.runs[0].manifest
        trained = f"{manifest['trained_parameters']:,} parameters are trained"
        lines = [
            f"- **runs:** {self.about}",
            f"- **model:** {manifest['base']['model']}, {trained}",
            *(f"- **run folder:** `{run.folder}`" for run in self.runs),
            f"- **folder:** `{self.out}`",
            *(f"- **note:** {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def title(self, text: str) -> str:
        """A figure's title that says which runs it was drawn from."""
        return f"{text}\nours: {self.about}"

    def table(self, frame: Any, caption: str, arxiv: str, markdown: str = "") -> Table:
        """A table of results with its caption and data; ``arxiv``: the paper whose rows are among them."""
        from negolab.notebook.frames import Table

        return Table(frame, f"{caption} Ours: {self.about}.", self.about, markdown, arxiv)

    def write(
        self,
        tables: Mapping[str, Table] | None = None,
        figures: Mapping[str, Figure] | None = None,
        transcripts: Mapping[str, str] | None = None,
    ) -> None:
        """Write tables (CSV and Markdown), figures (PNG and SVG) and transcripts (HTML), and print the last line."""
        write_results(self.out, tables, figures, transcripts)


def begin_training(name: str, task: str, *, runs: str = "", out: str = "", **more: Any) -> TrainingStudy:
    """Check a notebook's parameters and open its training runs, or make a smoke run where ``runs`` is empty.

    ``runs``: folders separated by commas, or ``committed``. ``more`` are parameters that the notebook uses itself.
    Raises ``ParameterError``, in one line, before anything is trained.
    """
    check({"runs": runs, "out": out, **more})
    notes: list[str] = []
    folders = _folders(runs, task, notes)
    read = [read_run(folder) for folder in folders]
    mine = [run for run in read if run.task == task]
    notes += [f"left out: {run.folder.name} trains the {run.task}, not the {task}" for run in read if run.task != task]
    if read and not mine:
        raise ParameterError(f"parameter runs: none of the {len(read)} runs trains the {task}; give others")
    if not mine:
        _check_packages()
    notes += _same_experiment(mine)
    decides = [[run.manifest["manifest_sha256"], len(run.metrics)] for run in mine] or code_sha256()
    place = output_folder(out, name, [decides, task])
    if mine:
        return TrainingStudy(name, task, tuple(sorted(mine, key=lambda run: run.seed)), place, notes=tuple(notes))
    return TrainingStudy(name, task, (smoke_run(task, place),), place, smoke=True, notes=tuple(notes))


def committed(task: str) -> list[Path]:
    """The runs kept beside the code that train ``task``; none where only the package is installed."""
    found = [path.parent for path in sorted(committed_place().glob("*/manifest.json"))]
    return [folder for folder in found if read_run(folder).task == task]


def _folders(runs: str, task: str, notes: list[str]) -> list[Path]:
    named = [part.strip() for part in runs.split(",") if part.strip()]
    if named == [COMMITTED]:
        found = committed(task)
        if not found:
            notes.append(f"no run that trains the {task} is kept beside the code: a smoke run instead")
        return found
    return [Path(part).expanduser().absolute() for part in named]


def _check_packages() -> None:
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            hint = "pip install 'negolab[train]', or give finished runs"
            raise ParameterError(f"parameter runs is empty and a smoke run needs the package {name}: {hint}")


# -- reading --------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> TrainingRun:
    """A training run's manifest and tables. Raises ``ParameterError`` where they are not all there or not whole."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ParameterError(f"parameter runs: {folder} is no training run: it has no manifest.json")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(f"parameter runs: {path} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ParameterError(f"parameter runs: {folder} is no training run of format {_FORMAT}")
    metrics, evals, timings = (_table(folder / f"{name}.csv") for name in ("metrics", "eval", "timings"))
    if not len(metrics):
        raise ParameterError(f"parameter runs: {folder} has not finished a step yet")
    return TrainingRun(folder, manifest, metrics, evals, timings)


def _table(path: Path) -> pd.DataFrame:
    """One of a run's tables: numbers, NaN for ``n/a``."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        numbers = {c: pd.to_numeric(frame[c].replace("n/a", "")) for c in frame.columns if c not in _TEXT}
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ParameterError(f"parameter runs: {path} cannot be read: {reason}") from None
    return frame.assign(**numbers)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows as plain mappings."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _same_experiment(runs: Sequence[TrainingRun]) -> list[str]:
    """What a reader should know of the runs together. Raises ``ParameterError`` where they are not seeds of one."""
    notes = []
    for run in runs:
        done = len(run.metrics)
        if done < run.steps:
            notes.append(f"{run.folder.name} is not finished: {done} of {run.steps} steps")
        if run.seed != runs[0].seed or run is runs[0]:
            different = [key for key, value in _fixed(run).items() if value != _fixed(runs[0]).get(key)]
            if different:
                first = runs[0].folder.name
                raise ParameterError(
                    f"parameter runs: {run.folder.name} and {first} are no seeds of one experiment: "
                    f"they differ in {', '.join(different)}"
                )
    seeds = [run.seed for run in runs]
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise ParameterError(f"parameter runs: two runs have the seed {twice}; give each seed once")
    if len({(run.manifest["code_sha256"], run.manifest["trainer_sha256"]) for run in runs}) > 1:
        notes.append("the runs were made by different versions of the code")
    return notes


def _fixed(run: TrainingRun) -> dict[str, Any]:
    """What runs of one experiment have in common, flat by name."""
    settings = {f"settings.{k}": v for k, v in run.manifest["settings"].items() if k not in _MAY_DIFFER}
    return settings | {name: run.manifest.get(name) for name in ("task", "base", "adapter", "dtype")}


# -- the smoke run --------------------------------------------------------------------------------------------------


def smoke_run(task: str, place: Path) -> TrainingRun:
    """Train with the profile ``smoke`` in ``place/training-TASK``, or go on with what is there.

    The model is the pocket model's base where it comes along, else an untaught one of the same kind, made here.
    Raises ``ParameterError`` where training cannot run.
    """
    from negolab.trainer.loop import train
    from negolab.trainer.settings import load_profile

    folder = place / f"training-{task}"
    changes: dict[str, Any] = {"task": task}
    if task == "buyer":
        changes["task_options"] = {"eval_personas": list(PERSONAS)}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")  # a notebook without widgets
            changes["model"] = _smoke_model(place)
            with _one_thread():
                train(load_profile("smoke").changed(changes), folder, progress=False)
    except NegolabError as error:
        raise ParameterError(f"the smoke run failed: {error}") from None
    return read_run(folder)


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small a model gains nothing from more threads, and where cores are shared they wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _smoke_model(place: Path) -> str:
    from negolab.policies.spec import pocket_models

    if "pocket-base" in pocket_models():
        return str(pocket_models()["pocket-base"])
    folder, half = place / "pocket-untaught", place / "pocket-untaught.making"
    if not folder.exists():
        from negolab.pocket.pretrain import PocketSettings, pretrain
        from negolab.policies.hf_model import quiet

        shutil.rmtree(half, ignore_errors=True)
        tiny = PocketSettings(episodes=120, hidden=32, layers=2, heads=2, kv_heads=1, feed_forward=64)
        with quiet():
            pretrain(tiny, half, progress=False, say=lambda line: None)
        half.rename(folder)
    return str(folder)
