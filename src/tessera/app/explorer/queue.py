"""A queue of jobs for one worker: fair to every page, which sees its position and may leave."""

import asyncio
import contextlib
import itertools
import sys
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from tessera.app.explorer.session import Event
from tessera.errors import UserError

_MAX_WAITING = 100
_QUIET_SECONDS = 15.0  # after so long without an event a comment checks the connection
_FULL = "Too many jobs are waiting; try again in a minute."


class QueuedJob:
    """A job of one page. Its events arrive in the server's loop."""

    numbers = itertools.count()

    def __init__(self, page: str, events: Iterator[Event]):
        self.page, self.work, self.number = page, events, next(QueuedJob.numbers)
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.left = threading.Event()

    def send(self, event: Event | None) -> None:
        """From any thread; None ends the events."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class JobQueue:
    """Every page's first job comes before any page's second."""

    def __init__(self) -> None:
        self.waiting: list[QueuedJob] = []
        self.running: QueuedJob | None = None
        self.served = ""  # the page served now, or last
        self.closed = False
        self.changed = threading.Condition()
        self.worker = threading.Thread(target=self.serve, name="explorer", daemon=True)
        self.worker.start()

    def enter(self, job: QueuedJob) -> None:
        with self.changed:
            if self.closed or len(self.waiting) >= _MAX_WAITING:
                raise UserError(_FULL)
            self.waiting.append(job)
            self.announce()
            self.changed.notify()

    def leave(self, job: QueuedJob) -> None:
        """The page has gone: its job is dropped, or stops after the current step."""
        job.left.set()
        with self.changed:
            if job in self.waiting:
                self.waiting.remove(job)
                self.announce()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            for job in [*self.waiting, *([self.running] if self.running else [])]:
                job.left.set()
                job.send(None)
            self.waiting.clear()
            self.changed.notify()

    def load(self) -> dict[str, int]:
        with self.changed:
            return {"running": int(self.running is not None), "waiting": len(self.waiting)}

    def order(self) -> list[QueuedJob]:
        """Waiting jobs by their number within their page, then by arrival. The page served last counts one more."""
        jobs_of = Counter({self.served: 1})
        rank = {}
        for job in self.waiting:
            rank[job] = (jobs_of[job.page], job.number)
            jobs_of[job.page] += 1
        return sorted(self.waiting, key=rank.__getitem__)

    def announce(self) -> None:
        """Every waiting page gets the number of jobs ahead of its own."""
        running = int(self.running is not None)
        for position, job in enumerate(self.order()):
            job.send({"event": "queue", "ahead": running + position})

    # -- the worker ----------------------------------------------------------------------------------------

    def serve(self) -> None:
        while job := self.next():
            try:
                self.do(job)
            finally:
                job.send(None)
                with self.changed:
                    self.running = None
                    self.announce()

    def next(self) -> QueuedJob | None:
        with self.changed:
            while not self.waiting and not self.closed:
                self.changed.wait()
            if self.closed:
                return None
            job = self.order()[0]
            self.waiting.remove(job)
            self.running, self.served = job, job.page
            self.announce()
            return job

    def do(self, job: QueuedJob) -> None:
        """Send every event as it comes; an abandoned job ends after the current step."""
        try:
            job.send({"event": "started"})
            for event in job.work:
                if job.left.is_set():
                    return
                job.send(event)
            job.send({"event": "end"})
        except UserError as error:
            job.send({"event": "error", "sentence": str(error)})
        except Exception as error:  # one page's failure must not end the worker
            traceback.print_exc(file=sys.stderr)
            job.send({"event": "error", "sentence": f"The server failed: {type(error).__name__}: {error}."})
        finally:
            close = getattr(job.work, "close", None)
            if close:
                close()


async def events_of(queue: JobQueue, job: QueuedJob) -> AsyncIterator[Event | None]:
    """A job's events; None when none came for a while. A page that stops reading leaves the queue."""
    try:
        queue.enter(job)
        while True:
            try:
                event = await asyncio.wait_for(job.events.get(), _QUIET_SECONDS)
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            yield event
    except UserError as error:
        yield {"event": "error", "sentence": str(error)}
    finally:
        queue.leave(job)
