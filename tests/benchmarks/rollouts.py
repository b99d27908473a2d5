"""How fast a language model plays: the transformers engine against transformers' own ``generate``, in one run.

    python tests/benchmarks/rollouts.py                       # 64 episodes; the single one on 4 of them, scaled
    python tests/benchmarks/rollouts.py --layers 4            # the same with a shortened model: minutes, not hours

The same weights (SmolLM2-135M-Instruct, float32, from its GGUF file), the same markets of the bundled sample, the model
as seller against the scripted buyers:

* ours: all episodes at once, keys and values kept between turns;
* batched: the same episodes at once through ``generate`` (padded on the left, a cache of its own for every turn);
* single: one episode at a time through ``generate``.

A model of this size breaks the format in its first reply, and its episodes would be one message long. So all three
hold it to the format in the same way (``prefix_allowed_tokens_fn`` and the engine's own hook): Thought and Talk are the
model's own tokens, as many as a number drawn from the reply's seed says; the target is the model's choice among the
active buyers; labels, price and codename are given, the price 4 % below the last one, never below cost. Decoding is
greedy, so all three begin with the same replies (how many are alike is printed); later ones may differ, because
``generate`` is given the conversation as text, and a model's own tokens need not be those that its text is read back
as. Wall-clock and CPU seconds are given, since other processes disturb the first.
"""

import argparse
import atexit
import json
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from negolab.catalog import load_catalog
from negolab.money import dollars
from negolab.policies.chat_template import ChatFormat
from negolab.policies.engine import Completion, Done, Prompt
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers
from negolab.policies.spec import TransformersSpec, located
from negolab.policies.transformers import TransformersEngine, make_engine
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, Schedule

MAX_TOKENS = 160


class Grammar:
    """Which tokens may come next in the reply to a prompt, in the seller's line format."""

    def __init__(self, chat: ChatFormat) -> None:
        import torch

        self._chat = chat
        size = len(chat.tokenizer)
        texts = chat.tokenizer.batch_decode([[token] for token in range(size)], clean_up_tokenization_spaces=False)
        free = [t for t, text in enumerate(texts) if "\n" not in text and "\ufffd" not in text]
        self._free = torch.tensor([token for token in free if token not in chat.control_ids])
        self._parts: dict[tuple[tuple[int, int], int], list[Any]] = {}

    def allowed(self, prompt: Prompt, out: Sequence[int]) -> Any:
        """Ids, as a tensor: the next token's place in the reply decides."""
        key = (prompt.conversation, len(prompt.messages))
        if key not in self._parts:
            self._parts[key] = self._reply(prompt)
        return self._parts[key][len(out)]

    def _reply(self, prompt: Prompt) -> list[Any]:
        """For each position of the reply what may stand there."""
        import torch

        system, last = prompt.messages[0]["content"], prompt.messages[-1]["content"]
        code = re.search(r"Codename: (\S+),", system)
        cost, price = (_cents(re.search(rf"^{name} = (\S+)", system, re.M)) for name in ("cost", "list_price"))
        assert code is not None
        own = sum(message["role"] == "assistant" for message in prompt.messages)
        asked = max(cost, round(price * (1 - 0.04 * own)))
        active = re.findall(r"- Buyer (\d+): active", last) or ["1"]
        draws = random.Random(prompt.seed)
        thought, talk = draws.randint(8, 40), draws.randint(6, 20)

        def fixed(text: str) -> list[Any]:
            return [torch.tensor([token]) for token in self._chat.encode(text)]

        digits = torch.tensor([self._chat.encode(digit)[-1] for digit in active])
        action = f"\nAction: [SELL] {dollars(asked)} (1x {code[1]})"
        end = [torch.tensor([self._chat.end])]
        return [
            *fixed("Thought:"),
            *[self._free] * thought,
            *fixed("\nTarget: Buyer "),
            digits,
            *fixed("\nTalk:"),
            *[self._free] * talk,
            *fixed(action),
            *end,
        ]


def _cents(found: re.Match[str] | None) -> int:
    assert found is not None
    return round(100 * float(found[1].lstrip("$").replace(",", "")))


class Plain:
    """An engine that is transformers' ``generate`` and nothing else, ``batch`` prompts at a time."""

    def __init__(self, ours: TransformersEngine, grammar: Grammar | None, batch: int) -> None:
        self._model, self._chat = ours._model._base, ours.conversations(None).chat  # type: ignore[union-attr]
        self._grammar, self.window = grammar, batch
        self._waiting: list[tuple[Prompt, Done]] = []
        self.prompt_tokens = self.sampled = 0

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        self._waiting += [(prompt, done) for prompt in prompts]

    def run(self) -> None:
        import torch

        taken, self._waiting = self._waiting[: self.window], self._waiting[self.window :]
        rows = [self._chat.ids(prompt.messages) for prompt, _ in taken]
        width = max(map(len, rows))
        ids = torch.tensor([[self._chat.end] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])

        found = self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=taken[0][0].sampling.max_tokens,
            pad_token_id=self._chat.end,
            **self._choice([prompt for prompt, _ in taken], width),
        )
        for (prompt, done), row, out in zip(taken, rows, found[:, width:].tolist(), strict=True):
            ended = self._chat.end in out
            reply = out[: out.index(self._chat.end) + 1] if ended else out
            self.prompt_tokens += len(row)
            self.sampled += len(reply)
            text, finish = self._chat.decode(reply), "stop" if ended else "length"
            done(prompt, Completion(text, finish, len(row), len(reply), ids=reply, prompt_ids=row))

    def _choice(self, prompts: Sequence[Prompt], width: int) -> dict[str, Any]:
        """How ``generate`` chooses tokens: the likeliest that the grammar allows. A subclass may sample instead."""

        def allowed(row: int, seen: Any) -> Any:
            out = seen[width:].tolist()
            if self._chat.end in out:
                return [self._chat.end]
            assert self._grammar is not None
            return self._grammar.allowed(prompts[row], out)

        return {"do_sample": False, "prefix_allowed_tokens_fn": allowed}

    def forget(self, conversation: tuple[int, int]) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {"model": "generate"}

    def report(self) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "computed": self.prompt_tokens, "sampled": self.sampled}

    def close(self) -> None: ...


