"""Training on paper: the published marks, the rules of phases, frames of runs, and their figures."""

import json
import math
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from negolab import notebook, plots
from negolab.errors import NegolabError
from negolab.notebook import profiles, training, training_ends
from negolab.notebook.parameters import ParameterError
from negolab.notebook.training_runs import TrainingStudy, read_run, records
from negolab.notebooks_runner import run
from negolab.papers import multi_buyer
from negolab.papers import training as published
from negolab.papers.training import BUYER, SELLER, buyer_phases, moving_mean, same_share, seller_phases, window_of
from training_folders import BUYER as BUYER_CURVES
from training_folders import SELLER as SELLER_CURVES
from training_folders import keep_episodes, line, write_run

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")


def sampled(curve, steps: int) -> list[float]:
    return [curve(step / steps) for step in range(steps)]


def open_runs(tmp_path: Path, task: str, *folders: Path, **more) -> TrainingStudy:
    runs = ",".join(str(folder) for folder in folders)
    return notebook.begin_training("x", task, runs=runs, out=str(tmp_path / "out"), **more)


# -- published numbers ----------------------------------------------------------------------------------------------


def test_the_marks_are_those_of_the_text():
    marks = published.table(SELLER, "training_marks")
    said = {(row["metric"], int(row["step"])): row["value"] for row in records(marks)}
    assert set(marks["step"]) == {0, 12, 24, 27, 30, 60, 72}
    assert (said["reward", 0], said["reward", 30], said["reward", 72]) == (-0.27, 0.07, 0.55)
    assert (said["below_cost_rate", 0], said["below_cost_rate", 12]) == (0.25, 0.005)
    assert (said["deal_rate", 12], said["deal_rate", 30]) == (0.46, 0.62)
    assert (said["surplus_ratio", 27], said["surplus_ratio", 72]) == (0.07, 0.68)
    assert (said["distinct_buyers", 12], said["distinct_buyers", 30]) == (2.30, 2.05)
    assert (said["top_buyer_rate", 30], said["top_buyer_rate", 60]) == (0.56, 0.97)
    assert math.isnan(said["top_buyer_rate", 24]), "no number is stated there"
    assert marks["se"].isna().all() and (marks["source"] != "").all()
    assert {metric for metric, _ in published.CURVES} == set(marks["metric"])


def test_reward_at_the_end_is_deals_times_surplus():
    """The paper's identity with no broken rules gives the deal rate that it leaves out: near its held-out one."""
    said = {(row["metric"], int(row["step"])): row["value"] for row in records(training.seller_marks())}
    implied = said["reward", 72] / said["surplus_ratio", 72]
    trained = multi_buyer.table("table9").set_index("seller")["deal_rate"]["Qwen3-30B-A3B-Instruct-2507-trained"]
    assert implied == pytest.approx(trained, abs=0.03)


def test_phases_of_the_papers_join():
    for arxiv, last in ((SELLER, 72), (BUYER, 60)):
        phases = published.phases_of(arxiv)
        assert [p.number for p in phases] == list(range(1, len(phases) + 1))
        assert phases[0].first == 0 and phases[-1].last == last
        assert all(one.last == other.first for one, other in pairwise(phases))


def test_buyer_s_numbers_are_marked_second_hand():
    for name in published.TABLES[BUYER]:
        assert published.table(BUYER, name)["source"].str.contains("second-hand").all()
    assert training.published_ends("buyer", "reward") == [(1.0, 0.7664, pytest.approx(math.nan, nan_ok=True))]
    assert training.published_ends("buyer", "first_offer_ratio") == []


def test_unknown_table_names_the_known_ones():
    with pytest.raises(NegolabError, match="training_marks"):
        published.table(SELLER, "figure4")
    with pytest.raises(NegolabError, match=r"2604\.09855"):
        published.table("0000.00000", "training_marks")


# -- rules ----------------------------------------------------------------------------------------------------------


