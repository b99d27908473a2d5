"""Lock-step play: the opponent guard, batching, records that replay, and metrics worked by hand."""

import pytest

from markets import CODE, TRAINED, TRAINED_MARKET, UNTRAINED, UNTRAINED_MARKET, market, text_of
from negolab.catalog import load_catalog
from negolab.environment import Sale
from negolab.episodes import Episode, parse_line, replay
from negolab.errors import NegolabError
from negolab.metrics import METRICS, buyer_types, closing_ranks, first_offer_match, paired, summarise
from negolab.policies.base import Reply
from negolab.policies.registry import make_buyers, make_seller
from negolab.rollout import play, ticks
from negolab.scenario import Schedule, regime


class Scripted:
    """Speaks fixed texts by seat and turn; ``texts[seat]`` is a list, the last one repeats."""

    def __init__(self, texts, finish="stop"):
        self.name, self.texts, self.finish, self.asked = "fixed", texts, finish, []

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        self.asked += requests
        out = []
        for r in requests:
            script = self.texts[r.seat]
            text = script[min(len(r.view.own), len(script) - 1)]
            text = text[min(r.attempt, len(text) - 1)] if isinstance(text, list) else text
            out.append(text if isinstance(text, Reply) else Reply(text, self.finish))
        return out


def by_seat(script):
    texts = {}
    for seat, verb, cents, target in script:
        texts.setdefault(seat, []).append(text_of(seat, verb, cents, target))
    return texts


def play_one(scenario, texts, **options):
    policy = Scripted(texts)
    (episode,) = play([scenario], policy, {"iter-60": policy}, **options)
    return episode, policy


def test_the_papers_runs_through_rollout_store_and_metrics():
    episodes = []
    for scenario, script, reward in ((UNTRAINED_MARKET, UNTRAINED, 0.0153941), (TRAINED_MARKET, TRAINED, 0.8466749)):
        episode, _ = play_one(scenario, by_seat(script))
        assert episode.reward == pytest.approx(reward, abs=5e-8)
        again = Episode.from_json(parse_line(episode.to_line()), {CODE: scenario.product})
        assert again == episode and replay(again) == []
        episodes.append(again)
    untrained, trained = ({n: m(e) for n, m in METRICS.items()} for e in episodes)
    assert untrained["distinct_buyers"] == 1 and trained["distinct_buyers"] == 3
    assert untrained["top_buyer_rate"] == 0 and trained["top_buyer_rate"] == 1
    assert untrained["seller_messages"] == 3 and trained["seller_messages"] == 5
    assert trained["turns"] == 12 and trained["seller_prompt_tokens"] is None
    ranks = closing_ranks(episodes)
    assert [ranks[r].mean for r in (1, 2, 3)] == [0.5, 0.5, 0.0] and ranks[1].n == 2
    # Trained: openings 9.95 < 10.45 > 9.28 against budgets ranked 3, 1, 2: top right, order wrong.
    assert first_offer_match(episodes[1:])["top1_match"].mean == 1.0
    assert first_offer_match(episodes[1:])["full_rank_match"].mean == 0.0
    assert first_offer_match(episodes[:1])["top1_match"].mean == 0.0
    row = buyer_types(episodes)["iter-60"]
    assert row["closing_rate"].mean == pytest.approx(2 / 6) and row["closing_rate"].n == 6
    assert row["buyer_surplus"].mean == pytest.approx(((3499 - 1900) + (3499 - 3250)) / 2 / 1624)
    assert row["first_offer_ratio"].mean == pytest.approx((1050 + 905 + 933 + 995 + 1045 + 928) / 6 / 3499)


OPENINGS = {s: [text_of(s, "BUY", c, None)] for s, c in ((1, 995), (2, 1045), (3, 928))}
SELL2 = text_of(0, "SELL", 3499, 2)
QUIT = text_of(0, "QUIT", None, None)


def guarded(second_reply, **options):
    """Buyer 2 answers the first ask with ``second_reply`` (one text per attempt)."""
    texts = {**OPENINGS, 0: [SELL2, QUIT], 2: [text_of(2, "BUY", 1045, None), second_reply]}
    return play_one(TRAINED_MARKET, texts, **options)


