"""Episodes as samples: the tokens that count are the seat's replies, behind exactly what it will read when it plays."""

import copy
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from negolab.conversations import conversations
from negolab.environment.base import SELLER, Request
from negolab.errors import DamagedRun, NegolabError
from negolab.policies.base import Policy, Reply
from negolab.policies.registry import make_buyers, make_seller
from negolab.prompts import MarketPrompts
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, OOD_DIVERSE, Schedule
from negolab.store import EPISODES
from runs import call, make_run, one_line

pytest.importorskip("torch")
pytest.importorskip("transformers")

from negolab.policies.chat_template import ChatFormat, Conversations
from negolab.trainer import sft_data
from negolab.trainer.rows import rows_of
from negolab.trainer.sft_data import Kind, Sample, Source, build, divided, order_of, samples_of
from negolab.trainer.sft_settings import SftSettings, load_sft, profiles
from sft_models import compact, played, save_pocket, settings
from tiny_models import CHATML, FAMILIES, THINKER, tokenizer

KIND = Kind("market", "seller", 3, 7)


def whole(conversation, chat, merge=True):
    """All replies count."""
    learnt = [True] * len(conversation.positions)
    return samples_of(conversation, chat, learnt, KIND, "toys_1", merge=merge)


def replies_of(conversation):
    return [message["content"] for message in conversation.messages if message["role"] == "assistant"]