def test_moving_mean_by_hand():
    assert moving_mean([1, 2, 6, 7], 3) == [1.5, 3, 5, 6.5]
    assert moving_mean([1, None, 3, math.nan], 3) == [1, 2, 3, 3]
    assert [math.isnan(v) for v in moving_mean([None, None, None, 4.0], 3)] == [True, True, False, False]
    assert [window_of(steps) for steps in (2, 12, 72, 120)] == [3, 3, 5, 7]


def test_the_rule_finds_the_paper_s_phases_in_the_paper_s_marks():
    """Straight lines between the paper's marks: its own boundaries come out, within a twentieth of training."""
    curves = (sampled(SELLER_CURVES[name], 72) for name in ("below_cost_rate", "deal_rate"))
    told = seller_phases(*curves)
    assert told.notes == ()
    for mine, theirs in zip(told.found, published.phases_of(SELLER), strict=True):
        assert (mine.number, mine.name) == (theirs.number, theirs.name)
        assert abs(mine.first - theirs.first) <= 4 and abs(mine.last - theirs.last) <= 4
    assert told.found[0].last == 12


@pytest.mark.parametrize(
    ("below", "deals", "numbers", "note"),
    [
        ([0.0] * 40, [0.2] * 20 + [0.8] * 20, [2, 3], "phase 1 is absent: from the start"),
        ([0.0] * 40, [0.8] * 40, [3], "phase 2 is absent: the deal rate is at 75% of its final level from the start"),
        ([0.3] * 40, [0.1] * 20 + [0.8] * 20, [1], "phases 2 and 3 are absent: the below-cost rate"),
        ([0.3] * 20 + [0.0] * 20, [0.0] * 40, [1], "phases 2 and 3 are absent: at the end there is a deal"),
        ([0.3] * 30 + [0.0] * 10, [0.1] * 10 + [0.8] * 30, [1, 3], "order is not the paper's: closing is learnt by"),
        ([0.3] * 40, [0.1] * 10 + [0.8] * 30, [1], "the cost floor never"),
        ([0.3] * 5, [0.1] * 5, [], "5 steps are too few"),
    ],
)
def test_absent_phases_and_another_order_are_said(below, deals, numbers, note):
    told = seller_phases(below, deals)
    assert [p.number for p in told.found] == numbers
    assert note in told.text
    ends = [(p.first, p.last) for p in told.found]
    assert all(first < last <= len(below) for first, last in ends)
    assert all(one[1] <= other[0] for one, other in pairwise(ends))


def test_one_late_lapse_keeps_the_floor_from_counting_as_learnt():
    below = [0.3] * 10 + [0.0] * 20 + [0.3] + [0.0] * 9
    assert seller_phases(below, [0.1] * 35 + [0.8] * 5).found[0].last == 32


def test_four_phases_of_a_buyer():
    curves = (sampled(BUYER_CURVES[name], 100) for name in ("first_offer_ratio", "deal_rate"))
    told = buyer_phases(*curves)
    assert told.notes == () and [p.number for p in told.found] == [1, 2, 3, 4]
    first, locked, conceding, _ = told.found
    assert abs(first.last - 10) <= 2, "half of the fall of the deal rate from 0.6 to 0.2"
    assert abs(locked.last - 47) <= 2, "half of the way back from 0.2 to 0.9"
    assert abs(conceding.last - 67) <= 2, "the highest offer after the deadlock"


@pytest.mark.parametrize(
    ("offers", "deals", "numbers", "note"),
    [
        (line((0, 0.8), (1, 0.4)), line((0, 0.5), (1, 0.9)), [], "there is no deadlock, the deal rate falls by 0.0"),
        (line((0, 0.8), (1, 0.4)), line((0, 0.6), (0.5, 0.1)), [1, 2], "rises by 0.00 only"),
        (line((0, 0.8), (0.3, 0.4), (1, 0.6)), line((0, 0.6), (0.3, 0.1), (1, 0.9)), [1, 2, 3], "phase 4 is absent"),
        (line((0, 0.8), (1, 0.4)), line((0, 0.6), (0.3, 0.1), (0.4, 0.9)), [1, 2, 4], "phase 3 is absent"),
        (line((0, 0.5)), line((0, 0.6), (0.3, 0.1), (1, 0.9)), [1, 2, 3], "in phase 1 the first offers do not fall"),
    ],
)
def test_a_buyer_s_missing_phases_are_said(offers, deals, numbers, note):
    told = buyer_phases(sampled(offers, 60), sampled(deals, 60))
    assert [p.number for p in told.found] == numbers
    assert note in told.text


