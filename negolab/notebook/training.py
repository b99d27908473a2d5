"""Frames of training runs: curves over steps, the papers' marked steps beside ours, before and after, phases.

Error bars: of one run, the standard error over episodes, where the run's tables hold it or it follows from the mean
(rates, whose episodes are zeros and ones); of several runs, the standard error over seeds. Rollouts of one market are
treated as independent in the former, as in the run's own tables; held-out points take the larger of the plain and the
clustered error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from negolab.metrics import FOUR_PHASES
from negolab.notebook.frames import numeric
from negolab.notebook.training_runs import TrainingStudy, records
from negolab.papers import multi_buyer, training
from negolab.papers.training import Phases, moving_mean, same_share, window_of
from negolab.plots.training import Axis

PAPER_MODEL = "paper (30B)"
SELLER_METRICS = tuple(metric for metric, _ in training.CURVES)
BUYER_METRICS = FOUR_PHASES
_UNTRAINED, _TRAINED = (f"Qwen3-30B-A3B-Instruct-2507-{state}" for state in ("untrained", "trained"))


def axis_of(study: TrainingStudy) -> Axis:
    """The common axis of a study's run and its paper's."""
    arxiv = training.SELLER if study.task == "seller" else training.BUYER
    where = "section 4.3 and figures 4 to 9; held out: table 9" if study.task == "seller" else "as reported by others"
    return Axis(study.steps, training.phases_of(arxiv)[-1].last, study.model, PAPER_MODEL, arxiv, where)


# -- curves ---------------------------------------------------------------------------------------------------------


def curves(study: TrainingStudy, metrics: Sequence[str]) -> pd.DataFrame:
    """``metric, step, mean, se, moving, n, of``: rollouts of each step that all of the study's runs have done.

    ``moving`` is the moving mean that phases are told by; ``of`` says whether ``n`` counts episodes or seeds.
    """
    rows: list[dict[str, Any]] = []
    tables = [{int(row["step"]): row for row in records(run.metrics)} for run in study.runs]
    steps = [step for step in tables[0] if all(step in table for table in tables)]
    for metric in metrics:
        found = []
        for step in steps:
            if len(tables) == 1:
                mean, se, n = _of_episodes(tables[0][step], metric)
            else:
                mean, se, n = of_seeds([float(table[step][metric]) for table in tables])
            found.append((step, mean, se, n))
        moving = moving_mean([mean for _, mean, _, _ in found], window_of(study.steps))
        of = "episodes" if len(tables) == 1 else "seeds"
        for (step, mean, se, n), smooth in zip(found, moving, strict=True):
            row = {"metric": metric, "step": step, "mean": mean, "se": se, "moving": smooth, "n": n}
            rows.append(row | {"of": of})
    return numeric(rows, ["metric", "step", "mean", "se", "moving", "n", "of"])


def _of_episodes(row: Mapping[str, Any], metric: str) -> tuple[float, float, float]:
    """Mean, standard error and number of episodes of one step of one run; NaN for what its table does not tell."""
    mean, n = float(row[metric]), float(row["episodes"])
    if metric == "top_buyer_rate":  # over deals
        n = float(round(n * float(row["deal_rate"])))
    elif metric in ("surplus_ratio", "bargained_ratio", "first_offer_ratio"):
        # Deals, too, but without those that have nothing to gain; or games that began with a price.
        n = float(round(n * float(row["deal_rate"]))) if metric == "surplus_ratio" else math.nan
    if math.isnan(mean):
        return math.nan, math.nan, n
    if metric == "reward":
        return mean, float(row["reward_se"]), n
    if metric.endswith("_rate"):
        return mean, math.sqrt(max(0.0, mean * (1 - mean)) / (n - 1)) if n > 1 else math.nan, n
    return mean, math.nan, n


def of_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over the runs that have a value, its standard error over them, and how many they are."""
    kept = [value for value in values if not math.isnan(value)]
    if not kept:
        return math.nan, math.nan, 0.0
    mean = math.fsum(kept) / len(kept)
    if len(kept) == 1:
        return mean, math.nan, 1.0
    spread = math.fsum((value - mean) ** 2 for value in kept) / (len(kept) - 1)
    return mean, math.sqrt(spread / len(kept)), float(len(kept))


