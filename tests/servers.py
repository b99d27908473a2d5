"""Real servers on the loopback interface that speak the chat completions dialect: one behaves, one does not.

``ModelServer`` answers with a seller's legal words, a function of the seed and the messages alone, and keeps books:
what it was asked, what it answered with status 200, how many requests were under way at once. ``faults`` says what it
does instead, by request and try.
"""

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "fake-1b"

Fault = str
"""One of the names in ``_Handler.misbehave``, or ``wait:SECONDS`` before a good answer."""
Faults = Callable[[dict[str, Any], int], Fault | None]
"""The fault for a request (its body) at its n-th try (from 0); None: answer well."""


def name_of(body: dict[str, Any]) -> str:
    """The same for all tries of one request."""
    return hashlib.sha256(json.dumps([body["messages"], body.get("seed")]).encode()).hexdigest()


def words(body: dict[str, Any]) -> str:
    """A seller's legal reply to the last message: a deal that pays, or a price between cost and list price."""
    system, last = body["messages"][0]["content"], body["messages"][-1]["content"]
    item = re.search(r"Codename: (\S+),", system)
    if item is None:  # not a market: somebody asks whether the server lives
        return "OK"
    cents = [int(found.replace(".", "").replace(",", "")) for found in re.findall(r"\$([0-9,]+\.[0-9]{2})", last)]
    listed, cost = cents[-2], cents[-1]
    draw = int(name_of(body)[:8], 16)
    active = [int(found) for found in re.findall(r"- Buyer (\d+): active", last)]
    buyer = active[draw % len(active)]
    bids = re.search(rf"Buyer {buyer}'s action history: (.*)", last)[1]
    prices = [int(p.replace(".", "").replace(",", "")) for p in re.findall(r"\[BUY\] \$([0-9,]+\.[0-9]{2})", bids)]
    if prices and prices[-1] > cost + (listed - cost) * (30 + draw % 40) // 100:
        verb, price = "DEAL", prices[-1]
    else:
        verb, price = "SELL", cost + (listed - cost) * (50 + draw % 50) // 100
    return (
        f"Thought: draw {draw}\nTarget: Buyer {buyer}\nTalk: The best I can do.\n"
        f"Action: [{verb}] ${price // 100:,}.{price % 100:02d} (1x {item[1]})"
    )