def test_a_refused_reply_is_asked_again_with_the_reason_and_another_seed():
    bad = text_of(2, "BUY", 3838, None)
    episode, policy = guarded([bad, "no format", text_of(2, "BUY", 2000, None)])
    asked = [r for r in policy.asked if r.seat == 2 and len(r.view.own) == 1]
    assert [r.attempt for r in asked] == [0, 1, 2] and len({r.seed for r in asked}) == 3
    assert asked[0].complaint == "" and "budget" in asked[1].complaint and "Thought" in asked[2].complaint
    assert [x["kind"] for x in episode.notes[4]["refused"]] == ["budget", "format"]
    assert episode.turns[4].price == 2000 and not episode.turns[4].fallback
    values = summarise([episode])
    assert values["refused_replies"].mean == 2 and values["fallbacks"].mean == 0
    assert replay(Episode.from_json(parse_line(episode.to_line()), {CODE: TRAINED_MARKET.product})) == []


def test_after_five_reasks_the_guard_repeats_the_last_bid():
    episode, policy = guarded("never a format")
    assert len([r for r in policy.asked if r.seat == 2 and len(r.view.own) == 1]) == 6
    turn = episode.turns[4]
    assert (turn.verb, turn.price, turn.fallback) == ("BUY", 1045, True)
    assert len(episode.notes[4]["refused"]) == 6
    assert summarise([episode])["fallbacks"].mean == 1
    assert episode.outcome.reason == "seller_quit"  # the buyer's fault is not the seller's violation
    again = Episode.from_json(parse_line(episode.to_line()), {CODE: TRAINED_MARKET.product})
    assert again == episode and replay(again) == []


@pytest.mark.parametrize(
    "bad",
    [
        text_of(2, "DEAL", 3400, None),
        text_of(2, "DEAL", 3838, None),
        Reply(text_of(2, "BUY", 2000, None), "length"),
        Reply(None),
        Reply("\ud83d"),
        "Thought: x\nTalk: [DEAL] $1\nAction: [BUY] $20.00 (1x other_1)",
    ],
)
def test_everything_a_buyer_can_do_wrong_is_refused_and_stored(bad):
    episode, _ = guarded([bad, text_of(2, "BUY", 2000, None)])
    assert len(episode.notes[4]["refused"]) == 1 and episode.turns[4].price == 2000
    assert replay(Episode.from_json(parse_line(episode.to_line()), {CODE: TRAINED_MARKET.product})) == []


def test_a_buyer_that_cannot_open_quits_where_nothing_is_regulated():
    texts = {**OPENINGS, 0: [QUIT], 3: ["?"]}
    episode, _ = play_one(market(openings=None), texts)
    assert (episode.turns[2].verb, episode.turns[2].fallback) == ("QUIT", True)
    assert first_offer_match([episode])["top1_match"].n == 0  # not every buyer opened with a price
    texts = {s: ["?"] for s in (1, 2, 3)}
    episode, _ = play_one(market(openings=None), texts)
    assert episode.outcome.reason == "all_inactive" and episode.reward == 0


@pytest.mark.parametrize(
    ("text", "finish", "kind"),
    [
        ("nonsense", "stop", "format"),
        (None, "stop", "format"),
        (SELL2, "length", "truncated"),
        (SELL2.replace("Buyer 2", "Buyer 4"), "stop", "target"),
        (SELL2.replace("$34.99", "$18.74"), "stop", "below_cost"),
        (text_of(0, "DEAL", 2000, 2), "stop", "deal"),
    ],
)
def test_the_seller_is_never_asked_again(text, finish, kind):
    episode, policy = play_one(TRAINED_MARKET, {**OPENINGS, 0: [Reply(text, finish)]})
    assert sum(r.seat == 0 for r in policy.asked) == 1
    assert episode.outcome.kind == "violation" and episode.outcome.reason == kind and episode.reward == -1.0
    values = summarise([episode])
    assert values["violation_rate"].mean == 1 and values["distinct_buyers"].mean == 0
    assert values["below_cost_rate"].mean == float(kind == "below_cost")
    assert values["surplus_ratio"].n == 0 and values["surplus_ratio"].mean is None
    again = Episode.from_json(parse_line(episode.to_line()), {CODE: TRAINED_MARKET.product})
    assert again == episode and replay(again) == []