def held_out(study: TrainingStudy, metrics: Sequence[str], regime: str | None = None) -> pd.DataFrame:
    """``metric, step, mean, se, n, of``: the evaluations on held-out products of one regime (default: the first)."""
    chosen = regime or first_regime(study)
    rows: list[dict[str, Any]] = []
    for metric in metrics:
        by_step: dict[int, list[dict[str, Any]]] = {}
        for run in study.runs:
            part = run.evals[(run.evals["regime"] == chosen) & (run.evals["metric"] == metric)]
            for row in records(part):
                by_step.setdefault(int(row["step"]), []).append(row)
        for step, found in sorted(by_step.items()):
            if len(study.runs) == 1:
                mean, se, n = found[0]["mean"], larger(found[0]["se"], found[0]["se_clustered"]), found[0]["n"]
            else:
                mean, se, n = of_seeds([row["mean"] for row in found])
            of = "episodes" if len(study.runs) == 1 else "seeds"
            rows.append({"metric": metric, "step": step, "mean": mean, "se": se, "n": n, "of": of})
    return numeric(rows, ["metric", "step", "mean", "se", "n", "of"])


def first_regime(study: TrainingStudy) -> str:
    """The regime that was evaluated first; empty without an evaluation."""
    regimes = study.runs[0].regimes
    return regimes[0] if regimes else ""


def larger(one: float, other: float) -> float:
    """The larger of two errors, or the one that exists; else NaN."""
    known = [value for value in (one, other) if not math.isnan(value)]
    return max(known, default=math.nan)


# -- phases ---------------------------------------------------------------------------------------------------------


def phases(study: TrainingStudy, found: pd.DataFrame) -> Phases:
    """The phases in the curves ``found`` (the mean over seeds where there are several) by the task's rule."""
    rule, names = _rule(study.task)
    return rule(*(found[found["metric"] == name]["mean"].tolist() for name in names))


def _rule(task: str) -> tuple[Any, tuple[str, str]]:
    if task == "seller":
        return training.seller_phases, ("below_cost_rate", "deal_rate")
    return training.buyer_phases, ("first_offer_ratio", "deal_rate")


def phase_table(study: TrainingStudy, mean: Phases) -> pd.DataFrame:
    """A row per phase: the paper's steps, ours in the mean, and each seed's; a phase that is absent is empty."""
    rule, names = _rule(study.task)
    axis = axis_of(study)
    columns: dict[str, Phases] = {"ours": mean}
    if len(study.runs) > 1:
        columns |= {f"seed {r.seed}": rule(*(r.metrics[name].tolist() for name in names)) for r in study.runs}
    rows = []
    for phase in training.phases_of(axis.arxiv):
        ends = tuple(round(100 * at / axis.paper_steps) for at in (phase.first, phase.last))
        row: dict[str, Any] = {"phase": phase.number, "name": phase.name, "paper": f"{phase.first}–{phase.last}"}
        row["paper, % of training"] = f"{ends[0]}–{ends[1]}"
        for name, told in columns.items():
            mine = next((p for p in told.found if p.number == phase.number), None)
            row[name] = "absent" if mine is None else f"{mine.first}–{mine.last}"
            if name == "ours":
                share = (
                    "" if mine is None else f"{100 * mine.first / study.steps:.0f}–{100 * mine.last / study.steps:.0f}"
                )
                row["ours, % of training"] = share or "absent"
        rows.append(row)
    return pd.DataFrame(rows)


def phase_changes(study: TrainingStudy, found: pd.DataFrame, told: Phases) -> pd.DataFrame:
    """What each of our phases changed, metric by metric: the moving mean at its beginning and end, the difference, and
    the paper's difference over its phase of that number where it states both ends (seller only). Where no phase was
    told it is the whole run."""
    marks = seller_marks() if study.task == "seller" else None
    rows: list[dict[str, Any]] = []
    whole = training.Phase(0, "the whole run", 0, study.steps)
    for phase in told.found or (whole,):
        for metric in dict.fromkeys(found["metric"]):
            curve = found[found["metric"] == metric]["moving"].tolist()
            start, end = (curve[min(at, len(curve) - 1)] for at in (phase.first, phase.last))
            row = {"phase": phase.number, "name": phase.name, "metric": metric, "start": start, "end": end}
            row["change"] = end - start
            rows.append(row if marks is None else row | {"paper_change": _paper_change(marks, metric, phase.number)})
    return numeric(rows)


def _paper_change(marks: pd.DataFrame, metric: str, number: int) -> float | None:
    if number == 0:
        return None
    theirs = training.phases_of(training.SELLER)[number - 1]
    stated = {row["first_step"]: float(row["low"]) for row in records(marks) if row["metric"] == metric}
    if theirs.first not in stated or theirs.last not in stated:
        return None
    return stated[theirs.last] - stated[theirs.first]