def reply(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole good answer; ``changes`` go over its message, and ``finish_reason``, ``model`` and ``usage`` over it."""
    messages = body["messages"]
    prompt = sum(len(m["content"]) for m in messages) // 4
    whole: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "model": changes.pop("model", body["model"]),
        "choices": [{"index": 0, "finish_reason": changes.pop("finish_reason", "stop")}],
        "usage": changes.pop(
            "usage",
            {"prompt_tokens": prompt, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": prompt // 2}},
        ),
    }
    content = changes.pop("content") if "content" in changes else words(body)
    whole["choices"][0]["message"] = {"role": "assistant", "content": content, **changes}
    return whole


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Http"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        books = self.server.books
        self.read_key()
        if books.models is None:
            self.answer(404, b"Not Found", "text/plain")
        else:
            self.answer(200, json.dumps({"object": "list", "data": [{"id": m} for m in books.models]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        books = self.server.books
        self.read_key()
        name = name_of(body)
        with books.lock:
            nth = books.tries[name]
            books.tries[name] += 1
            books.bodies.append(body)
            books.under_way += 1
            books.peak = max(books.peak, books.under_way)
        try:
            fault = None if books.faults is None else books.faults(body, nth)
            if fault is not None and not fault.startswith("wait:"):
                self.misbehave(fault, body)
                return
            time.sleep(books.delay if fault is None else float(fault[5:]))
            done = books.answer_with(body)
            sent = self.answer(200, json.dumps(done).encode())
            if sent:
                with books.lock:
                    books.answered[name] += 1
        finally:
            with books.lock:
                books.under_way -= 1

    def read_key(self) -> None:
        self.server.books.keys.add(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def answer(self, status: int, content: bytes, kind: str = "application/json", **headers: str) -> bool:
        """One packet where it fits, so that no delayed acknowledgement slows the tests; False: nobody was there."""
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        try:
            self.wfile.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        except OSError:
            self.close_connection = True
            return False
        return True

    def misbehave(self, fault: str, body: dict[str, Any]) -> None:
        good = json.dumps(reply(body, content="cut")).encode()
        key = self.headers.get("Authorization", "")
        if fault == "limit":
            self.answer(429, b'{"error":{"message":"slow down"}}', Retry_After="0.05")
        elif fault == "limit-silent":
            self.answer(429, b'{"error":{"message":"slow down"}}')
        elif fault == "quota":
            self.answer(429, b'{"error":{"message":"You exceeded your quota","code":"insufficient_quota"}}')
        elif fault == "overloaded":
            self.answer(503, b"busy", "text/plain", Retry_After="0")
        elif fault == "broken":
            self.answer(500, json.dumps({"error": {"message": f"died with {key}"}}).encode())
        elif fault == "page":
            self.answer(
                502, b"<html><head><title>502</title></head><body><h1>Bad\nGateway</h1></body></html>", "text/html"
            )
        elif fault == "page-200":
            self.answer(200, b"<html><body>Please log in</body></html>", "text/html")
        elif fault == "truncated":
            self.answer(200, good[: len(good) // 2])
        elif fault == "short":  # fewer bytes than announced, then the end
            self.wfile.write(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n" + good)
            self.drop()
        elif fault == "empty":
            self.answer(200, b"")
        elif fault == "no-choices":
            self.answer(200, b'{"choices":[]}')
        elif fault == "error-200":
            self.answer(200, b'{"error":{"message":"upstream gone","code":502}}')
        elif fault == "aborted":
            self.answer(200, json.dumps(reply(body, finish_reason="abort")).encode())
        elif fault == "reset":
            self.drop(reset=True)
        elif fault == "hang":
            self.server.books.closing.wait(20)
            self.drop()
        elif fault == "drip":  # a byte now and then: every single read is in time
            self.wfile.write(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n")
            try:
                while not self.server.books.closing.wait(0.05):
                    self.wfile.write(b" ")
            except OSError:
                pass
            self.close_connection = True
        else:  # "STATUS message"; KEY stands for what was sent
            status, _, message = fault.partition(" ")
            told = {"error": {"message": message.replace("KEY", key.removeprefix("Bearer "))}}
            self.answer(int(status), json.dumps(told).encode())

    def drop(self, reset: bool = False) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            self.connection.close() if reset else self.connection.shutdown(socket.SHUT_RDWR)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512
    books: "ModelServer"

    def handle_error(self, *args: object) -> None:
        pass  # clients that go away are what these tests are about


class ModelServer:
    """A server for a ``with`` statement; ``url`` is its ``base_url``."""

    def __init__(
        self,
        faults: Faults | None = None,
        *,
        delay: float = 0.0,
        models: Iterable[str] | None = (MODEL,),
        answer_with: Callable[[dict[str, Any]], dict[str, Any]] = reply,
    ) -> None:
        """``delay``: seconds before a good answer; ``models``: what it lists, None: it has no list."""
        self.faults, self.delay, self.answer_with = faults, delay, answer_with
        self.models = None if models is None else list(models)
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.tries: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        """Good answers that were sent, by request."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.under_way = self.peak = 0

    def __enter__(self) -> "ModelServer":
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.books = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


def first_tries(kinds: Iterable[Fault], share: int = 100) -> Faults:
    """Faults for the first tries of a request: ``share`` per cent of the requests get one or two of ``kinds``, the
    same ones whatever the order of the requests; later tries are answered well."""
    chosen = list(kinds)

    def fault(body: dict[str, Any], nth: int) -> Fault | None:
        draw = int(name_of(body)[8:16], 16)
        if draw % 100 >= share or nth > (draw >> 8) % 2:
            return None
        return chosen[((draw >> 9) + nth) % len(chosen)]

    return fault
