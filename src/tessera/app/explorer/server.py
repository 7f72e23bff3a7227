"""The server of the page: one FastAPI application, answers as server-sent events, no resources from elsewhere."""

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
from starlette.types import Receive, Scope, Send

from tessera.app.explorer import requests
from tessera.app.explorer.limits import Guard, ImpatientProtocol
from tessera.app.explorer.queue import JobQueue, QueuedJob, events_of
from tessera.app.explorer.requests import PixelProbeRequest, SampleRequest, TrajectoryRequest, first_complaint
from tessera.app.explorer.session import Event, Session
from tessera.console import say
from tessera.errors import UserError
from tessera.provenance import device_name, provenance
from tessera.sampling.compose import COMPOSE_METHODS
from tessera.scenes.vocabulary import COLORS, LOCATIONS

_PAGE = Path(__file__).parent / "page"
_PULSE_SECONDS = 5.0
_ALL_INTERFACES = ("0.0.0.0", "::")
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Explorer:
    """The state of one server: its session, its queue, and an id that changes when it restarts."""

    def __init__(self, session: Session):
        self.session, self.queue = session, JobQueue()
        self.boot = secrets.token_hex(6)
        self.palette = _palette()
        self.closing = asyncio.Event()

    def close(self) -> None:
        self.closing.set()
        self.queue.close()

    def hello(self) -> dict[str, Any]:
        """What the page needs before its first request."""
        models = self.session.models.values()
        device = next(iter(models)).device
        return {
            "boot": self.boot,
            "device": device_name(device),
            "models": [entry.card() for entry in models],
            "locations": LOCATIONS,
            "colors": {name: "#{:02x}{:02x}{:02x}".format(*rgb) for name, rgb in COLORS.items()},
            "compose_methods": COMPOSE_METHODS,
            "limits": {
                "objects": requests.MAX_OBJECTS,
                "each": requests.MAX_EACH,
                "steps": requests.MAX_STEPS,
                "radius": requests.MAX_RADIUS,
                "seed": requests.MAX_SEED,
            },
            "defaults": {"each": 1, "steps": 18} if device.type == "cpu" else {"each": 4, "steps": 32},
            **self.palette,
            "provenance": provenance(device),
        }

    def events(self, page: str, job: Iterator[Event]) -> StreamingResponse:
        """A job's events, sent as they come."""
        return _stream(events_of(self.queue, QueuedJob(page, job)))

    async def pulse(self) -> AsyncIterator[Event]:
        """Says that the server is running, and which one it is."""
        while not self.closing.is_set():
            yield {"event": "pulse", "boot": self.boot, **self.queue.load()}
            try:
                await asyncio.wait_for(self.closing.wait(), _PULSE_SECONDS)
            except TimeoutError:
                continue


def _palette() -> dict[str, Any]:
    """The colors of the figures, for the page."""
    import matplotlib
    from matplotlib.colors import to_hex

    from tessera.plots.figures import CONDITIONS, GAMMA, HEAT

    heat = matplotlib.colormaps[HEAT].resampled(256)
    return {"conditions": CONDITIONS, "gamma": GAMMA, "heat": [to_hex(heat(n)) for n in range(256)]}


# -- events as text --------------------------------------------------------------------------------------------


class _EventStream(StreamingResponse):
    """Closes its events as soon as the page is gone, not when their generator is collected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self.body_iterator.aclose()  # type: ignore[attr-defined]


def _stream(events: AsyncIterator[Event | None]) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield ": still here\n\n" if event is None else _as_text(event)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    quick = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return _EventStream(lines(), media_type="text/event-stream", headers=quick)


def _as_text(event: Event) -> str:
    rest = {name: value for name, value in event.items() if name != "event"}
    return f"event: {event['event']}\ndata: {json.dumps(rest, allow_nan=False)}\n\n"


# -- the application -------------------------------------------------------------------------------------------


def _make_app(explorer: Explorer, host: str = "127.0.0.1") -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(_with_policy)
    names = None if host in _ALL_INTERFACES else frozenset({"127.0.0.1", "::1", "localhost", host.lower()})
    app.add_middleware(Guard, names=names)  # added last, so that it comes first
    app.add_exception_handler(RequestValidationError, _refuse)
    _add_routes(app, explorer)
    app.mount("/", StaticFiles(directory=_PAGE, html=True))
    return app


def _add_routes(app: FastAPI, explorer: Explorer) -> None:
    session = explorer.session

    @app.get("/api/hello")
    def hello() -> dict[str, Any]:
        return explorer.hello()

    @app.get("/api/pulse")
    async def pulse() -> StreamingResponse:
        return _stream(explorer.pulse())

    @app.post("/api/sample")
    async def sample(request: SampleRequest, x_page: str = Header("")) -> StreamingResponse:
        return explorer.events(x_page, session.sample(request))

    @app.post("/api/trajectory")
    async def trajectory(request: TrajectoryRequest, x_page: str = Header("")) -> StreamingResponse:
        if found := session.cached(request):  # nothing to compute, so no queue
            return _stream(_at_once(partial(session.cached_trajectory, request, found)))
        return explorer.events(x_page, session.trajectory(request))

    @app.post("/api/probe")
    async def probe(request: PixelProbeRequest, x_page: str = Header("")) -> StreamingResponse:
        return explorer.events(x_page, session.probe(request))


async def _at_once(make_events: Callable[[], list[Event]]) -> AsyncIterator[Event]:
    """Events outside the queue, made in a thread, since encoding images takes a while."""
    for event in [*await asyncio.to_thread(make_events), {"event": "end"}]:
        yield event


async def _with_policy(request: Request, call_next: Callable) -> Response:
    """The browser lets the page reach nothing but this server."""
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Cache-Control", "no-cache")  # a newer version of the page is loaded at once
    return response


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"sentence": first_complaint(error.errors())}, status_code=422)


# -- serving ---------------------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """Closes open streams before it waits for them to end."""

    def __init__(self, explorer: Explorer, host: str):
        self.explorer = explorer
        app = _make_app(explorer, host)
        super().__init__(uvicorn.Config(app, http=ImpatientProtocol, log_level="critical", timeout_graceful_shutdown=2))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.explorer.close()
        await super().shutdown(sockets)


def serve(session: Session, host: str, port: int, open_browser: bool = False) -> None:
    """Until Ctrl-C."""
    listening = bind(host, port)
    url = address(host, listening.getsockname()[1])
    say(f"The explorer is at {url} (Ctrl-C ends it).")
    if open_browser:
        webbrowser.open(url)  # the socket listens already, so the page waits a moment rather than fails
    Server(Explorer(session), host).run(sockets=[listening])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or one sentence that says why not."""
    check_port(port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        wrong = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--set host"
        reason = str(error.strerror or error).partition(" (while")[0].rstrip(".")
        raise UserError(f"Cannot listen at {host}, port {port}: {reason}; choose another {wrong}.") from error


def check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise UserError(f"Cannot listen at port {port}: ports are numbered from 0 to 65535.")


def address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in _ALL_INTERFACES else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"
