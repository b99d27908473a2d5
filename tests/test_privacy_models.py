"""What one seat knows and another must not stays out of every prompt that a model gets, whoever else plays.

Every word that a model says here carries a mark of who said it, where, and in which part of its reply. The prompts are
then searched for all marks, budgets, costs and seeds, and each must be one that this seat may know.
"""

import re
from collections import Counter

import pytest

from engines import FakeEngine
from markets import ONE_ITEM
from negolab.catalog import load_catalog
from negolab.environment.base import SELLER
from negolab.money import dollars
from negolab.policies.engine import Completion, Prompt
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers, make_seller
from negolab.policies.spec import spec_of
from negolab.rollout import play
from negolab.scenario import Schedule, regime

SEED = 314_159_265_358
SPEC = spec_of("openai:fake", {"name": "quetzalcoatl", "base_url": "http://localhost:1/v1"})
MARK = re.compile(r"\b(thought|talk|mind|refused)-(\d+)-(\d+)-(\d+)-\d+\b")
MONEY = re.compile(r"\$[0-9][0-9,]*\.[0-9]{2}")


class Speaker:
    """Speaks for every seat that is a model. A buyer's first try at every turn breaks a rule, so that it is refused."""

    def __init__(self) -> None:
        self._said: Counter[tuple[int, int]] = Counter()

    def __call__(self, prompt: Prompt) -> Completion:
        episode, seat = prompt.conversation
        n = self._said[prompt.conversation]
        self._said[prompt.conversation] += 1
        system, last = prompt.messages[0]["content"], prompt.messages[-1]["content"]
        if seat == SELLER:
            code = re.search(r"Codename: (\S+),", system)[1]
            active = re.findall(r"- Buyer (\d+): active", last)
            channel, price = active[n % len(active)], re.search(r"List price: (\$[0-9.,]+)\.", last)[1]
            target, action = f"Target: Buyer {channel}\n", f"[SELL] {price} (1x {code})"
        else:
            context = prompt.messages[1]["content"]
            code, channel, target = re.search(r"Codename: (\S+)", context)[1], seat, ""
            fixed = re.search(r"\[BUY\] (\$[0-9.,]+)", context)
            action = f"[BUY] {fixed[1] if fixed else '$1.01'} (1x {code})"
            if n % 2 == 0:
                return Completion(
                    f"refused-{episode}-{seat}-{channel}-{n} is no reply", "stop", reasoning="mind-0-0-0-0"
                )
        marks = {part: f"{part}-{episode}-{seat}-{channel}-{n}" for part in ("thought", "talk", "mind")}
        text = f"Thought: {marks['thought']}\n{target}Talk: Hear my {marks['talk']}.\nAction: {action}"
        return Completion(text, "stop", 10, 10, reasoning=marks["mind"])


def games(name: str, cast: str):
    """Episodes and the prompts of all model seats; ``cast`` says who is one."""
    schedule = Schedule(regime(name), load_catalog("sample").split("test")[:5], seed=SEED, per_product=2)
    engine = FakeEngine(Speaker(), window=4)
    model, kinds = LanguageModel(SPEC, engine), schedule.regime.buyer_types
    seller = make_seller("prober", schedule) if cast == "buyers" else model
    buyers = make_buyers(kinds) if cast == "seller" else dict.fromkeys(kinds, model)
    if cast == "mixed":  # in a market of one type all buyers are models
        buyers |= make_buyers(kinds[1:])
    episodes = {episode.scenario.episode: episode for episode in play(schedule, seller, buyers)}
    assert len(episodes) == len(schedule) and len(engine.asked) > 50
    return episodes, engine.asked