def test_rules_survive_missing_values_and_refuse_torn_curves():
    assert buyer_phases([None] * 20, [0.6] * 10 + [0.1] * 10).found[0].number == 1
    assert "no deadlock" in buyer_phases([None] * 20, [None] * 20).text
    with pytest.raises(ValueError, match="3 and 2"):
        seller_phases([0.1] * 3, [0.1] * 2)


# -- runs -----------------------------------------------------------------------------------------------------------


def test_one_run_has_errors_over_episodes(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=24, episodes=64))
    rows = {(r["metric"], r["step"]): r for r in records(training.curves(study, training.SELLER_METRICS))}
    deal = rows["deal_rate", 0]
    assert deal["mean"] == 0.40 and deal["n"] == 64 and deal["of"] == "episodes"
    assert deal["se"] == pytest.approx(math.sqrt(0.4 * 0.6 / 63)), "the sample error of zeros and ones"
    assert rows["reward", 3]["se"] == 0.02, "as the run recorded it"
    assert math.isnan(rows["distinct_buyers", 0]["se"]), "not recorded, and it does not follow"
    assert rows["top_buyer_rate", 0]["n"] == 26, "over deals"
    assert deal["moving"] == pytest.approx((0.40 + SELLER_CURVES["deal_rate"](1 / 24)) / 2)
    held = records(training.held_out(study, ["deal_rate"]))
    assert [r["step"] for r in held] == [0, 12, 24] and {r["se"] for r in held} == {0.04}, "the larger error"


def test_several_seeds_have_errors_over_seeds(tmp_path):
    folders = [write_run(tmp_path / f"s{seed}", steps=24, seed=seed) for seed in (2, 0, 1)]
    study = open_runs(tmp_path, "seller", *folders)
    assert [run.seed for run in study.runs] == [0, 1, 2] and "seeds 0, 1, 2" in study.about
    rewards = [float(run.metrics["reward"].iloc[0]) for run in study.runs]
    mean = sum(rewards) / 3
    first = records(training.curves(study, ["reward"]))[0]
    assert first["mean"] == pytest.approx(mean) and (first["n"], first["of"]) == (3, "seeds")
    assert first["se"] == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in rewards) / 2 / 3))
    table = training.phase_table(study, training.phases(study, training.curves(study, training.SELLER_METRICS)))
    assert {"ours", "seed 0", "seed 1", "seed 2"} <= set(table.columns)


def test_marked_steps_lie_at_the_same_share_of_training(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=120, every=20))
    marks = training.seller_marks()
    table = records(training.marked_steps(study, marks))
    assert len(table) == len(marks) and "paper_high" not in table[0]
    row = next(r for r in table if r["metric"] == "deal_rate" and r["paper_step"] == "30")
    assert row["share"] == pytest.approx(30 / 72) and row["our_steps"] == "47–53", "step 50 of 120, 7 steps"
    assert row["ours"] == pytest.approx(0.62, abs=0.01) and row["ours_n"] == 7
    assert (row["held_out_step"], row["held_out_n"]) == (40, 64)
    last = next(r for r in table if r["metric"] == "reward" and r["paper_step"] == "72")
    assert last["our_steps"] == "116–119" and last["held_out_step"] == 120
    assert same_share(30, 72, 120) == 50


