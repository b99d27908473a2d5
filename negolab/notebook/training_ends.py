"""Before and after training: the first and the last evaluation, one market twice, the buyers that come out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from negolab.episodes import Episode
from negolab.metrics import BILATERAL_METRICS, METRICS, paired
from negolab.notebook.frames import numeric
from negolab.notebook.parameters import ParameterError
from negolab.notebook.training import (
    SELLER_METRICS,
    first_regime,
    held_out,
    larger,
    nearest,
    of_seeds,
    published_ends,
)
from negolab.notebook.training_runs import TrainingRun, TrainingStudy, records
from negolab.papers import multi_buyer, training
from negolab.papers.training import same_share
from negolab.store import Run


def before_after(study: TrainingStudy, metrics: Sequence[str], regime: str | None = None) -> pd.DataFrame:
    """The first and the last evaluation, and their difference, the paper's beside ours.

    Where the episodes were kept the difference is taken in pairs on the same markets, else from the two means; ``how``
    says which. Over several seeds it is the mean of each seed's difference. The paper's is from its means and errors.
    """
    chosen = regime or first_regime(study)
    changes = [_change(run, metrics, chosen) for run in study.runs]
    tests = held_out(study, metrics, chosen)
    rows: list[dict[str, Any]] = []
    for metric in metrics:
        mine = records(tests[tests["metric"] == metric])
        row: dict[str, Any] = {"metric": metric}
        for name, at in (("before", 0), ("after", -1)):
            one = mine[at] if mine else {"mean": None, "se": None, "n": None}
            row |= {name: one["mean"], f"{name}_se": one["se"], f"{name}_n": one["n"]}
        if len(study.runs) == 1:
            mean, se, n, how = changes[0][metric]
        else:
            mean, se, n = of_seeds([change[metric][0] for change in changes])
            how = "over seeds"
        row |= {"difference": mean, "difference_se": se, "difference_n": n, "how": how}
        rows.append(row | _paper_ends(study.task, metric))
    return numeric(rows)


def _paper_ends(task: str, metric: str) -> dict[str, Any]:
    row: dict[str, Any] = {"paper_before": None, "paper_after": None, "paper_after_se": None}
    for share, mean, se in published_ends(task, metric):
        row |= {"paper_before": mean} if share == 0 else {"paper_after": mean, "paper_after_se": se}
    return row


def _change(run: TrainingRun, metrics: Sequence[str], regime: str) -> dict[str, tuple[float, float, float, str]]:
    """Last minus first evaluation of one run by metric: mean, error, n, and how it was taken."""
    steps = sorted({int(step) for step in run.evals["step"]})
    folders = [run.evaluation(step, regime) for step in (steps[0], steps[-1])] if steps else [None]
    if len(steps) > 1 and None not in folders:
        named = {**METRICS, **BILATERAL_METRICS}
        first, last = (Run(folder).episodes(complete=True) for folder in folders if folder is not None)
        found, _ = paired(first, last, {name: named[name] for name in metrics})
        return {n: (_nan(e.mean), larger(_nan(e.se), _nan(e.se_clustered)), e.n, "in pairs") for n, e in found.items()}
    rows = {(row["step"], row["metric"]): row for row in records(run.evals) if row["regime"] == regime}
    made = {}
    for name in metrics:
        ends = [rows[step, name] for step in (steps[0], steps[-1])] if len(steps) > 1 else []
        errors = [larger(end["se"], end["se_clustered"]) for end in ends]
        change = ends[1]["mean"] - ends[0]["mean"] if ends else math.nan
        n = min((float(end["n"]) for end in ends), default=0.0)
        made[name] = (change, math.hypot(*errors) if ends else math.nan, n, "two means")
    return made


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def first_and_last(study: TrainingStudy, episode: int, regime: str | None = None) -> dict[str, Episode]:
    """One held-out market, played by the first run's learner before and after training; empty where the episodes were
    not kept. Raises ``NegolabError`` for an episode number that the evaluation does not have."""
    run, chosen = study.runs[0], regime or first_regime(study)
    steps = sorted({int(step) for step in run.evals["step"]})
    found: dict[str, Episode] = {}
    for name, step in (("before", steps[0]), ("after", steps[-1])) if len(steps) > 1 else ():
        folder = run.evaluation(step, chosen)
        if folder is None:
            continue
        kept = Run(folder)
        if episode >= kept.n:
            raise ParameterError(f"parameter episode is {episode}; the evaluation has episodes 0 to {kept.n - 1}")
        found[name] = next(e for e in kept.episodes(complete=True) if e.scenario.episode == episode)
    return found


def radar_rows(study: TrainingStudy) -> pd.DataFrame:
    """Figure 3: the paper's four sellers, then ours before and after training on held-out products."""
    names = [*SELLER_METRICS, "sell_above_cost_accuracy"]
    tests = {name: records(held_out(study, [name])) for name in names}
    rows: list[dict[str, Any]] = records(multi_buyer.table("figure3"))
    for when, at in (("before", 0), ("after", -1)) if all(tests.values()) else ():
        values = {name: found[at]["mean"] for name, found in tests.items()}
        rows.append({"seller": f"{study.model}, {when}", "source": "ours (trained here)", **values})
    return numeric(rows)