def timed(engine: Any, spec: TransformersSpec, scenarios: Sequence[Any]) -> dict[str, Any]:
    """Play and measure."""
    model, buyers = LanguageModel(spec, engine), make_buyers(IN_DISTRIBUTION.buyer_types)
    before, wall, cpu = engine.report(), time.perf_counter(), time.process_time()
    episodes = list(play(scenarios, model, buyers))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = engine.report()
    counted = ("prompt_tokens", "computed", "reused", "shared", "sampled")
    changed = {name: after[name] - before[name] for name in counted if name in after}
    replies = sum(turn.seat == 0 for episode in episodes for turn in episode.turns)
    return {
        "episodes": len(episodes),
        "replies": replies,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        **changed,
        **{name: after[name] for name in ("prefill_seconds", "decode_seconds", "peak_cache_gb") if name in after},
        "texts": {e.scenario.episode: [turn.text for turn in e.turns] for e in episodes},
    }


def shortened(model: str, layers: int) -> str:
    """A folder with the model's first ``layers`` layers and all of its vocabulary: its words make no sense then, but a
    machine of two cores gets through the baselines in minutes instead of hours."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    path = Path(model)
    options = {"gguf_file": path.name} if path.is_file() else {}
    source = str(path.parent if path.is_file() else path)
    whole = AutoModelForCausalLM.from_pretrained(source, dtype="float32", **options)
    config = AutoConfig.from_pretrained(source, **options)
    config.num_hidden_layers = layers
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    short = AutoModelForCausalLM.from_config(config, dtype=whole.dtype)
    short.load_state_dict({name: whole.state_dict()[name] for name in short.state_dict()})
    folder = tempfile.mkdtemp(prefix="negolab-shortened-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    short.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, **options).save_pretrained(folder)
    return folder


def main() -> None:
    """Measure all three and print the table, then the same as one line of JSON."""
    import torch

    parser = argparse.ArgumentParser(description="transformers engine against generate")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--batched", type=int, default=64, help="episodes of the batched baseline")
    parser.add_argument("--single", type=int, default=4, help="episodes of the one-at-a-time baseline")
    parser.add_argument("--cache-gb", type=float, default=10.0)
    parser.add_argument("--model", default=located("smollm2-135m"))
    parser.add_argument("--layers", type=int, default=0, help="only the model's first so many layers; 0: all")
    args = parser.parse_args()
    if args.layers:
        args.model = shortened(args.model, args.layers)
    schedule = Schedule(IN_DISTRIBUTION, load_catalog("sample").split("test"), seed=1, per_product=3)
    scenarios = [schedule[i] for i in range(min(args.episodes, len(schedule)))]
    options = {"model": args.model, "temperature": 0.0, "max_tokens": MAX_TOKENS, "device": "cpu", "dtype": "float32"}
    spec = TransformersSpec(**options, batch=len(scenarios), cache_gb=args.cache_gb)
    engine = make_engine([spec])
    grammar = Grammar(engine.conversations(None).chat)
    engine.allowed = grammar.allowed
    engine._model = engine._loaded()
    makers: dict[str, tuple[int, Callable[[int], Any]]] = {
        "ours": (len(scenarios), lambda n: engine),
        "batched": (args.batched, lambda n: Plain(engine, grammar, n)),
        "single": (args.single, lambda n: Plain(engine, grammar, 1)),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (n, make) in makers.items():
        found[name] = timed(make(n), spec, scenarios[:n])
        print(f"{name}: {found[name]['episodes']} episodes, {found[name]['wall_s']} s", flush=True)
    ours = found["ours"]
    for row in found.values():
        first = {e: next(text for text in texts if "Target:" in text) for e, texts in row["texts"].items()}
        alike = sum(text in ours["texts"][episode] for episode, text in first.items())
        row["first_alike"] = f"{alike} of {len(first)}"
        # All tokens of the slower ones are computed alike in every episode: scaled to as many replies.
        same = sum(len(ours["texts"][e]) for e in ours["texts"]) / sum(len(ours["texts"][e]) for e in row["texts"])
        for unit in ("wall_s", "cpu_s"):
            row[f"ratio_{unit}"] = round(row[unit] * same / ours[unit], 2)
    columns = ("episodes", "replies", "wall_s", "cpu_s", "ratio_wall_s", "ratio_cpu_s", "prompt_tokens", "computed")
    columns = (*columns, "reused", "shared", "sampled", "peak_cache_gb", "first_alike")
    print(f"{'':<8}" + "".join(f"{column:>15}" for column in columns))
    for name, row in found.items():
        shown = [row.get(column, "") for column in columns]
        print(f"{name:<8}" + "".join(f"{value:>15}" for value in shown))
        row.pop("texts")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; ratios are scaled to the same turns")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
