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

from negolab.environment.base import BUYER, SELLER
from negolab.episodes import Episode
from negolab.metrics import BILATERAL_METRICS, FOUR_PHASES, METRICS, paired
from negolab.notebook.frames import numeric
from negolab.notebook.training_runs import TrainingRun, TrainingStudy
from negolab.papers import multi_buyer, training
from negolab.papers.training import Phases, moving_mean, same_share, window_of
from negolab.plots.training import Axis
from negolab.store import Run

PAPER_MODEL = "paper (30B)"
SELLER_METRICS = tuple(metric for metric, _ in training.CURVES)
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
    tables = [run.metrics.set_index("step") for run in study.runs]
    steps = [step for step in tables[0].index if all(step in table.index for table in tables)]
    for metric in metrics:
        found = []
        for step in steps:
            if len(tables) == 1:
                mean, se, n = _of_episodes(tables[0].loc[step], metric)
            else:
                mean, se, n = _of_seeds([float(table.loc[step, metric]) for table in tables])
            found.append((step, mean, se, n))
        moving = moving_mean([mean for _, mean, _, _ in found], window_of(study.steps))
        of = "episodes" if len(tables) == 1 else "seeds"
        for (step, mean, se, n), smooth in zip(found, moving, strict=True):
            row = {"metric": metric, "step": int(step), "mean": mean, "se": se, "moving": smooth, "n": n}
            rows.append(row | {"of": of})
    return numeric(rows, ["metric", "step", "mean", "se", "moving", "n", "of"])


def _of_episodes(row: pd.Series[Any], metric: str) -> tuple[float, float, float]:
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


def _of_seeds(values: Sequence[float]) -> tuple[float, float, float]:
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
    chosen = regime or _first_regime(study)
    rows: list[dict[str, Any]] = []
    for metric in metrics:
        by_step: dict[int, list[dict[Any, Any]]] = {}
        for run in study.runs:
            part = run.evals[(run.evals["regime"] == chosen) & (run.evals["metric"] == metric)]
            for row in part.to_dict("records"):
                by_step.setdefault(int(row["step"]), []).append(row)
        for step, found in sorted(by_step.items()):
            if len(study.runs) == 1:
                mean, se, n = found[0]["mean"], _larger(found[0]["se"], found[0]["se_clustered"]), found[0]["n"]
            else:
                mean, se, n = _of_seeds([row["mean"] for row in found])
            of = "episodes" if len(study.runs) == 1 else "seeds"
            rows.append({"metric": metric, "step": step, "mean": mean, "se": se, "n": n, "of": of})
    return numeric(rows, ["metric", "step", "mean", "se", "n", "of"])


def _first_regime(study: TrainingStudy) -> str:
    regimes = study.runs[0].regimes
    return regimes[0] if regimes else ""


def _larger(one: float, other: float) -> float:
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
    the paper's difference over its phase of that number where it states both ends (seller only)."""
    marks = seller_marks() if study.task == "seller" else None
    rows: list[dict[str, Any]] = []
    for phase in told.found:
        for metric in dict.fromkeys(found["metric"]):
            curve = found[found["metric"] == metric].set_index("step")["moving"]
            start, end = (float(curve.iloc[min(at, len(curve) - 1)]) for at in (phase.first, phase.last))
            row = {"phase": phase.number, "name": phase.name, "metric": metric, "start": start, "end": end}
            rows.append(row | {"change": end - start, "paper_change": _paper_change(marks, metric, phase.number)})
    return numeric(rows, ["phase", "name", "metric", "start", "end", "change", "paper_change"])


def _paper_change(marks: pd.DataFrame | None, metric: str, number: int) -> float | None:
    if marks is None:
        return None
    theirs = training.phases_of(training.SELLER)[number - 1]
    stated = marks[marks["metric"] == metric].set_index("first_step")["low"]
    if theirs.first not in stated.index or theirs.last not in stated.index:
        return None
    return float(stated[theirs.last]) - float(stated[theirs.first])


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
        rows = multi_buyer.table("table9").set_index("seller")
        errors = rows[f"{metric}_se"] if f"{metric}_se" in rows.columns else rows["reward"] * math.nan
        ends = ((0.0, _UNTRAINED), (1.0, _TRAINED))
        return [(share, float(rows.loc[who, metric]), float(errors[who])) for share, who in ends]  # type: ignore[arg-type]
    results = training.table(training.BUYER, "results").set_index("metric")
    return [(1.0, float(results.loc[metric, "value"]), math.nan)] if metric in results.index else []  # type: ignore[arg-type]