def test_tokens_and_prompt_hashes_are_kept_and_counted():
    sell = Reply(SELL2, "stop", 100, 20, "ab" * 32)
    texts = {
        **OPENINGS,
        0: [sell, QUIT],
        2: [text_of(2, "BUY", 1045, None), Reply(text_of(2, "BUY", 1800, None), "stop", 50, 9)],
    }
    episode, _ = play_one(TRAINED_MARKET, texts)
    again = Episode.from_json(parse_line(episode.to_line()), {CODE: TRAINED_MARKET.product})
    assert again.notes[3] == {"tokens": [100, 20], "prompt_sha256": "ab" * 32}
    values = summarise([again])
    assert values["seller_prompt_tokens"].mean == 100 and values["buyer_sampled_tokens"].mean == 9


class Dice:
    """A seller and buyer whose texts depend on nothing but the request's own seed."""

    name = "dice"

    def describe(self):
        return {}

    def reply(self, requests):
        out = []
        for r in requests:
            if r.seat:
                price = r.view.opening if not r.view.own and r.view.opening else r.seed % r.view.budget + 1
                out.append(Reply(text_of(r.seat, "BUY", price, None)))
            else:
                live = [i for i, c in enumerate(r.view.channels, 1) if c.status == "active"]
                out.append(Reply(text_of(0, "SELL", 1870 + r.seed % 2000, live[r.seed % len(live)])))
        return out


@pytest.mark.parametrize("window", [1, 3, 256])
def test_an_episode_does_not_depend_on_its_company(window):
    scenarios = [market()._replace(episode=i, keys=(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3)) for i in range(20)]
    dice = Dice()
    alone = {}
    for scenario in scenarios:
        (episode,) = play([scenario], dice, {"iter-60": dice})
        alone[scenario.episode] = episode.to_line()
    together = {
        e.scenario.episode: e.to_line() for e in play(reversed(scenarios), dice, {"iter-60": dice}, window=window)
    }
    assert together == alone and len(set(together.values())) == 20


def test_one_batched_call_per_policy_and_tick():
    calls = []

    class Counting(Dice):
        def reply(self, requests):
            calls.append(len(requests))
            return super().reply(requests)

    policy = Counting()
    list(play([market()._replace(episode=i) for i in range(10)], policy, {"iter-60": policy}))
    assert calls[0] == 30 and max(calls[1:]) <= 10 and len(calls) <= 1 + 14


def test_a_policy_that_loses_a_reply_stops_the_run():
    class Short(Dice):
        def reply(self, requests):
            return super().reply(requests)[1:]

    with pytest.raises(NegolabError, match="2 replies to 3 requests"):
        list(play([market()], Short(), {"iter-60": Short()}))


def test_an_unknown_buyer_type_fails_before_anything_is_played():
    dice = Dice()
    with pytest.raises(KeyError):
        list(play([market()], dice, {"other": dice}))


def test_pairs_need_the_same_market():
    a, _ = play_one(UNTRAINED_MARKET, by_seat(UNTRAINED))
    b, _ = play_one(TRAINED_MARKET, by_seat(TRAINED))
    found, common = paired([a], [b])
    assert common == 0 and found["reward"].n == 0
    c, _ = play_one(TRAINED_MARKET, {**OPENINGS, 0: [QUIT]})
    found, common = paired([c], [b])
    assert common == 1 and found["reward"].mean == pytest.approx(1375 / 1624)
    assert found["surplus_ratio"].n == 0  # only one of the two closed


