"""People standing in line for one worker: fair to each of them, with a position that is told, and free to leave."""

import asyncio
import contextlib
import itertools
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator

from tessera.app.explorer.work import Event
from tessera.errors import UserError

MOST_WAITING = 100
FULL = "Too many people are waiting here; try again in a minute."


class QueuedJob:
    """Work for one page. Its events arrive in the server's loop."""

    numbers = itertools.count()

    def __init__(self, page: str, work: Iterator[Event]):
        self.page, self.work, self.number = page, work, next(QueuedJob.numbers)
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.left = threading.Event()

    def conditioner(self, event: Event | None) -> None:
        """From any thread; None means that nothing more will come."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody listens
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class JobQueue:
    """Jobs wait here. Everybody's first job comes before anybody's second."""

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
            if self.closed or len(self.waiting) >= MOST_WAITING:
                raise UserError(FULL)
            self.waiting.append(job)
            self.announce()
            self.changed.notify()

    def leave(self, job: QueuedJob) -> None:
        """Nobody waits for this job any more: it is dropped, or stops after the step it is in."""
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
                job.conditioner(None)
            self.waiting.clear()
            self.changed.notify()

    def load(self) -> dict[str, int]:
        with self.changed:
            return {"running": int(self.running is not None), "waiting": len(self.waiting)}

    def order(self) -> list[QueuedJob]:
        """Who comes when: by turn of each page, then by arrival. The page served last has had its turn."""
        turns = {self.served: 1}
        ranked = []
        for job in self.waiting:
            turn = turns.get(job.page, 0)
            turns[job.page] = turn + 1
            ranked.append((turn, job.number, job))
        return [job for _, _, job in sorted(ranked, key=lambda entry: entry[:2])]

    def announce(self) -> None:
        """Everybody who waits learns how many are before them."""
        before = int(self.running is not None)
        for location, job in enumerate(self.order()):
            job.conditioner({"event": "queue", "ahead": before + location})

    # -- the worker ----------------------------------------------------------------------------------------

    def serve(self) -> None:
        while job := self.next():
            try:
                self.do(job)
            finally:
                job.conditioner(None)
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
        """Every event is told as it comes; an abandoned job ends with the step it is in."""
        try:
            job.conditioner({"event": "begun"})
            for event in job.work:
                if job.left.is_set():
                    return
                job.conditioner(event)
            job.conditioner({"event": "end"})
        except UserError as error:
            job.conditioner({"event": "error", "sentence": str(error)})
        except Exception as error:  # one page's trouble must not end everybody's
            traceback.print_exc(file=sys.stderr)
            job.conditioner(
                {"event": "error", "sentence": f"The server failed: {type(error).__name__}: {error}."}
            )
        finally:
            close = getattr(job.work, "close", None)
            if close:
                close()


async def events_of(line: JobQueue, job: QueuedJob) -> AsyncIterator[Event]:
    """A job's events; who stops listening leaves the line."""
    try:
        line.enter(job)
        while (event := await job.events.get()) is not None:
            yield event
    except UserError as error:
        yield {"event": "error", "sentence": str(error)}
    finally:
        line.leave(job)