def marked_steps(study: TrainingStudy, marks: pd.DataFrame) -> pd.DataFrame:
    """The paper's marked steps beside ours at the same share of training.

    ``ours`` is the mean of a window of steps around that share, ``ours_se`` its standard error over the steps of the
    window (one run) or over seeds; ``ours_n`` counts these. ``held_out`` is the nearest evaluation, and the step it
    was made at.
    """
    axis, window = axis_of(study), window_of(study.steps)
    rows: list[dict[str, Any]] = []
    for mark in marks.to_dict("records"):
        first, last = (same_share(mark[name], axis.paper_steps, axis.steps) for name in ("first_step", "last_step"))
        row: dict[str, Any] = {"metric": mark["metric"], "paper_step": _span(mark["first_step"], mark["last_step"])}
        row |= {"share": mark["last_step"] / axis.paper_steps, "paper": mark["low"]}
        if (marks["low"] != marks["high"]).any():
            row["paper_high"] = mark["high"]
        low, high, (mean, se, n) = _around(study, mark["metric"], first, last, window)
        row |= {"our_steps": _span(low, high), "ours": mean, "ours_se": se, "ours_n": n}
        rows.append(row | _nearest(held_out(study, [mark["metric"]]), last) | {"stated in": mark["source"]})
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
        return low, high, _of_seeds(parts[0])
    return low, high, _of_seeds([_of_seeds(part)[0] for part in parts])


def _nearest(tests: pd.DataFrame, at: float) -> dict[str, Any]:
    names = ("held_out_step", "held_out", "held_out_se", "held_out_n")
    if not len(tests):
        return dict.fromkeys(names)
    row = tests.loc[(tests["step"] - at).abs().idxmin()]
    return dict(zip(names, (row["step"], row["mean"], row["se"], row["n"]), strict=True))


# -- before and after -----------------------------------------------------------------------------------------------


def before_after(study: TrainingStudy, metrics: Sequence[str], regime: str | None = None) -> pd.DataFrame:
    """The first and the last evaluation, and their difference, the paper's beside ours.

    Where the episodes were kept the difference is taken in pairs on the same markets, else from the two means; ``how``
    says which. Over several seeds it is the mean of each seed's difference. The paper's is from its means and errors.
    """
    chosen = regime or _first_regime(study)
    changes = [_change(run, metrics, chosen) for run in study.runs]
    tests = held_out(study, metrics, chosen)
    rows: list[dict[str, Any]] = []
    for metric in metrics:
        mine = tests[tests["metric"] == metric]
        row: dict[str, Any] = {"metric": metric}
        for name, at in (("before", 0), ("after", -1)):
            one = mine.iloc[at] if len(mine) else {"mean": None, "se": None, "n": None}
            row |= {name: one["mean"], f"{name}_se": one["se"], f"{name}_n": one["n"]}
        if len(study.runs) == 1:
            mean, se, n, how = changes[0][metric]
        else:
            mean, se, n = _of_seeds([change[metric][0] for change in changes])
            how = "over seeds"
        row |= {"difference": mean, "difference_se": se, "difference_n": n, "how": how}
        rows.append(row | _paper_ends(study.task, metric))
    return numeric(rows)


def _paper_ends(task: str, metric: str) -> dict[str, Any]:
    row: dict[str, Any] = {"paper_before": None, "paper_after": None, "paper_after_se": None}
    known = metric in multi_buyer.TABLE_METRICS or task == "buyer"
    for share, mean, se in published_ends(task, metric) if known else []:
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
        return {n: (_nan(e.mean), _larger(_nan(e.se), _nan(e.se_clustered)), e.n, "in pairs") for n, e in found.items()}
    rows = run.evals[run.evals["regime"] == regime].set_index(["step", "metric"])
    made = {}
    for name in metrics:
        ends = [rows.loc[(step, name)] for step in (steps[0], steps[-1])] if len(steps) > 1 else []
        errors = [_larger(float(end["se"]), float(end["se_clustered"])) for end in ends]
        change = float(ends[1]["mean"]) - float(ends[0]["mean"]) if ends else math.nan
        n = min((float(end["n"]) for end in ends), default=0.0)
        made[name] = (change, math.hypot(*errors) if ends else math.nan, n, "two means")
    return made


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def first_and_last(study: TrainingStudy, episode: int, regime: str | None = None) -> dict[str, Episode]:
    """One held-out market, played by the first run's learner before and after training; empty where the episodes were
    not kept. Raises ``NegolabError`` for an episode number that the evaluation does not have."""
    run, chosen = study.runs[0], regime or _first_regime(study)
    steps = sorted({int(step) for step in run.evals["step"]})
    found: dict[str, Episode] = {}
    for name, step in (("before", steps[0]), ("after", steps[-1])) if len(steps) > 1 else ():
        folder = run.evaluation(step, chosen)
        if folder is None:
            continue
        kept = Run(folder)
        if episode >= kept.n:
            from negolab.notebook.parameters import ParameterError

            raise ParameterError(f"parameter episode is {episode}; the evaluation has episodes 0 to {kept.n - 1}")
        found[name] = next(e for e in kept.episodes(complete=True) if e.scenario.episode == episode)
    return found