def test_a_changed_record_does_not_replay():
    episode, _ = play_one(TRAINED_MARKET, by_seat(TRAINED))
    turn = episode.turns[6]

    def changed(**fields):
        turns = list(episode.turns)
        turns[6] = turn._replace(**fields)
        return Episode(episode.scenario, episode.players, turns, episode.notes, episode.outcome, episode.reward)

    assert replay(changed()) == []
    note = {"kind": "format", "detail": "", "text": "?"}
    for times in (6, 7):  # the guard asks five times more, then plays for the buyer
        notes = {6: {"refused": [note] * times}}
        many = Episode(episode.scenario, episode.players, episode.turns, notes, episode.outcome, episode.reward)
        assert "refused replies" in replay(many)[0]
    for fields in (
        {"offers": ((1, 996),)},
        {"offers": ((2, 995),)},
        {"offers": ()},
        {"verb": "DEAL"},
        {"turn": 4},
        {"seat": 2},
        {"fallback": True},
        {"text": "x"},
    ):
        assert replay(changed(**fields)), fields
    assert replay(changed(text=turn.text.replace("9.95", "9.96")))
    cut = Episode(episode.scenario, episode.players, episode.turns[:-1], {}, episode.outcome, episode.reward)
    assert "stops" in replay(cut)[0]
    more = Episode(episode.scenario, episode.players, [*episode.turns, turn], {}, episode.outcome, episode.reward)
    assert "after the end" in replay(more)[0]
    outcome = episode.outcome._replace(sales=(Sale(1, 2, 3251, 0),))
    other = Episode(episode.scenario, episode.players, episode.turns, {}, outcome, 0.5)
    assert len(replay(other)) == 2


@pytest.mark.parametrize("name", ["in_distribution", "ood_diverse"])
def test_no_seller_gets_more_than_the_full_information_bound(name, sample_catalog):
    drawn = regime(name)
    schedule = Schedule(drawn, sample_catalog.products, seed=3)
    for seller in ("prober", "oracle", "greedy"):
        for episode in play(schedule, make_seller(seller, schedule), make_buyers(drawn.buyer_types)):
            assert episode.reward <= METRICS["reward_bound"](episode) + 1e-12
    assert METRICS["reward_bound"](episode) <= 1


def test_the_bound_by_hand():
    rich, _ = play_one(TRAINED_MARKET, by_seat(TRAINED))
    assert METRICS["reward_bound"](rich) == 1.0  # 38.37 against a list price of 34.99
    poor, _ = play_one(market(budgets=(1764, 2583, 1000), openings=None), {s: ["?"] for s in (1, 2, 3)})
    assert METRICS["reward_bound"](poor) == pytest.approx((2583 - 1875) / 1624)
    broke, _ = play_one(market(budgets=(1764, 1800, 1000), openings=None), {s: ["?"] for s in (1, 2, 3)})
    assert METRICS["reward_bound"](broke) == 0.0


def test_ended_episodes_are_handed_over_before_anybody_is_asked_again():
    """Or a slow player would hold back what is finished, and a kill would lose it."""
    calls = []

    class Counting(Dice):
        def reply(self, requests):
            calls.append(len(requests))
            return super().reply(requests)

    policy, ended = Counting(), []
    scenarios = [market(t=1 + i % 3)._replace(episode=i, keys=(i, i, i, i)) for i in range(9)]
    for number, episodes in enumerate(ticks(scenarios, policy, {"iter-60": policy}), 1):
        assert len(calls) == number  # one policy in all seats: one call a tick
        ended += [episode.scenario.episode for episode in episodes]
    assert sorted(ended) == list(range(9)) and len(calls) > 3


def test_what_comes_with_a_reply_is_kept_whatever_it_is():
    """Ids alone are enough: a trainer needs them also where nobody counted tokens."""

    class Sampled:
        name = "sampled"

        def describe(self):
            return {"name": self.name}

        def reply(self, requests):
            return [Reply("nonsense", ids=[1, 2], logprobs=[-0.5, -0.25], prompt_ids=[7, 8]) for _ in requests]

    schedule = Schedule(regime("in_distribution"), load_catalog("sample").split("test")[:1], seed=0)
    [episode] = play(schedule, Sampled(), make_buyers(["iter-60"]))
    last = len(episode.turns) - 1
    assert episode.notes[last]["ids"] == [1, 2] and episode.notes[last]["logprobs"] == [-0.5, -0.25]
    assert list(episode.prompt_ids[last]) == [7, 8]
