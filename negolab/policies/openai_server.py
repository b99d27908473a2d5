"""One OpenAI-compatible server: its address, the key, one try of a request, and what its errors mean.

The key comes from the environment, goes into the ``Authorization`` header and nowhere else; where a server echoes it,
it is blotted out.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from negolab.errors import NegolabError
from negolab.policies import chat_completions as wire
from negolab.policies.retry import may_pass, retry_after
from negolab.policies.spec import OpenAISpec

PUBLIC = "https://api.openai.com/v1"
"""Asked where no address is given."""
TIMEOUT = "no answer in time"
"""The reason of a try that was answered too late or not at all."""
_IDLE = 3.0  # seconds that an unused connection is kept: servers drop theirs after 5 or more
_CONNECT = 10.0  # seconds, at most, until a server that does not even take the connection counts as not there
_LIST = 15.0  # seconds for a server's list of models
_SHOWN = 12  # models named in a message


class Again(Exception):
    """This try failed; another may not."""

    def __init__(self, reason: str, *, limited: bool = False, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.limited = limited
        """It was a rate limit."""
        self.after = after
        """Seconds that the server asks to wait."""


class TooLong(Exception):
    """Prompt and reply do not fit into the context."""

    def __init__(self, error: wire.ServerError) -> None:
        super().__init__(str(error))
        self.error = error


class Refused(NegolabError):
    """The server will not answer this request, however often it is asked."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


class Server:
    """What ``spec`` says of the server, checked. Connects to nothing until ``open``."""

    def __init__(self, spec: OpenAISpec) -> None:
        """Raises ``NegolabError`` for an address, a key or a ``body`` that cannot be used."""
        self.who = f"{spec.engine}:{spec.model}"
        self.model = spec.model
        self._base_url = spec.base_url or PUBLIC
        self.host = _host_of(self._base_url, self.who)
        self.private = _is_private(self.host)
        """It is on this machine or in a network of its own."""
        self._key = _checked_key(spec, self.who, self.private)
        self.extra = _checked_body(spec, self.who, self._key)
        """Further fields of every request."""
        self._spec = spec
        self._client: Any = None

    def __repr__(self) -> str:
        return f"Server({self.who!r})"

    def open(self) -> None:
        """Make the client; to be called in the loop that will use it."""
        import openai

        # The package went from httpx to httpx2: what its own client is made of is what fits.
        kind = openai.DefaultAsyncHttpxClient
        base = next(c for c in kind.__mro__ if c.__name__ == "AsyncClient")
        http = importlib.import_module(base.__module__.partition(".")[0])
        most = self._spec.concurrency + 1  # one more for a probe
        # A server that is not there must show as that, not as slow.
        connect = min(_CONNECT, self._spec.timeout / 2)
        self._client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self._base_url,
            max_retries=0,
            http_client=kind(
                limits=http.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=_IDLE),
                timeout=http.Timeout(None, connect=connect),  # the whole of a try is limited in ``send``
                trust_env=not self.private,  # a proxy is for the outside
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def send(self, body: Mapping[str, Any], seconds: float) -> bytes:
        """One try within ``seconds``: the body of a success.

        Raises ``Again``, ``TooLong``, or ``Refused`` for what no further try can mend.
        """
        import openai

        rest = {name: value for name, value in body.items() if name not in ("model", "messages")}
        try:
            async with asyncio.timeout(seconds):
                raw = await self._client.chat.completions.with_raw_response.create(
                    model=body["model"], messages=body["messages"], extra_body=rest
                )
                return bytes(raw.content)
        except TimeoutError:
            raise Again(TIMEOUT) from None
        except openai.APIStatusError as error:
            headers = error.response.headers
            problem = self._read(error)
        except openai.APIConnectionError as error:
            raise Again(_reason_of(error)) from None
        if wire.too_long(problem):
            raise TooLong(problem)
        if "insufficient_quota" in problem.code or not may_pass(problem.status):
            raise Refused(problem.status, await self._explained(problem)) from None
        raise Again(f"HTTP {problem.status}", limited=problem.status == 429, after=retry_after(headers))

    async def check(self) -> tuple[list[str], bytes]:
        """Is the server there, and does it list the model? Returns the models it lists and the list as it came; both
        are empty for a server that keeps none. Raises ``NegolabError`` where it is not there or refuses the key."""
        import openai

        try:
            async with asyncio.timeout(min(_LIST, self._spec.timeout)):
                raw = await self._client.models.with_raw_response.list()
                content = bytes(raw.content)
                return [self.redacted(name) for name in wire.model_names(content)], content
        except TimeoutError:
            raise NegolabError(f"{self.who}: {self._place} does not answer") from None
        except openai.APIStatusError as error:
            problem = self._read(error)
            if problem.status == 401:
                raise Refused(problem.status, await self._explained(problem)) from None
            return [], b""
        except openai.APIConnectionError as error:
            raise NegolabError(f"{self.who}: {self._place} cannot be reached ({_reason_of(error)})") from None

    def warnings(self) -> list[str]:
        """What a user should know of how this server is reached."""
        if self._base_url.startswith("http:") and not self.private and self._key != "none":
            return [f"the key goes to {self.host} unencrypted (http)"]
        return []

    def redacted(self, text: str) -> str:
        """``text`` without the key."""
        return text.replace(self._key, "***") if self._key in text and len(self._key) > 5 else text

    @property
    def _place(self) -> str:
        return f"the server at {self._base_url}"

    def _read(self, error: Any) -> wire.ServerError:
        found = wire.read_error(error.status_code, self.redacted(error.response.text).encode("utf-8", "replace"))
        return found._replace(message=self.redacted(found.message))  # it may have been escaped in the JSON

    async def _explained(self, problem: wire.ServerError) -> str:
        """What the user can do about an error that stays."""
        told = f"{self.who}: {problem}"
        if problem.status in (401, 403):
            return f"{told}; see the key in the environment variable {self._spec.key_env}"
        if problem.status == 429:
            return f"{told}; the account's quota is used up"
        if problem.status == 404:
            try:
                names = (await self.check())[0]
            except NegolabError:
                names = []
            if names:
                return f"{told}; the server offers: {some(names)}"
            return f"{told}; see the model's name, and base_url ({self._base_url}), which mostly ends in /v1"
        return told