def seat_of(task: str) -> int:
    """The learner's seat."""
    return SELLER if task == "seller" else BUYER


def radar_rows(study: TrainingStudy) -> pd.DataFrame:
    """Figure 3: the paper's four sellers, then ours before and after training on held-out products."""
    tests = held_out(study, [*SELLER_METRICS, "sell_above_cost_accuracy"])
    rows: list[dict[str, Any]] = [row for row in multi_buyer.table("figure3").to_dict("records")]
    for name, at in (("before", 0), ("after", -1)):
        values = {metric: part["mean"].iloc[at] for metric, part in tests.groupby("metric")}
        if values:
            rows.append({"seller": f"{study.model}, {name}", "source": "ours (trained here)", **values})
    return numeric(rows)


# -- the buyer ------------------------------------------------------------------------------------------------------


def last_of(study: TrainingStudy, regimes: Mapping[str, str], metrics: Sequence[str]) -> pd.DataFrame:
    """The last evaluation by regime (``regimes``: regime -> what it is called), one row for each metric."""
    rows: list[dict[str, Any]] = []
    for regime, name in regimes.items():
        for metric in metrics:
            tests = held_out(study, [metric], regime)
            if len(tests):
                row = tests.iloc[-1]
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
            tests = held_out(study, [f"{metric}_{kind}"])
            for when, at in (("before", 0), ("after", -1)) if len(tests) else ():
                row = tests.iloc[at]
                one = {"games": name, "metric": metric, "when": when, "mean": row["mean"], "se": row["se"]}
                rows.append(one | {"n": row["n"]})
    return numeric(rows, ["games", "metric", "when", "mean", "se", "n"])


def opponents(study: TrainingStudy) -> pd.DataFrame:
    """The three checkpoints that become opponents out of distribution: the paper's steps, ours at the same share of the
    longest, the nearest evaluation's first offer over list price beside table 12's, and whether the model is kept."""
    table12 = multi_buyer.table("table12").set_index("buyer_type")
    run, factor = study.runs[0], _budget_factor(study)
    kept = {int(p.name.removeprefix("step-")) for p in (run.folder / "checkpoints").glob("step-[0-9]*")}
    rows: list[dict[str, Any]] = []
    for step in training.OPPONENTS:
        at = round(same_share(step, training.OPPONENTS[-1], study.steps))
        near = _nearest(held_out(study, ["first_offer_ratio"]), at)
        row: dict[str, Any] = {"opponent": f"iter-{step}", "paper_step": step, "share": step / training.OPPONENTS[-1]}
        row |= {"our_step": at, "evaluated_at": near["held_out_step"]}
        for name, key in (("first offer / list price", "held_out"), ("first offer / list price, se", "held_out_se")):
            row[name] = None if near[key] is None else near[key] * factor
        row["paper, table 12"] = float(table12.loc[f"iter-{step}", "first_offer_ratio"])  # type: ignore[arg-type]
        model = (run.folder / "model").is_dir() and at == study.steps
        row["kept"] = "model" if model else f"checkpoints/step-{at:06d}" if at in kept else "no"
        rows.append(row)
    return numeric(rows)


def _budget_factor(study: TrainingStudy) -> float:
    """The buyer's budget over the list price (1.1: 0.8)."""
    low, high = study.runs[0].manifest["task"]["regimes"][0]["budget_tiers"][0]
    return float(low + high) / 2


BUYER_METRICS = FOUR_PHASES


def seconds(study: TrainingStudy) -> pd.DataFrame:
    """Seconds of a step by part: the mean over all steps of all runs, and its share of the whole."""
    spent = pd.concat([run.timings for run in study.runs], ignore_index=True)
    whole = float(spent["whole"].mean())
    names = [str(c) for c in spent.columns if c not in ("step", "sampled_tokens")]
    return numeric(
        [{"part": n, "seconds": float(spent[n].mean()), "share": float(spent[n].mean()) / whole} for n in names]
    )
