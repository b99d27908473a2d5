"""Costs by hand, a run's account while it grows, and a sum that is not passed."""

import json

import pytest

from negolab import costs
from negolab.costs import Meter, Usage, account_of, affordable, check_priced, cost, summary_lines
from negolab.errors import NegolabError
from negolab.policies.journal import USAGE
from negolab.policies.spec import spec_of

PRICES = {"price_input": 2.0, "price_cached": 0.5, "price_output": 8.0}
MODEL = spec_of("openai:m", PRICES)


def line(player="m", **counts) -> bytes:
    """A journal's line as far as an account reads it."""
    counts = {"prompt_tokens": 1000, "cached_tokens": 400, "completion_tokens": 50, "tries": 1, "seconds": 0.5} | counts
    return json.dumps({"key": "0:0:0:0", "player": player, **counts}).encode() + b"\n"


def test_cached_tokens_are_part_of_the_prompt_and_have_a_price_of_their_own():
    used = Usage(3, 1_000_000, 400_000, 50_000, 3, 9.0)
    assert cost(used, MODEL) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.05 * 8)
    assert cost(used, spec_of("openai:m", {**PRICES, "price_cached": None})) == pytest.approx(2 + 0.4)
    assert cost(Usage(1, 10, 99, 0, 1, 0.0), MODEL) == pytest.approx(10 * 0.5 / 1e6)  # more cached than sent: a fib


@pytest.mark.parametrize("without", ["price_input", "price_output"])
def test_a_price_that_is_not_given_is_not_guessed(without):
    model = spec_of("openai:m", {**PRICES, without: None})
    assert cost(Usage(1, 10, 0, 5, 1, 0.1), model) is None
    with pytest.raises(NegolabError, match="needs the prices of m: give price_input and price_output"):
        check_priced({"m": model}, 1.0)


def test_tokens_that_a_server_does_not_count_have_no_cost():
    assert cost(Usage(5, 0, 0, 0, 5, 1.0), MODEL) is None
    assert cost(Usage(), MODEL) == 0.0


def test_an_account_follows_a_journal_as_it_grows(tmp_path):
    journal, meter = tmp_path / "replies-a-1.jsonl", Meter(tmp_path, {"m": MODEL})
    assert meter.account() == ({}, 0.0)
    journal.write_bytes(line() + line()[:20])
    assert meter.account().by_player == {"m": Usage(1, 1000, 400, 50, 1, 0.5)}
    journal.write_bytes(line() + line() + b"torn and ended\n" + line(cached_tokens=None))
    (tmp_path / "replies-b-2.jsonl").write_bytes(line("buyer"))
    found = meter.account()
    assert found.by_player["m"] == Usage(3, 3000, 800, 150, 3, 1.5) and found.by_player["buyer"].replies == 1
    assert found.dollars is None  # nobody said what the buyer costs
    assert found == meter.account() == account_of(tmp_path, {"m": MODEL})
    assert found.used.replies == 4


def test_a_settled_account_and_what_came_after_it(tmp_path):
    """The account says how far each journal is in it, by the name in the journal's first line."""
    first = json.dumps({"journal": "abc"}).encode() + b"\n"
    counted = first + line()
    settled = {"replies": 1, "prompt_tokens": 1000, "cached_tokens": 400, "completion_tokens": 50, "tries": 1}
    settled |= {"seconds": 0.5, "journals": {"abc": len(counted)}}
    (tmp_path / USAGE).write_text(json.dumps({"m": settled}), encoding="utf-8")
    assert account_of(tmp_path, {"m": MODEL}).by_player == {"m": Usage(1, 1000, 400, 50, 1, 0.5)}
    (tmp_path / "replies-a-1.jsonl").write_bytes(counted + line())
    assert account_of(tmp_path, {"m": MODEL}).by_player == {"m": Usage(2, 2000, 800, 100, 2, 1.0)}


def test_a_run_that_settles_under_the_meter_keeps_its_count(tmp_path):
    from negolab.policies.journal import settle

    meter = Meter(tmp_path, {"m": MODEL})
    path = tmp_path / "replies-a-1.jsonl"
    path.write_bytes(line() + line())
    before = meter.account()
    settle(tmp_path)
    assert not path.exists() and meter.account() == before and before.by_player["m"].replies == 2


@pytest.mark.parametrize("content", ["", "[]", '{"m": 3}', '{"m": {"replies": 1}}', "\0"])
def test_an_account_that_somebody_spoiled_says_nothing(tmp_path, content):
    (tmp_path / USAGE).write_text(content, encoding="utf-8")
    assert account_of(tmp_path, {"m": MODEL}) == ({}, 0.0)


def test_no_episode_is_begun_once_the_sum_is_reached(tmp_path):
    journal, meter, begun = tmp_path / "replies-a-1.jsonl", Meter(tmp_path, {"m": MODEL}), []
    each = cost(Usage(1, 1000, 400, 50, 1, 0.5), MODEL)
    for episode in affordable(range(10), meter, 3 * each):
        begun.append(episode)
        journal.write_bytes(journal.read_bytes() + line() if journal.exists() else line())
    assert begun == [0, 1, 2]


def test_amounts_and_counts_for_people():
    assert [costs.dollars(v) for v in (None, 0.0, 0.01234, 1.005, 1234.5)] == [
        "n/a",
        "$0.00",
        "$0.0123",
        "$1.00",
        "$1,234.50",
    ]
    assert [costs.tokens(n) for n in (0, 9999, 12345, 999_949, 999_999, 4_560_000)] == [
        "0",
        "9999",
        "12.3k",
        "999.9k",
        "1.00M",
        "4.56M",
    ]


def test_what_a_run_used_in_words(tmp_path):
    (tmp_path / "replies-a-1.jsonl").write_bytes(line() * 4)
    lines = summary_lines(account_of(tmp_path, {"m": MODEL}), episodes=2)
    assert lines[0] == "m: 4 replies, 4000 prompt tokens (1600 cached), 200 sampled tokens, 2.0 seconds of replies"
    assert lines[1] == f"cost: $0.0072, {2 / 0.0072:,.1f} episodes per dollar"
    free = spec_of("openai:m")
    assert summary_lines(account_of(tmp_path, {"m": free}), 2)[1] == "cost: n/a (prices not given)"
    assert summary_lines(account_of(tmp_path / "nowhere", {}), 2) == []