def some(names: list[str]) -> str:
    """A few of the names, for a message."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _reason_of(error: BaseException) -> str:
    """A connection's failure in a few words, without addresses."""
    kinds: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(kinds) < 10:
        kinds.append(type(cause).__name__)
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, ConnectionResetError):
            return "connection reset"
        cause = cause.__cause__ or cause.__context__
    if "ConnectTimeout" in kinds:
        return "no connection in time"
    if "gaierror" in kinds:
        return "host name not found"
    if any("SSL" in kind or "Certificate" in kind for kind in kinds):
        return "TLS failed"
    if "ConnectError" in kinds:
        return "no connection"
    return TIMEOUT if "APITimeoutError" in kinds else "connection broken"


def _host_of(base_url: str, who: str) -> str:
    """The host of a checked address."""
    says = "allowed: http://HOST:PORT/v1 or https://HOST/v1, without user, password, query or fragment"
    try:
        parts = urlsplit(base_url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        raise NegolabError(f"{who}: base_url is no address; {says}") from None
    if "@" in parts.netloc:  # not shown: it may hold a password
        raise NegolabError(f"{who}: base_url holds a user or password; {says}")
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or not port_fits or any(c.isspace() for c in base_url):
        raise NegolabError(f"{who}: base_url is {base_url!r}; {says}")
    if parts.query or parts.fragment:  # not shown: it may hold a key
        raise NegolabError(f"{who}: base_url holds a query or fragment; {says}")
    if parts.path.rstrip("/").endswith(("/completions", "/models")):
        raise NegolabError(f"{who}: base_url is {base_url!r}; give the part before /chat/completions")
    return host


def _is_private(host: str) -> bool:
    """Whether the host is this machine or in a network of its own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".lan", ".home.arpa"))
    return address.is_private or address.is_loopback or address.is_link_local


def _checked_key(spec: OpenAISpec, who: str, private: bool) -> str:
    """The key from the environment; servers of one's own need none."""
    key = os.environ.get(spec.key_env, "").strip()
    if not key:
        if not private:
            raise NegolabError(f"{who} needs a key in the environment variable {spec.key_env}")
        return "none"
    if not key.isascii() or not key.isprintable() or " " in key:
        raise NegolabError(f"{who}: the key in the environment variable {spec.key_env} holds characters no key has")
    return key


def _checked_body(spec: OpenAISpec, who: str, key: str) -> dict[str, Any]:
    if len(key) > 5 and (key in spec.body or key in spec.base_url):
        raise NegolabError(f"{who}: the key stands in an option; it belongs into the environment variable only")
    body: dict[str, Any] = json.loads(spec.body)
    taken = [name for name in wire.OURS if name in body]
    if taken:
        raise NegolabError(f"{who}: body sets {', '.join(taken)}; allowed: every field but {', '.join(wire.OURS)}")
    for name in wire.LIMITS:
        if body.get(name) is not None and (type(body[name]) is not int or body[name] < 1):
            raise NegolabError(f"{who}: body sets {name} to {body[name]!r}; allowed: a whole number from 1, or null")
    return body