def leaks(prompt: Prompt, episodes) -> list[str]:
    """What is in a prompt that its seat must not know."""
    number, seat = prompt.conversation
    episode = episodes[number]
    scenario, text = episode.scenario, "\n".join(message["content"] for message in prompt.messages)
    found = []
    for mark in MARK.finditer(text):
        part, of, who, channel = mark[1], *map(int, mark.groups()[1:])
        mine = {"thought": who == seat, "talk": seat in (SELLER, channel)}.get(part, False)
        if of != number or not mine:
            found.append(mark[0])
    if any("Thought:" in message["content"] for message in prompt.messages if message["role"] == "user"):
        found.append("a label of somebody's Thought")
    heard = {turn.price for turn in episode.turns if turn.price is not None and seat in (SELLER, turn.buyer)}
    known = {scenario.product.listing.list_cents, *heard}
    known |= {scenario.product.cost_cents} if seat == SELLER else {scenario.budgets[seat - 1]}
    if seat and scenario.openings is not None:
        known.update(scenario.openings[seat - 1])
    shown = {dollars(cents) for cents in known}
    product = f"{scenario.product.listing.title}\n{scenario.product.listing.description}"
    found += [
        money for money in MONEY.findall(text.replace(product, "")) if money not in shown and money not in product
    ]
    if seat and re.search(r"Buyer \d", text):
        found.append("the number of a buyer")
    secret = {SEED, *scenario.keys, prompt.seed}
    found += [str(value) for value in secret if str(value) in text or f"{value:x}" in text.lower()]
    found += [name for name in ("quetzalcoatl", "prober", "iter-", "oracle") if name in text]
    return found


@pytest.mark.parametrize("cast", ["all", "seller", "buyers", "mixed"])
@pytest.mark.parametrize("name", sorted(ONE_ITEM))
def test_no_prompt_holds_what_its_seat_must_not_know(name, cast):
    episodes, asked = games(name, cast)
    assert {prompt.conversation: leaks(prompt, episodes) for prompt in asked if leaks(prompt, episodes)} == {}
    seats = {prompt.conversation[1] > SELLER for prompt in asked}
    assert seats == {"all": {False, True}, "seller": {False}, "buyers": {True}, "mixed": {False, True}}[cast]


def test_what_a_seat_may_know_is_there():
    """Else the search above would find nothing in prompts that hold nothing."""
    episodes, asked = games("ood_diverse", "all")
    last = {prompt.conversation: "\n".join(m["content"] for m in prompt.messages) for prompt in asked}
    heard = 0
    for (number, seat), text in last.items():
        turns = episodes[number].turns
        end = max(position for position, turn in enumerate(turns) if turn.seat == seat)
        before = [turn for turn in turns[:end] if seat in (SELLER, turn.buyer)]
        marks = {found[0] for turn in before for found in MARK.finditer(turn.text) if found[1] == "talk"}
        heard += len(marks)
        assert [mark for mark in marks if mark not in text] == [], (number, seat)
        assert all(turn.text in text for turn in before if turn.seat == seat)
    assert heard > 100
    assert any(len(set(episode.scenario.budgets)) > 1 for episode in episodes.values())


@pytest.mark.parametrize("seat", [SELLER, 2])
def test_the_search_finds_each_kind_of_leak(seat):
    episodes, asked = games("ood_diverse", "all")
    number = next(n for n, e in episodes.items() if len(set(e.scenario.budgets)) > 1)
    prompt = next(p for p in reversed(asked) if p.conversation == (number, seat))
    scenario = episodes[number].scenario
    assert leaks(prompt, episodes) == []
    other = next(b for b in scenario.budgets if b != scenario.budgets[1])
    secrets = {
        f"thought-{number}-3-3-1": f"thought-{number}-3-3-1",
        f"talk-{number + 1}-0-{seat}-1": f"talk-{number + 1}-0-{seat}-1",
        f"mind-{number}-{seat}-{seat}-1": f"mind-{number}-{seat}-{seat}-1",
        f"refused-{number}-{seat}-{seat}-0": f"refused-{number}-{seat}-{seat}-0",
        f"budget: {dollars(other)}": dollars(other),
        f"seed {SEED}": str(SEED),
        f"seed {prompt.seed:x}": str(prompt.seed),
        "Thought: hm": "a label of somebody's Thought",
        "a prober": "prober",
    }
    if seat != SELLER:
        secrets[f"talk-{number}-0-3-1"] = f"talk-{number}-0-3-1"
        secrets["so says Buyer 1"] = "the number of a buyer"
        secrets[f"cost: {dollars(scenario.product.cost_cents)}"] = dollars(scenario.product.cost_cents)
    for text, name in secrets.items():
        spoiled = prompt._replace(messages=[*prompt.messages, {"role": "user", "content": text}])
        assert leaks(spoiled, episodes) == [name], text