def test_before_and_after_in_pairs_where_the_episodes_are_kept(tmp_path):
    folder = write_run(tmp_path / "a", steps=24)
    before = open_runs(tmp_path, "seller", folder)
    unpaired = {r["metric"]: r for r in records(training_ends.before_after(before, ["reward", "top_buyer_rate"]))}
    assert unpaired["reward"]["how"] == "two means"
    assert unpaired["reward"]["difference"] == pytest.approx(0.55 + 0.27)
    assert unpaired["reward"]["difference_se"] == pytest.approx(math.hypot(0.04, 0.04))
    assert unpaired["reward"]["paper_before"] == -0.151 and unpaired["reward"]["paper_after_se"] == 0.026
    assert training_ends.first_and_last(before, 0) == {}
    keep_episodes(folder, 0, "satisficer")
    keep_episodes(folder, 24, "prober")
    after = open_runs(tmp_path, "seller", folder)
    paired = {r["metric"]: r for r in records(training_ends.before_after(after, ["reward"]))}
    assert paired["reward"]["how"] == "in pairs" and paired["reward"]["difference_n"] == 6
    pair = training_ends.first_and_last(after, 3)
    assert list(pair) == ["before", "after"] and pair["before"].players[0] == "satisficer"
    assert pair["before"].scenario == pair["after"].scenario, "the same market"
    with pytest.raises(ParameterError, match="episodes 0 to 5"):
        training_ends.first_and_last(after, 6)


def test_the_buyer_s_tables(tmp_path):
    folder = write_run(tmp_path / "b", "buyer", steps=70, every=10)
    (folder / "checkpoints" / "step-000050").mkdir(parents=True)
    (folder / "model").mkdir()
    study = open_runs(tmp_path, "buyer", folder)
    three = records(training_ends.opponents(study))
    assert [r["our_step"] for r in three] == [50, 60, 70]
    assert [r["kept"] for r in three] == ["checkpoints/step-000050", "no", "model"]
    assert [r["paper, table 12"] for r in three] == [0.368, 0.310, 0.353]
    ratio = BUYER_CURVES["first_offer_ratio"](50 / 70)
    assert three[0]["first offer / list price"] == pytest.approx(0.8 * ratio), "over the list price, not the budget"
    assert training_ends.personas(study) == {"bilateral": "neutral", "bilateral_begging": "begging"}
    final = training_ends.last_of(study, training_ends.personas(study), ["reward"])
    assert list(final["against"]) == ["neutral", "begging"]
    games = records(training_ends.gains(study))
    assert [r["n"] for r in games if r["games"].startswith("CI")] == [0] * 6
    assert {r["when"] for r in games} == {"before", "after"}
    ranges = records(training.marked_steps(study, training.buyer_marks()))
    assert ranges[0]["paper_step"] == "0–20" and (ranges[0]["paper"], ranges[0]["paper_high"]) == (0.40, 0.55)


# -- what is refused ------------------------------------------------------------------------------------------------


def test_runs_that_do_not_belong_together_are_refused(tmp_path):
    one = write_run(tmp_path / "one", steps=24)
    again = write_run(tmp_path / "again", steps=24)
    other = write_run(tmp_path / "other", steps=24, seed=1, learning_rate=0.5)
    buyer = write_run(tmp_path / "buyer", "buyer", steps=24)
    with pytest.raises(ParameterError, match="two runs have the seed 0"):
        open_runs(tmp_path, "seller", one, again)
    with pytest.raises(ParameterError, match=r"differ in settings\.learning_rate"):
        open_runs(tmp_path, "seller", one, other)
    with pytest.raises(ParameterError, match="none of the 1 runs trains the seller"):
        open_runs(tmp_path, "seller", buyer)
    assert "left out: buyer trains the buyer" in open_runs(tmp_path, "seller", one, buyer).notes[0]


def test_a_torn_or_foreign_folder_is_one_line(tmp_path):
    with pytest.raises(ParameterError, match="no manifest"):
        open_runs(tmp_path, "seller", tmp_path / "nowhere")
    folder = write_run(tmp_path / "a", steps=12)
    (folder / "metrics.csv").write_text("step,reward\n0,much\n")
    with pytest.raises(ParameterError, match=r"metrics\.csv cannot be read") as caught:
        open_runs(tmp_path, "seller", folder)
    assert "\n" not in str(caught.value)
    (folder / "metrics.csv").unlink()
    with pytest.raises(ParameterError, match=r"metrics\.csv cannot be read: No such file"):
        open_runs(tmp_path, "seller", folder)
    (folder / "manifest.json").write_text(json.dumps({"format": "negolab-run-1"}))
    with pytest.raises(ParameterError, match="no training run of format"):
        open_runs(tmp_path, "seller", folder)
    begun = write_run(tmp_path / "begun", steps=12, done=0)
    with pytest.raises(ParameterError, match="has not finished a step"):
        open_runs(tmp_path, "seller", begun)


