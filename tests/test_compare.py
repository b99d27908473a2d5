"""``negolab compare``: paired differences by hand, and what must not be compared."""

from negolab.store import Run
from runs import SMALL, call, make_run, one_line


def test_a_run_against_itself(finished, capsys):
    code, out, err = call(capsys, "compare", str(finished), str(finished), str(finished))
    assert code == 0 and err == "" and out.count("4 common markets") == 2
    row = next(line.split() for line in out.splitlines() if line.startswith("reward"))
    assert row == ["reward", "0.0000", "0.0000", "0.0000", "+0.000", "to", "+0.000", "4"]


def test_paired_differences_by_hand(tmp_path, capsys):
    """Two products of two markets: the differences and their clustered error from the stored rewards."""
    first, second = make_run(tmp_path / "a", *SMALL, seller="satisficer"), make_run(tmp_path / "b", *SMALL)
    a, b = ([episode.reward for episode in Run(folder).episodes()] for folder in (first, second))
    d = [y - x for x, y in zip(a, b, strict=True)]
    mean = sum(d) / 4
    se = (sum((x - mean) ** 2 for x in d) / 3 / 4) ** 0.5
    clustered = (2 * ((d[0] + d[1] - 2 * mean) ** 2 + (d[2] + d[3] - 2 * mean) ** 2)) ** 0.5 / 4
    code, out, _ = call(capsys, "compare", str(first), str(second))
    row = next(line.split() for line in out.splitlines() if line.startswith("reward"))
    assert code == 0 and row[1:4] == [f"{mean:.4f}", f"{se:.4f}", f"{clustered:.4f}"] and row[-1] == "4"
    margin = 1.96 * max(se, clustered)
    assert row[4:7] == [f"{mean - margin:+.3f}", "to", f"{mean + margin:+.3f}"]


def test_runs_that_share_nothing(finished, tmp_path, capsys):
    for number, other in enumerate((["--seed", "1"], ["--regime", "ood_diverse"], ["--split", "train"])):
        folder = make_run(tmp_path / str(number), *SMALL, *other)
        code, out, err = call(capsys, "compare", str(finished), str(folder))
        assert code == 2 and out == "" and "share no market: other products, seed or regime" in one_line(err)


def test_runs_that_share_a_part(finished, tmp_path, capsys):
    more = make_run(tmp_path / "more", "--products", "3", "--per-product", "3")
    code, out, err = call(capsys, "compare", str(finished), str(more))
    assert code == 0 and "4 common markets" in out
    assert "note: compared on 4 of 9 and 4 markets" in one_line(err)


def test_an_unfinished_run_is_not_compared(finished, tmp_path, capsys):
    folder = make_run(tmp_path / "run", *SMALL)
    lines = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_bytes(b"".join(lines[:2]))
    for pair in ((finished, folder), (folder, finished)):
        code, out, err = call(capsys, "compare", *map(str, pair))
        assert code == 1 and out == ""
        assert f"{folder} is not finished: 2 of 4 episodes are missing; run the evaluation again" in one_line(err)


def test_with_several_items_it_is_said_what_makes_a_pair(tmp_path, capsys):
    """The surplus ratio is over all episodes without a violation, deals or not; the top-buyer rate over the sold."""
    few = ("--regime", "multi_product", "--products", "4", "--per-product", "3")
    first, second = (make_run(tmp_path / name, *few, seller=name) for name in ("satisficer", "early-closer"))
    a, b = (list(Run(folder).episodes()) for folder in (first, second))
    code, out, _ = call(capsys, "compare", str(first), str(second))
    assert code == 0 and "\npairs: markets in which both have the metric, and of its items" in out
    assert "deal-only" not in out
    pairs = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line}
    valid = sum(x.outcome.kind != "violation" for x in a)
    sold = sum(bool(x.outcome.sales and y.outcome.sales) for x, y in zip(a, b, strict=True))
    assert 0 < valid < len(a) and pairs["surplus_ratio"] == str(valid) and pairs["top_buyer_rate"] == str(sold)


def test_one_run_alone_and_all_metrics(finished, capsys):
    code, _, err = call(capsys, "compare", str(finished))
    assert code == 2 and "at least two run folders" in one_line(err)
    code, out, _ = call(capsys, "compare", "--all-metrics", str(finished), str(finished))
    assert code == 0
    row = next(line.split() for line in out.splitlines() if line.startswith("seller_prompt_tokens"))
    assert row == ["seller_prompt_tokens", "n/a", "n/a", "n/a", "n/a", "0"]


def test_a_single_pair_has_no_error(tmp_path, capsys):
    a = make_run(tmp_path / "a", "--products", "1", "--per-product", "1")
    b = make_run(tmp_path / "b", "--products", "1", "--per-product", "1", seller="greedy")
    code, out, _ = call(capsys, "compare", str(a), str(b))
    row = next(line.split() for line in out.splitlines() if line.startswith("reward"))
    assert code == 0 and row[2:] == ["n/a", "n/a", "n/a", "1"] and "nan" not in out
