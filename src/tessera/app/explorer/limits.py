"""What the server takes from strangers: its own pages' requests, small bodies, and connections that come to the point."""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_BODY = 1 << 18  # bytes; the largest request of the page has a tenth of it
_PATIENCE = 10.0  # seconds for the head of a request, and as many for its body
_MOST_CONNECTIONS = 400  # below the number of files that a process may usually open


class Guard:
    """Refuses requests of other pages, under other names, and with large or slow bodies, before anything reads them."""

    def __init__(self, app: ASGIApp, names: frozenset[str] | None):
        self.app, self.names = app, names  # None: any name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]}
        if refusal := self._refusal(headers):
            return await refusal(scope, receive, send)
        try:
            async with asyncio.timeout(_PATIENCE):
                body = await _whole_body(receive)
        except TimeoutError:
            body = None
        if body is None:
            return await _answer(413, "The request is too large or comes too slowly.")(scope, receive, send)
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replayed() -> Message:
            return next(parts, None) or await receive()

        await self.app(scope, replayed, send)

    def _refusal(self, headers: Mapping[str, str]) -> JSONResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.names is not None and _hostname(host) not in self.names:  # DNS rebinding
            return _answer(400, "Invalid host header: this server is not reached under that name.")
        if origin is not None and urlsplit(origin).netloc != host:  # another page in the same browser
            return _answer(403, "Requests come from the explorer's own page.")
        return None


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _answer(code: int, sentence: str) -> JSONResponse:
    return JSONResponse({"sentence": sentence}, status_code=code, headers={"Connection": "close"})


async def _whole_body(receive: Receive) -> bytes | None:
    """None if it is too large; what had come by then if the page leaves."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > _MOST_BODY:
            return None
    return body


class ImpatientProtocol(H11Protocol):
    """Closes connections that send no whole head of a request, the oldest of them at once when there are many."""

    idle: ClassVar[dict[Any, None]] = {}  # in the order of their arrival

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle[self] = None
        self._wait()
        waiting = [one for one in self.idle if one.is_idle()]
        if len(self.connections) > _MOST_CONNECTIONS and waiting:
            waiting[0].transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self.timer.cancel()
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self.timer = self.loop.call_later(_PATIENCE, self._look_again, self.cycle)

    def _look_again(self, cycle_before: Any) -> None:
        """Whether a request has begun since; one that is being answered may take as long as it likes."""
        if self.is_idle() and self.cycle is cycle_before:
            self.transport.abort()
        else:
            self._wait()