def test_an_unfinished_run_says_so_and_can_be_drawn(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=72, done=20))
    assert study.notes == ("a is not finished: 20 of 72 steps",)
    found = training.curves(study, training.SELLER_METRICS)
    assert found["step"].max() == 19
    assert records(training.marked_steps(study, training.seller_marks()))[3]["our_steps"] == "17–19"
    assert len(training.phase_changes(study, found, training.phases(study, found)))


def test_finished_runs_need_no_torch(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [book] = profiles.chosen(profiles.shipped(), "02_training_dynamics")
    assert book.extra == "train" and book.lacks({}) == "torch"
    assert book.lacks({"runs": "a,b"}) == ""
    with pytest.raises(ParameterError, match=r"needs the package torch.*negolab\[train\]"):
        notebook.begin_training("x", "seller", out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_relative_runs_are_the_caller_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "sub" / "two").mkdir(parents=True)
    given = {"a": {"runs": "one, sub/two"}, "b": {"runs": "committed"}, "c": {"runs": ""}}
    profiles.settle_paths(given)
    assert given["a"]["runs"] == f"{tmp_path / 'one'},{tmp_path / 'sub' / 'two'}"
    assert (given["b"]["runs"], given["c"]["runs"]) == ("committed", "")
    with pytest.raises(NegolabError, match="elsewhere is no folder"):
        profiles.settle_paths({"a": {"runs": "one, elsewhere"}})


# -- figures --------------------------------------------------------------------------------------------------------


def texts(fig: Figure) -> str:
    return "\n".join(t.get_text() for t in fig.findobj(Text))


def drawn(study: TrainingStudy, metric: str, **more) -> Figure:
    metrics = training.SELLER_METRICS if study.task == "seller" else training.BUYER_METRICS
    curves = training.curves(study, [*metrics, "violation_rate"])
    shown = {"marks": training.seller_marks() if study.task == "seller" else training.buyer_marks()}
    arxiv = SELLER if study.task == "seller" else BUYER
    return plots.training_curve(
        metric,
        curves,
        training.held_out(study, [metric]),
        training.axis_of(study),
        phases=training.phases(study, curves).found,
        paper_phases=published.phases_of(arxiv),
        published=training.published_ends(study.task, metric),
        **{**shown, **more},
    )


@pytest.mark.parametrize(
    ("task", "metric"),
    [("seller", m) for m in training.SELLER_METRICS] + [("buyer", m) for m in training.BUYER_METRICS],
)
def test_every_curve_is_written_without_a_warning(tmp_path, task, metric):
    study = open_runs(tmp_path, task, write_run(tmp_path / "a", task, steps=70, every=10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fig = drawn(study, metric, also="violation_rate", title=study.title("A metric"))
        saved = plots.save(fig, tmp_path, "figure")
    assert [p.suffix for p in saved.paths] == [".png", ".svg"] and all(p.stat().st_size > 5000 for p in saved.paths)
    shown = texts(fig).replace("\n", " ")
    assert "pocket model (small scale)" in shown
    known = metric != "first_offer_ratio"  # nobody reports a number of the paper's
    assert ("paper (30B)" in shown) == known and ("no number is known" in shown) != known
    assert f"arXiv {SELLER if task == 'seller' else BUYER}" in shown
    assert "our phase 1" in shown and "at the same share of training" in shown


def test_marks_stand_where_the_share_says(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=144))
    ax = drawn(study, "deal_rate").axes[0]
    diamonds = [line.get_xydata().tolist() for line in ax.lines if line.get_marker() == "D"]
    assert diamonds == [[[24.0, 0.46]], [[60.0, 0.62]]], "steps 12 and 30 of 72 are 24 and 60 of 144"
    ends = sorted(float(line.get_xdata()[0]) for line in ax.lines if line.get_linestyle() == ":")
    assert ends == [24.0, 60.0]
    assert [text.get_text() for text in ax.texts] == ["1", "2", "3"]


def test_bands_hold_one_standard_error_and_missing_ones_are_said(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=24, episodes=64))
    band = drawn(study, "reward").axes[0].collections[0].get_paths()[0].vertices
    first = band[band[:, 0] == 0.0][:, 1]
    reward = float(study.runs[0].metrics["reward"].iloc[0])
    assert (first.min(), first.max()) == (pytest.approx(reward - 0.02), pytest.approx(reward + 0.02))
    assert "episodes of a step: n 64; band: one standard error" in texts(drawn(study, "reward")).replace("\n", " ")
    assert "no error is recorded" in texts(drawn(study, "distinct_buyers")).replace("\n", " ")


def test_two_steps_are_drawn_and_no_phase_is_claimed(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=2, every=2))
    fig = drawn(study, "surplus_ratio")
    assert "our phase" not in texts(fig) and "the paper's phases end" in texts(fig)
    curves = training.curves(study, training.SELLER_METRICS)
    tests = training.held_out(study, training.SELLER_METRICS)
    overview = plots.training_overview(training.SELLER_METRICS, curves, tests, training.axis_of(study), title="All")
    plots.save(overview, tmp_path, "overview")
    assert len([ax for ax in overview.axes if ax.get_visible()]) >= 6