# -- the buyer ------------------------------------------------------------------------------------------------------


def last_of(study: TrainingStudy, regimes: Mapping[str, str], metrics: Sequence[str]) -> pd.DataFrame:
    """The last evaluation by regime (``regimes``: regime -> what it is called), one row for each metric."""
    rows: list[dict[str, Any]] = []
    for regime, name in regimes.items():
        for metric in metrics:
            tests = records(held_out(study, [metric], regime))
            if tests:
                row = tests[-1]
                rows.append({"against": name, "metric": metric, "mean": row["mean"], "se": row["se"], "n": row["n"]})
    return numeric(rows, ["against", "metric", "mean", "se", "n"])


def personas(study: TrainingStudy) -> dict[str, str]:
    """The evaluations of a buyer's run by the seller's persona (table 3 of 2604.09855)."""
    return {name: name.removeprefix("bilateral").removeprefix("_") or "neutral" for name in study.runs[0].regimes}


def gains(study: TrainingStudy) -> pd.DataFrame:
    """Games with gains from trade (MI: B > C) and without (CI: no deal is rational), before and after training."""
    rows: list[dict[str, Any]] = []
    for kind, name in (("mi", "MI, B > C"), ("ci", "CI, B <= C")):
        for metric in ("reward", "deal_rate", "overshoot_rate"):
            tests = records(held_out(study, [f"{metric}_{kind}"]))
            for when, at in (("before", 0), ("after", -1)) if tests else ():
                row = tests[at]
                one = {"games": name, "metric": metric, "when": when, "mean": row["mean"], "se": row["se"]}
                rows.append(one | {"n": row["n"]})
    return numeric(rows, ["games", "metric", "when", "mean", "se", "n"])


def opponents(study: TrainingStudy) -> pd.DataFrame:
    """The three checkpoints that become opponents out of distribution: the paper's steps, ours at the same share of the
    longest, the nearest evaluation's first offer over list price beside table 12's, and whether the model is kept."""
    table12 = {str(row["buyer_type"]): row for row in records(multi_buyer.table("table12"))}
    run, factor = study.runs[0], _budget_factor(study)
    kept = {int(p.name.removeprefix("step-")) for p in (run.folder / "checkpoints").glob("step-[0-9]*")}
    rows: list[dict[str, Any]] = []
    for step in training.OPPONENTS:
        at = round(same_share(step, training.OPPONENTS[-1], study.steps))
        near = nearest(held_out(study, ["first_offer_ratio"]), at)
        row: dict[str, Any] = {"opponent": f"iter-{step}", "paper_step": step, "share": step / training.OPPONENTS[-1]}
        row |= {"our_step": at, "evaluated_at": near["held_out_step"]}
        for name, key in (("first offer / list price", "held_out"), ("first offer / list price, se", "held_out_se")):
            row[name] = None if near[key] is None else near[key] * factor
        row["paper, table 12"] = float(table12[f"iter-{step}"]["first_offer_ratio"])
        model = (run.folder / "model").is_dir() and at == study.steps
        row["kept"] = "model" if model else f"checkpoints/step-{at:06d}" if at in kept else "no"
        rows.append(row)
    return numeric(rows)


def _budget_factor(study: TrainingStudy) -> float:
    """The buyer's budget over the list price (1.1: 0.8)."""
    low, high = study.runs[0].manifest["task"]["regimes"][0]["budget_tiers"][0]
    return float(low + high) / 2
