"""Requests to one server, each with all its tries, and the books that are kept of them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from negolab.policies import chat_completions as wire
from negolab.policies.base import Failed
from negolab.policies.engine import Completion, Prompt, Sampling
from negolab.policies.openai_server import TIMEOUT, Again, Refused, Server, TooLong, some
from negolab.policies.retry import Backoff
from negolab.policies.spec import OpenAISpec

_SHRINKS = 12  # times that a reply's limit is lowered for one prompt: 1024 halves to 1 in ten
_COUNTS = (
    "requests",
    "tries",
    "answered",
    "failed",
    "timed_out",
    "probes",
    "most_under_way",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "shortened",
    "thinking_cut",
    "reasoning_given",
    "without_text",
    "waits_cut",
)
_log = logging.getLogger("negolab")


class Requests:
    """Asks ``server`` in the loop that opened it."""

    def __init__(self, spec: OpenAISpec, server: Server, backoff: Backoff) -> None:
        """``backoff``: how long to wait between tries."""
        self._spec = spec
        self._server = server
        self._backoff = backoff
        self._chance = random.Random()  # of waits only: decides no reply
        self._under_way = 0
        self._quiet_until = 0.0  # on the loop's clock: the server asked for it
        self.counts: Counter[str] = Counter()
        """By name, see ``report``."""
        self._retries: Counter[str] = Counter()
        self._others: Counter[str] = Counter()  # other models than the one asked for, by the server's names
        self._seconds = {"answering": 0.0, "waiting_for_limits": 0.0}

    def report(self) -> dict[str, Any]:
        """Counters since the beginning. ``answered``: tries that came back with status 200, to be paid whether they
        could be used or not; ``seconds``: summed over requests; tokens: as the server counts them."""
        return {
            **{name: self.counts[name] for name in _COUNTS},
            "retries": dict(sorted(self._retries.items())),
            "other_models": dict(self._others),
            "seconds": {name: round(value, 3) for name, value in self._seconds.items()},
        }

    async def answer(self, prompt: Prompt) -> Completion | Failed:
        """One request with all its tries. Raises ``Refused`` for what no further try can mend."""
        self.counts["requests"] += 1
        self._under_way += 1
        self.counts["most_under_way"] = max(self.counts["most_under_way"], self._under_way)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found, tries = await self._tried(prompt)
        finally:
            self._under_way -= 1
            self._seconds["answering"] += loop.time() - began
        if isinstance(found, Failed):
            return found
        return found._replace(seconds=round(loop.time() - began, 3), tries=tries)

    async def _tried(self, prompt: Prompt) -> tuple[Completion | Failed, int]:
        body = wire.request_of(prompt, self._spec.model, self._spec.seeded, self._server.extra)
        tries = shrinks = 0
        failed: list[str] = []
        while True:
            tries += 1
            try:
                found = await self._try(body, prompt)
            except TooLong as refused:
                limit = wire.limit_of(body)
                fits = None if limit is None or shrinks == _SHRINKS else wire.shorter(refused.error, limit[1])
                if limit is None or fits is None:
                    return Completion(None, "context_limit"), tries
                body[limit[0]] = fits
                shrinks += 1
                self.counts["shortened"] += shrinks == 1
            except Again as problem:
                failed.append(problem.reason)
                if len(failed) > self._spec.retries:
                    if set(failed) == {TIMEOUT}:
                        return Completion(None, "timeout"), tries
                    return Failed(f"{problem.reason} (try {len(failed)} of {self._spec.retries + 1})"), tries
                self._retries[problem.reason] += 1
                await self.wait(len(failed), problem)
            else:
                if shrinks and found.finish_reason == "length":  # it was the context that cut it, not our limit
                    found = found._replace(finish_reason="context_limit")
                return found, tries

    async def _try(self, body: Mapping[str, Any], prompt: Prompt) -> Completion:
        loop = asyncio.get_running_loop()
        while (left := self._quiet_until - loop.time()) > 0:
            await asyncio.sleep(left)
        self.counts["tries"] += 1
        content = await self._server.send(body, self._spec.timeout)
        self.counts["answered"] += 1
        try:
            answer = wire.read_reply(content, prompt.sampling.thinking, prompt.native)
        except wire.Unreadable as problem:
            raise Again(self._server.redacted(str(problem))) from None
        found = answer.completion
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self.counts[name] += getattr(found, name) or 0
        self.counts["thinking_cut"] += answer.cut
        self.counts["reasoning_given"] += found.reasoning is not None and not answer.cut
        self.counts["without_text"] += not found.text
        if not wire.same_model(self._spec.model, answer.model):
            self._note_other(self._server.redacted(wire.one_line(answer.model, 100)))
        return found._replace(
            text=None if found.text is None else self._server.redacted(found.text),
            reasoning=None if found.reasoning is None else self._server.redacted(found.reasoning),
        )

    async def wait(self, failed: int, problem: Again) -> None:
        """Before the next try. A wait that the server asks for is kept by all requests."""
        loop, chance = asyncio.get_running_loop(), self._chance.random()
        began = loop.time()
        if problem.after is None:
            await asyncio.sleep(self._backoff.seconds(failed, problem.limited, chance))
        else:
            told = min(problem.after, self._backoff.told)
            self.counts["waits_cut"] += told < problem.after
            self._quiet_until = max(self._quiet_until, began + told)
            # Not all at once when the time is over.
            await asyncio.sleep(told + chance * self._backoff.seconds(failed, False, 1.0))
        if problem.limited:
            self._seconds["waiting_for_limits"] += loop.time() - began

    def _note_other(self, model: str) -> None:
        if not self._others:
            _log.warning("%s: the server says that the replies are from %s", self._server.who, model)
        self._others[model] += 1

    def small(self) -> dict[str, Any]:
        """The body of a request for one token."""
        spec = self._spec
        sampling = Sampling(spec.temperature, spec.top_p, spec.top_k, 1, spec.thinking)
        prompt = Prompt((0, 0), [{"role": "user", "content": "Say OK."}], 0, sampling, "")
        body = wire.request_of(prompt, spec.model, spec.seeded, self._server.extra)
        limit = wire.limit_of(body)
        return body if limit is None else {**body, limit[0]: 1}

    async def look(self, longest: int, max_tokens: int) -> list[str]:
        """What a user should know before a run whose longest conversation begins with ``longest`` characters.

        Raises ``NegolabError`` where the server is not there, refuses the key or does not have the model.
        """
        names, content = await self._server.check()
        told = self._server.warnings()
        model = self._spec.model
        if names and model not in names:
            told.append(f"the server does not list this model; it offers: {some(names)}")
            try:
                await self._server.send(self.small(), self._spec.timeout)
            except (Again, TooLong):
                pass
            except Refused as refused:
                if refused.status in (401, 403, 404):
                    raise
        tokens = longest // 4  # English, roughly
        for context in wire.context_lengths(content, model):
            if tokens + max_tokens > context:
                told.append(
                    f"the server's context is {context} tokens; the longest conversation begins with about {tokens}, "
                    f"and a reply may take {max_tokens}: episodes may end as context_limit"
                )
        return told