def test_nothing_of_ours_is_said_in_the_figure(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=24))
    empty = training.curves(study, []).iloc[:0]
    fig = plots.training_curve("reward", empty, training.held_out(study, []), training.axis_of(study))
    plots.save(fig, tmp_path, "empty")
    assert "no data of ours" in texts(fig)


def test_the_skill_profile_has_the_model_before_and_after(tmp_path):
    study = open_runs(tmp_path, "seller", write_run(tmp_path / "a", steps=24))
    rows = training_ends.radar_rows(study)
    assert list(rows["seller"])[-2:] == [f"{study.model}, before", f"{study.model}, after"]
    assert float(rows["sell_above_cost_accuracy"].iloc[-2]) == 0.75 and len(rows) == 6


def test_a_large_model_is_not_called_a_pocket_model(tmp_path):
    folder = write_run(tmp_path / "a", steps=12)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"adapter": {"rank": 32}, "base": {"model": "Qwen3-30B-A3B-Instruct-2507"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert open_runs(tmp_path, "seller", folder).model == "Qwen3-30B-A3B-Instruct-2507"
    assert read_run(folder).regimes == ["in_distribution"]


# -- the notebooks --------------------------------------------------------------------------------------------------


def test_the_notebooks_draw_finished_runs_without_torch(tmp_path):
    """Whole notebooks on runs that lie there; ``--nbmake`` runs them with a smoke run of their own."""
    seller = write_run(tmp_path / "seller", steps=40, every=20)
    keep_episodes(seller, 0, "satisficer")
    keep_episodes(seller, 40, "prober")
    buyer = write_run(tmp_path / "buyer", "buyer", steps=40, every=20)
    books = profiles.chosen(profiles.shipped(), "02_training_dynamics,08_buyer_training")
    given = {book.name: {"runs": f"{seller},{buyer}"} for book in books}
    for result in run(books, given, tmp_path / "out"):
        assert result.ok, result.error
    out = tmp_path / "out"
    assert {p.name for p in (out / "figures").glob("figure*.png")} == {
        f"{name}.png"
        for name in ["figure3_before_after", *(f"figure{number}_{metric}" for metric, number in published.CURVES)]
    }
    page = (out / "transcripts" / "before_after.html").read_text(encoding="utf-8")
    assert "satisficer" in page and "prober" in page
    assert not (out / "transcripts" / "buyer_before_after.html").exists(), "its episodes were not kept"
    phases = (out / "tables" / "training_phases.md").read_text(encoding="utf-8")
    assert "concentrated closing" in phases and "12–30" in phases
    copy = (out / "notebooks" / "08_buyer_training.ipynb").read_text(encoding="utf-8")
    assert "left out: seller trains the seller" in copy and "were not kept: no transcripts" in copy