# -- the paper's marked steps ---------------------------------------------------------------------------------------


def seller_marks() -> pd.DataFrame:
    """What 2607.05863 says of its curves, as ``training_curve`` draws it; a step without a number is left in."""
    marks = training.table(training.SELLER, "training_marks")
    return marks.assign(first_step=marks["step"], last_step=marks["step"], low=marks["value"], high=marks["value"])


def buyer_marks() -> pd.DataFrame:
    """What is reported of the curves of 2604.09855, as ``training_curve`` draws it."""
    return training.table(training.BUYER, "training_ranges")


def published_ends(task: str, metric: str) -> list[tuple[float, float, float]]:
    """The paper's held-out results as (share of training, mean, standard error or NaN): the seller before and after
    (table 9 of 2607.05863), the buyer after (table 1 of 2604.09855)."""
    if task == "seller":
        rows = {str(row["seller"]): row for row in records(multi_buyer.table("table9"))}
        ends = ((0.0, rows[_UNTRAINED]), (1.0, rows[_TRAINED]))
        return [(at, float(row[metric]), float(row.get(f"{metric}_se", math.nan))) for at, row in ends if metric in row]
    results = {str(row["metric"]): float(row["value"]) for row in records(training.table(training.BUYER, "results"))}
    return [(1.0, results[metric], math.nan)] if metric in results else []


def marked_steps(study: TrainingStudy, marks: pd.DataFrame) -> pd.DataFrame:
    """The paper's marked steps beside ours at the same share of training.

    ``ours`` is the mean of a window of steps around that share, ``ours_se`` its standard error over the steps of the
    window (one run) or over seeds; ``ours_n`` counts these. ``held_out`` is the nearest evaluation, and the step it
    was made at.
    """
    axis, window = axis_of(study), window_of(study.steps)
    rows: list[dict[str, Any]] = []
    for mark in records(marks):
        first, last = (same_share(mark[name], axis.paper_steps, axis.steps) for name in ("first_step", "last_step"))
        row: dict[str, Any] = {"metric": mark["metric"], "paper_step": _span(mark["first_step"], mark["last_step"])}
        row |= {"share": mark["last_step"] / axis.paper_steps, "paper": mark["low"]}
        if (marks["low"] != marks["high"]).where(marks["low"].notna(), False).any():
            row["paper_high"] = mark["high"]
        low, high, (mean, se, n) = _around(study, mark["metric"], first, last, window)
        row |= {"our_steps": _span(low, high), "ours": mean, "ours_se": se, "ours_n": n}
        rows.append(row | nearest(held_out(study, [mark["metric"]]), last) | {"stated in": mark["source"]})
    return numeric(rows)


def _span(first: float, last: float) -> str:
    return f"{first:.0f}" if first == last else f"{first:.0f}–{last:.0f}"


def _around(
    study: TrainingStudy, metric: str, first: float, last: float, window: int
) -> tuple[int, int, tuple[float, float, float]]:
    """The first and last step of the window from ``first`` to ``last``, and the mean over it."""
    done = min(len(run.metrics) for run in study.runs)
    half = window // 2
    low, high = max(0, min(round(first), done - 1) - half), min(done - 1, round(last) + half)
    parts = [run.metrics[metric].iloc[low : high + 1].tolist() for run in study.runs]
    if len(parts) == 1:
        return low, high, of_seeds(parts[0])
    return low, high, of_seeds([of_seeds(part)[0] for part in parts])


def nearest(tests: pd.DataFrame, at: float) -> dict[str, Any]:
    """The evaluation in ``held_out`` rows of one metric that was made nearest to the step ``at``, by column."""
    names = ("held_out_step", "held_out", "held_out_se", "held_out_n")
    if not len(tests):
        return dict.fromkeys(names)
    row = min(records(tests), key=lambda row: abs(row["step"] - at))
    return dict(zip(names, (row["step"], row["mean"], row["se"], row["n"]), strict=True))


def seconds(study: TrainingStudy) -> pd.DataFrame:
    """Seconds of a step by part: the mean over all steps of all runs, and its share of the whole."""
    spent = pd.concat([run.timings for run in study.runs], ignore_index=True)
    whole = float(spent["whole"].mean())
    names = [str(c) for c in spent.columns if c not in ("step", "sampled_tokens")]
    return numeric(
        [{"part": n, "seconds": float(spent[n].mean()), "share": float(spent[n].mean()) / whole} for n in names]
    )
