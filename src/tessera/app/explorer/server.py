"""The page and its wires: one FastAPI application, answers as server-sent events, nothing from outside."""

import asyncio
import errno
import json
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import Receive, Scope, Send

from tessera.app.explorer import requests
from tessera.app.explorer.queue import JobQueue, QueuedJob, events_of
from tessera.app.explorer.requests import Drawing, Probing, Watching, first_complaint
from tessera.app.explorer.work import Event, Session
from tessera.console import say
from tessera.errors import UserError
from tessera.provenance import device_name, provenance
from tessera.sampling.compose import COMPOSE_METHODS
from tessera.scenes.vocabulary import COLORS, LOCATIONS

PAGE = Path(__file__).parent / "page"
PULSE_SECONDS = 5.0
QUIET_SECONDS = 15.0  # after so long without an event a comment shows whether somebody still listens
EVERYWHERE = ("0.0.0.0", "::")
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Explorer:
    """The state of one server: its studio, its line, and a name that changes when it is started anew."""

    def __init__(self, session: Session):
        self.session, self.line = session, JobQueue()
        self.boot = secrets.token_hex(6)
        self.palette = palette()
        self.closing = asyncio.Event()

    def close(self) -> None:
        self.closing.set()
        self.line.close()

    def hello(self) -> dict[str, Any]:
        """Everything the page must know before it asks for anything."""
        device = next(iter(self.session.models)).device
        return {
            "boot": self.boot,
            "device": device_name(device),
            "models": [entry.card() for entry in self.session.models],
            "locations": LOCATIONS,
            "colors": {name: "#{:02x}{:02x}{:02x}".format(*rgb) for name, rgb in COLORS.items()},
            "hows": COMPOSE_METHODS,
            "limits": {
                "objects": requests.MOST_OBJECTS,
                "each": requests.MOST_EACH,
                "steps": requests.MOST_STEPS,
                "radius": requests.MOST_RADIUS,
                "seed": requests.MOST_SEED,
            },
            "defaults": {"each": 1, "steps": 18} if device.type == "cpu" else {"each": 4, "steps": 32},
            **self.palette,
            "provenance": provenance(device),
        }

    def events(self, page: str, work: Iterator[Event]) -> StreamingResponse:
        """A job's events, sent as they come."""
        return stream(kept_alive(events_of(self.line, QueuedJob(page, work))))

    async def pulse(self) -> AsyncIterator[Event]:
        """Tells the page that the server is there, and which one it is."""
        while not self.closing.is_set():
            yield {"event": "pulse", "boot": self.boot, **self.line.load()}
            try:
                await asyncio.wait_for(self.closing.wait(), PULSE_SECONDS)
            except TimeoutError:
                continue


def palette() -> dict[str, Any]:
    """The colors of the figures, so that page and figures look alike."""
    import matplotlib
    from matplotlib.colors import to_hex

    from tessera.plots.figures import CONDITIONS, GAMMA, HEAT

    heat = matplotlib.colormaps[HEAT].resampled(256)
    return {"conditions": CONDITIONS, "gamma": GAMMA, "heat": [to_hex(heat(n)) for n in range(256)]}


# -- events as text --------------------------------------------------------------------------------------------


async def kept_alive(events: AsyncIterator[Event]) -> AsyncIterator[Event | None]:
    """The same events; None when none came for a while."""
    waiting = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait([waiting], timeout=QUIET_SECONDS)
            if not done:
                yield None
                continue
            if (event := waiting.result()) is None:
                return
            yield event
            waiting = asyncio.ensure_future(anext(events, None))
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await events.aclose()  # type: ignore[attr-defined]


class EventStream(StreamingResponse):
    """Lets go of its events as soon as the page is gone, not when their generator is collected some time later."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self.body_iterator.aclose()  # type: ignore[attr-defined]


def stream(events: AsyncIterator[Event | None]) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield ": still here\n\n" if event is None else as_text(event)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    quick = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStream(lines(), media_type="text/event-stream", headers=quick)


def as_text(event: Event) -> str:
    rest = {name: value for name, value in event.items() if name != "event"}
    return f"event: {event['event']}\ndata: {json.dumps(rest, allow_nan=False)}\n\n"


# -- the application -------------------------------------------------------------------------------------------


def make_app(explorer: Explorer, host: str = "127.0.0.1") -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    if host not in EVERYWHERE:  # a stranger's page must not reach us under a name of its own
        ours = [
            "127.0.0.1",
            "localhost",
            host,
            "[",
        ]  # "[": all that is left of an IPv6 address without its colons
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=ours)
    app.middleware("http")(with_policy)
    app.add_exception_handler(RequestValidationError, refuse)
    add_routes(app, explorer)
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


def add_routes(app: FastAPI, explorer: Explorer) -> None:
    session = explorer.session

    @app.get("/api/hello")
    def hello() -> dict[str, Any]:
        return explorer.hello()

    @app.get("/api/pulse")
    async def pulse() -> StreamingResponse:
        return stream(explorer.pulse())

    @app.post("/api/draw")
    async def draw(request: Drawing, x_page: str = Header("")) -> StreamingResponse:
        return explorer.events(x_page, session.draw(request))

    @app.post("/api/watch")
    async def watch(request: Watching, x_page: str = Header("")) -> StreamingResponse:
        if found := session.cached(request):  # no work, so no waiting
            return stream(at_once(partial(session.watch_cached, request, found)))
        return explorer.events(x_page, session.watch(request))

    @app.post("/api/probe")
    async def probe(request: Probing, x_page: str = Header("")) -> StreamingResponse:
        return explorer.events(x_page, session.probe(request))


async def at_once(conditioner: Callable[[], list[Event]]) -> AsyncIterator[Event]:
    """Events that wait for nobody, made beside the loop: images take a while to encode."""
    for event in [*await asyncio.to_thread(conditioner), {"event": "end"}]:
        yield event


async def with_policy(request: Request, call_next: Callable) -> Response:
    """The browser itself forbids the page to reach anything but this server."""
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Cache-Control", "no-cache")  # a newer version is seen at once
    return response


async def refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"sentence": first_complaint(error.errors())}, status_code=422)


# -- serving ---------------------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """Ends open streams before it waits for them to end."""

    def __init__(self, explorer: Explorer, host: str):
        self.explorer = explorer
        app = make_app(explorer, host)
        super().__init__(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.explorer.close()
        await super().shutdown(sockets)


def serve(session: Session, host: str, port: int, open_browser: bool = False) -> None:
    """Until Ctrl-C."""
    door = bind(host, port)
    url = address(host, door.getsockname()[1])
    say(f"The explorer is at {url} (Ctrl-C ends it).")
    if open_browser:
        webbrowser.open(url)  # the socket listens already: the page waits a moment rather than fails
    Server(Explorer(session), host).run(sockets=[door])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or one sentence that says why not."""
    check_port(port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        wrong = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        reason = str(error.strerror or error).partition(" (while")[0].rstrip(".")
        raise UserError(f"Cannot listen at {host}, port {port}: {reason}; choose another {wrong}.") from error


def check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise UserError(f"Cannot listen at port {port}: ports are numbered from 0 to 65535.")


def address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"