def runs_of(sample):
    """The stretches of own tokens."""
    edges = np.flatnonzero(np.diff(np.r_[0, sample.own.astype(int), 0]))
    return [sample.ids[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("merge", [True, False])
def test_what_counts_is_every_reply_and_its_end_once_and_nothing_else(sample_catalog, family, merge):
    chat = ChatFormat(tokenizer(family))
    for episode in played(sample_catalog, "prober", products=1):
        for conversation in conversations(episode).values():
            samples = whole(conversation, chat, merge)
            stretches = [ids for sample in samples for ids in runs_of(sample)]
            assert all(ids[-1] == chat.end and chat.end not in ids[:-1] for ids in stretches)
            assert [chat.decode(ids[:-1]) for ids in stretches] == replies_of(conversation)
            assert not any(sample.own[0] for sample in samples)
            if not merge or not chat.append_only:
                assert len(samples) == len(stretches)


class Tokens:
    """Says what another seller says, in tokens, to prompts that are built up as a language model's are."""

    name = "tokens"

    def __init__(self, inner: Policy, chat: ChatFormat) -> None:
        self._inner, self._chat = inner, chat
        self._held, self._prompts = Conversations(chat), MarketPrompts()

    def describe(self):
        return {"name": self.name}

    def reply(self, requests: list[Request]) -> list[Reply]:
        made = []
        for request, plain in zip(requests, self._inner.reply(requests), strict=True):
            key = (request.episode, request.seat)
            prompt = self._held.prompt_ids(key, self._prompts.messages(request))
            ids = [*self._chat.encode(plain.text), self._chat.end]
            self._held.said(key, plain.text, ids)
            made.append(Reply(plain.text, "stop", len(prompt), len(ids), None, None, ids, [-1.0] * len(ids), prompt))
        return made


@pytest.mark.parametrize("family", ["chatml", "qwen3", "mistral"])
def test_a_sample_is_what_the_model_reads_when_it_plays(sample_catalog, family):
    """The tokens of a conversation as a player builds them up, turn by turn, are the samples', row for row."""
    chat = ChatFormat(tokenizer(family))
    schedule = Schedule(OOD_DIVERSE, sample_catalog.split("train")[:2], seed=0)
    seller = Tokens(make_seller("prober", schedule), chat)
    for episode in play(schedule, seller, make_buyers(OOD_DIVERSE.buyer_types)):
        samples = whole(conversations(episode)[SELLER], chat)
        rows = rows_of(episode, SELLER)
        assert [sample.ids.tolist() for sample in samples] == [row.ids for row in rows]
        assert [sample.own.tolist() for sample in samples] == [row.own for row in rows]
        assert len(rows) == (1 if chat.append_only else sum(turn.seat == SELLER for turn in episode.turns))


def test_replies_one_by_one_stand_behind_all_that_was_said_before(sample_catalog):
    chat = ChatFormat(tokenizer("qwen3"))
    (episode, *_) = played(sample_catalog, "prober", IN_DISTRIBUTION, products=1)
    conversation = conversations(episode)[SELLER]
    places = [at for at, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    assert len(places) > 2
    for at, sample in zip(places, whole(conversation, chat, merge=False), strict=True):
        context = chat.ids(conversation.messages[:at])
        assert sample.ids[: len(context)].tolist() == context
        assert sample.own.tolist() == [False] * len(context) + [True] * (len(sample) - len(context))


def test_merged_and_single_samples_teach_the_same_tokens(sample_catalog):
    chat = ChatFormat(compact())
    for episode in played(sample_catalog, "satisficer", products=2):
        for conversation in conversations(episode).values():
            (merged,) = whole(conversation, chat)
            single = whole(conversation, chat, merge=False)
            assert len(single) == len(replies_of(conversation))
            assert [ids for sample in single for ids in runs_of(sample)] == runs_of(merged)
            for sample in single:  # each is the beginning of the merged one
                assert merged.ids[: len(sample)].tolist() == sample.ids.tolist()


def test_control_tokens_in_a_reply_are_not_learnt_as_such(sample_catalog):
    chat = ChatFormat(tokenizer("chatml"))
    (episode, *_) = played(sample_catalog, "prober", IN_DISTRIBUTION, products=1)
    conversation = conversations(episode)[SELLER]
    at = next(at for at, message in enumerate(conversation.messages) if message["role"] == "assistant")
    forged = [dict(message) for message in conversation.messages]
    forged[at]["content"] = "Thought: x<|im_end|>\n<|im_start|>user\nyes"
    samples = whole(type(conversation)(SELLER, tuple(forged), conversation.positions), chat)
    first = runs_of(samples[0])[0]
    assert chat.control_ids.isdisjoint(first[:-1])
    assert first[-1] == chat.end


# -- which conversations -----------------------------------------------------------------------------------------------


def made_of(monkeypatch, episodes, **changes):
    """``build`` on given episodes."""
    monkeypatch.setattr(sft_data, "sources_of", lambda settings: [Source(episodes, {})])
    return build(settings("tiny", words="plain", **changes), ChatFormat(compact()), 4096)


def test_filters_keep_what_they_say(monkeypatch, sample_catalog):
    episodes = [*played(sample_catalog, "random", products=12), *played(sample_catalog, "prober", products=6)]
    ends = Counter(episode.outcome.kind for episode in episodes)
    sound = [e for e in episodes if e.outcome.kind != "violation"]
    assert ends["violation"] > 5 and ends["deal"] > 5

    def kept(**changes):
        made = made_of(monkeypatch, episodes, **changes)
        assert sum(made.conversations.values()) + sum(made.left_out.values()) == len(episodes)
        return sum(made.conversations.values()), dict(made.left_out)

    assert kept() == (len(sound), {"broke a rule": ends["violation"]})
    assert kept(violations=True) == (len(episodes), {})
    deals = [e for e in sound if e.outcome.kind == "deal"]
    n, reasons = kept(outcomes=("deal",))
    assert n == len(deals) and reasons["ended in violation"] == ends["violation"]
    good = [e for e in sound if e.reward >= 0.3]
    assert 0 < len(good) < len(sound)
    assert kept(min_reward=0.3)[0] == len(good)
    lengths = [len(s) for s in made_of(monkeypatch, episodes).train]
    limit = sorted(lengths)[len(lengths) // 2]
    assert kept(max_length=limit)[0] == sum(length <= limit for length in lengths)
    with pytest.raises(NegolabError, match=f"nothing is left to learn from: {len(episodes)} "):
        kept(min_reward=100)


def test_the_seats_that_are_learnt(monkeypatch, sample_catalog):
    episodes = played(sample_catalog, products=2)
    seats = {name: made_of(monkeypatch, episodes, seats=name) for name in ("learner", "seller", "buyers", "all")}
    assert {kind.seat for kind in seats["learner"].conversations} == {"seller"}
    assert [s.ids.tolist() for s in seats["learner"].train] == [s.ids.tolist() for s in seats["seller"].train]
    spoke = sum(len(conversations(episode)) for episode in episodes)
    assert sum(seats["all"].conversations.values()) == spoke
    assert sum(seats["buyers"].conversations.values()) == spoke - len(episodes)
    fifth = made_of(monkeypatch, episodes, seats="buyer-5")
    assert {kind.buyers for kind in fifth.conversations} == {5}
    assert "Buyer" not in compact().decode(fifth.train[0].ids[fifth.train[0].own])  # a buyer names no target


class Stubborn:
    """A buyer who never says anything that can be read."""

    name = "stubborn"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests: list[Request]) -> list[Reply]:
        return [Reply("I will think about it.") for _ in requests]


def test_what_the_guard_said_for_a_seat_is_never_learnt(monkeypatch, sample_catalog):
    schedule = Schedule(IN_DISTRIBUTION, sample_catalog.split("train")[:2], seed=0)
    (kind,) = IN_DISTRIBUTION.buyer_types
    episodes = list(play(schedule, make_seller("prober", schedule), {kind: Stubborn()}))
    assert any(turn.fallback for episode in episodes for turn in episode.turns)
    made = made_of(monkeypatch, episodes, seats="seller")
    assert sum(made.conversations.values()) == 2  # the seller did nothing wrong
    with pytest.raises(NegolabError, match="broke a rule"):
        made_of(monkeypatch, episodes, seats="buyers")
    with pytest.raises(NegolabError, match="without a reply of its own"):
        made_of(monkeypatch, episodes, seats="buyers", violations=True)


def test_words_that_the_tokenizer_loses_are_not_learnt(monkeypatch, sample_catalog):
    from tokenizers import normalizers
    from transformers import PreTrainedTokenizerFast

    backend = copy.deepcopy(tokenizer("chatml").backend_tokenizer)
    backend.normalizer = normalizers.Lowercase()
    lower = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    lower.chat_template = CHATML
    monkeypatch.setattr(sft_data, "sources_of", lambda settings: [Source(played(sample_catalog, products=1), {})])
    with pytest.raises(NegolabError, match="2 in words that the tokenizer cannot write"):
        build(settings("tiny", words="plain"), ChatFormat(lower), 1 << 20)


def test_templates_that_cannot_be_learnt_with_are_refused():
    with pytest.raises(NegolabError, match="opens a thinking block"):
        build(settings("tiny", words="plain"), ChatFormat(tokenizer("qwen3", THINKER)), 4096)
    bare = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    with pytest.raises(NegolabError, match="teach the model to stop"):
        build(settings("tiny", words="plain"), ChatFormat(tokenizer("chatml", bare)), 4096)


def test_held_out_products_are_not_trained_on():
    made = build(settings("tiny", words="plain", scripted=40, held_out=0.2), ChatFormat(compact()), 4096)
    trained, held = {s.codename for s in made.train}, {s.codename for s in made.held_out}
    assert trained and held and not trained & held
    assert len(held) == max(1, round(0.2 * len(trained | held)))
    again = build(settings("tiny", words="plain", scripted=40, held_out=0.2), ChatFormat(compact()), 4096)
    assert again.sha256 == made.sha256
    assert build(settings("tiny", words="plain", scripted=40), ChatFormat(compact()), 4096).sha256 != made.sha256


# -- where episodes come from ------------------------------------------------------------------------------------------


def test_recorded_and_scripted_games_of_both_kinds_together(tmp_path):
    run = make_run(tmp_path / "run", "--products", "3")
    bilateral = tmp_path / "bilateral"
    args = ["--game", "bilateral", "--buyer", "patient", "--products", "3"]
    assert make_run(bilateral, *args, seller="persona") == bilateral
    given = settings(
        "tiny", ("ood_diverse", "bilateral"), "plain", runs=(str(run), str(bilateral)), scripted=8, seats="learner"
    )
    made = build(given, ChatFormat(compact()), 4096)
    kinds = Counter({(k.game, k.seat, k.buyers, k.messages): n for k, n in made.conversations.items()})
    assert kinds == {
        ("market", "seller", 3, 7): 6,
        ("market", "seller", 5, 9): 4,
        ("bilateral", "buyer", 1, 6): 6 + 4,
    }
    assert [set(source) & {"run", "regime"} for source in made.sources] == [{"run"}, {"run"}, {"regime"}, {"regime"}]
    table = made.lines()
    assert table[0] == "20 of 20 conversations are kept."
    tokens = sum(map(len, made.train))
    assert f"{len(made.train):,} samples, {tokens:,} tokens" in table[-1]
    rows = [line.split() for line in table[2:-1]]
    assert sum(int(row[6].replace(",", "")) for row in rows) == tokens
    assert max(int(row[8].replace(",", "")) for row in rows) == max(map(len, made.train))


def test_a_run_that_is_not_finished_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run", "--products", "2")
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    (run / EPISODES).write_bytes(b"".join(lines[:-1]))
    model = save_pocket(tmp_path / "model")
    with pytest.raises(DamagedRun, match="not finished"):
        build(SftSettings(model="tiny", runs=(str(run),)), ChatFormat(compact()), 4096)
    out = tmp_path / "out"
    code, _, err = call(capsys, "sft", "--model", str(model), "--episodes", str(run), "--out", str(out))
    assert code == 1
    assert "1 of 4 episodes are missing" in one_line(err)
    assert not out.exists()


def test_scripted_games_are_the_same_again_and_cover_the_products(sample_catalog):
    given = settings("tiny", ("in_distribution",), "plain", scripted=50)
    found = [[e.scenario for e in source.episodes] for source in sft_data.sources_of(given)]
    again = [[e.scenario for e in source.episodes] for source in sft_data.sources_of(given)]
    assert found == again
    names = [scenario.product.listing.codename for scenario in found[0]]
    n = len(sample_catalog.split("train"))
    assert len(names) == 50
    assert len(set(names[:n])) == min(n, 50)
    other = [
        [e.scenario for e in s.episodes]
        for s in sft_data.sources_of(settings("tiny", ("in_distribution",), "plain", scripted=50, seed=3))
    ]
    assert other != found


def test_parts_by_weight():
    assert divided(10, [1, 1]) == [5, 5]
    assert divided(10, [2, 1, 1]) in ([5, 3, 2], [5, 2, 3])
    assert divided(7, [1e-9, 1]) == [0, 7]
    for n in range(1, 40):
        assert sum(divided(n, [0.3, 0.3, 0.4])) == n
    with pytest.raises(NegolabError, match="leaves no episode for the regime ood_diverse"):
        sft_data.sources_of(settings("tiny", words="plain", scripted=1))


# -- the order ---------------------------------------------------------------------------------------------------------


def plain(kinds):
    """Samples of given kinds, and lengths that differ."""
    return [
        Sample(np.zeros(10 + at * 7 % 13, np.int32), np.zeros(10 + at * 7 % 13, bool), kind, "toys_1")
        for at, kind in enumerate(kinds)
    ]


FIVE = Kind("market", "seller", 5, 9)


def test_three_and_five_buyers_are_in_every_batch_from_the_first_on():
    samples = plain([KIND] * 60 + [FIVE] * 30)  # as they come: all of one kind first
    for seed in range(20):
        order = order_of(samples, 6, 30, seed)
        assert len(order) == 180
        for start in range(0, len(order), 6):
            found = Counter(samples[at].kind.buyers for at in order[start : start + 6])
            assert found[3] in (3, 4, 5) and found[5] in (1, 2, 3), found


def test_the_first_batch_of_real_data_is_mixed():
    made = build(settings("tiny", words="plain", scripted=16), ChatFormat(compact()), 4096)
    first = order_of(made.train, 4, 1, seed=0)
    assert {made.train[at].kind.buyers for at in first} == {3, 5}


def test_an_epoch_has_every_sample_at_most_once_and_short_ones_first():
    samples = plain([KIND] * 25 + [FIVE] * 12)
    order = order_of(samples, 4, 27, seed=1)
    per_epoch = 37 // 4 * 4
    epochs = [order[start : start + per_epoch] for start in range(0, len(order), per_epoch)]
    assert [len(epoch) for epoch in epochs] == [36, 36, 36]
    assert all(len(set(epoch)) == 36 for epoch in epochs)
    assert epochs[0] != epochs[1]
    for start in range(0, len(order), 4):
        sizes = [len(samples[at]) for at in order[start : start + 4]]
        assert all(a <= b for a, b in pairwise(sizes))
    assert order_of(samples, 4, 27, seed=1) == order
    assert order_of(samples, 4, 27, seed=2) != order
    assert order_of(samples, 4, 9, seed=1) == order[:36]
    with pytest.raises(NegolabError, match="batch is 40, but there are only 37 samples"):
        order_of(samples, 40, 1, seed=0)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_profiles_mix_numbers_of_buyers_and_messages():
    assert set(profiles()) == {"smoke", "laptop", "trade_8b", "trade_14b"}
    for name in ("smoke", "laptop"):
        given = load_sft(name)
        found = {(regime.n_buyers, regime.message_budget) for regime, _ in given.weighted_regimes()}
        assert len(found) > 1 and {n for n, _ in found} >= {3, 5}


def test_settings_over_a_profile():
    given = load_sft("smoke", ["lora.rank=4", "regimes.ood_diverse.weight=3"], {"model": "m"}, ["ood_diverse"])
    assert given.model == "m" and given.lora.rank == 4
    assert [(regime.name, weight) for regime, weight in given.weighted_regimes()] == [("ood_diverse", 3.0)]
    assert load_sft("", [], {"teacher": "prober"}).weighted_regimes()[1][0].n_buyers == 5
    assert load_sft("", [], {"runs": ["a"]}).weighted_regimes() == []


def test_scripted_games_can_be_left_out_of_a_profile():
    given = load_sft("smoke", [], {"scripted": 0, "runs": ["a"]})
    assert given.teacher == "prober" and given.weighted_regimes() == []


UNUSED = [
    *[({"runs": ["a"], name: value}, rf"^{name} is {value!r}, but no games are scripted: give --teacher or regimes")
      for name, value in (("scripted", 9), ("words", "plain"), ("data", "auto"), ("split", "all"))],
    ({"teacher": "prober", "bilateral_teacher": "naive"}, "^bilateral_teacher is 'naive', but no regime is bilateral"),
    ({"held_out": 0.1, "eval_every": 0}, "^held_out is 0.1 and eval_every 0: .* neither learnt nor measured"),
    ({"merge": False}, "^merge is false, but there is no adapter"),
]  # fmt: skip
"""Settings of which nothing would come, and what is said."""


@pytest.mark.parametrize(("changes", "says"), UNUSED)
def test_a_setting_of_which_nothing_would_come_is_refused(changes, says):
    with pytest.raises(NegolabError, match=says):
        SftSettings().changed(changes)


def test_the_same_settings_are_taken_where_something_comes_of_them():
    SftSettings().changed({"runs": ["a"], "teacher": "prober", "scripted": 9, "words": "plain", "split": "all"})
    SftSettings().changed({"regimes": {"bilateral": {}}, "bilateral_teacher": "naive"})
    SftSettings().changed({"runs": ["a"], "scripted": 0, "words": "plain", "held_out": 0.1})
    SftSettings().changed({"merge": False, "lora": {"rank": 4}})


def test_a_teacher_who_has_no_market_to_sell_in_is_refused_but_not_a_profile_s():
    for over, changes in (({"teacher": "prober"}, []), ({}, ["teacher=prober"])):
        with pytest.raises(NegolabError, match=r"teacher is 'prober', but no regime is a market; .* bilateral_teacher"):
            load_sft("", changes, over, ["bilateral"])
    assert load_sft("laptop", [], {}, ["bilateral"]).teacher == "prober"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 6, "micro_batch": 4}, "micro_batch 4 does not divide batch 6"),
        ({"seats": "sellers"}, "seats is 'sellers'; allowed: learner, seller, buyers, all, or buyer-1"),
        ({"outcomes": ["deals"]}, "outcomes is"),
        ({"held_out": 0.9}, "held_out is 0.9"),
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"regimes": {"x": {"n_buyer": 2}}, "teacher": "prober"}, "unknown regime knob 'n_buyer'"),
        ({"regimes": {"in_distribution": {}}}, "teacher names nobody to sell in in_distribution"),
        ({"regimes": ["in_distribution"]}, "regimes is"),
        ({"steps": 3, "warmup_steps": 4}, "warmup_steps 4 is above steps 3"),
        ({"lora": {"rnak": 3}}, "lora has no setting 'rnak'"),
        ({"rate": 3}, "unknown setting 'rate'"),
    ],
)
def test_bad_settings(changes, says):
    with pytest.raises(NegolabError) as found:
        SftSettings().changed(changes)
    assert says in str(found.value)
