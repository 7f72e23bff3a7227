"""The queue: fair to every page, positions, and leaving."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the explorer's extra is not installed")

from tessera.app.explorer import queue as module
from tessera.app.explorer.queue import JobQueue, QueuedJob, events_of
from tessera.errors import UserError


@pytest.fixture
def queue():
    made = JobQueue()
    yield made
    made.close()
    made.worker.join(5)
    assert not made.worker.is_alive()


class Blocked:
    """Work that waits until it may go on, and records whether it was dropped."""

    def __init__(self, steps=1):
        self.begun, self.go, self.dropped = threading.Event(), threading.Event(), threading.Event()
        self.steps = steps

    def __iter__(self):
        try:
            for step in range(self.steps):
                self.begun.set()
                assert self.go.wait(10)
                yield {"event": "step", "step": step}
        finally:
            self.dropped.set()


def run(main):
    """In a thread of its own: the browser of other tests keeps an event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()


async def all_of(queue, job):
    return [event async for event in events_of(queue, job)]


async def waiting(queue, number):
    while len(queue.waiting) != number:
        await asyncio.sleep(0.005)


def test_a_job_sends_its_events_in_order_and_ends(queue):
    async def main():
        return await all_of(queue, QueuedJob("a", iter([{"event": "one"}, {"event": "two"}])))

    names = [event["event"] for event in run(main())]
    assert names == ["queue", "started", "one", "two", "end"]


def test_every_pages_first_job_comes_before_any_second_one(queue):
    done = []

    def work(name):
        done.append(name)
        yield {"event": "step"}

    async def main():
        first = Blocked()
        jobs = [
            QueuedJob("eager", iter(first)),
            *(QueuedJob(p, work(f"{p}{n}")) for n, p in enumerate(["eager", "eager", "late"])),
        ]
        tasks = []
        for number, job in enumerate(jobs):
            tasks.append(asyncio.create_task(all_of(queue, job)))
            if number == 0:
                await asyncio.to_thread(first.begun.wait, 10)
            else:
                await waiting(queue, number)
        first.go.set()
        await asyncio.gather(*tasks)

    run(main())
    assert done == ["late2", "eager0", "eager1"]


def test_a_waiting_page_gets_its_position_and_moves_up(queue):
    async def main():
        blocked = [Blocked(), Blocked()]
        tasks = [asyncio.create_task(all_of(queue, QueuedJob(f"page {n}", iter(b)))) for n, b in enumerate(blocked)]
        await waiting(queue, 1)
        last = asyncio.create_task(all_of(queue, QueuedJob("last", iter([{"event": "step"}]))))
        await waiting(queue, 2)
        for b in blocked:
            b.go.set()
        await asyncio.gather(*tasks)
        return await last

    ahead = [event["ahead"] for event in run(main()) if event["event"] == "queue"]
    assert ahead[0] == 2 and ahead == sorted(ahead, reverse=True) and ahead[-1] <= 1


def test_a_quiet_job_shows_that_the_connection_is_alive_and_loses_no_event(queue, monkeypatch):
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.02)

    async def main():
        work = Blocked()
        task = asyncio.create_task(all_of(queue, QueuedJob("a", iter(work))))
        await asyncio.sleep(0.2)
        work.go.set()
        return await task

    events = run(main())
    assert events.count(None) > 1
    assert [event["event"] for event in events if event] == ["queue", "started", "step", "end"]


def test_abandoned_work_stops_after_the_step_it_is_in(queue):
    async def main():
        work = Blocked(steps=1000)
        task = asyncio.create_task(all_of(queue, QueuedJob("a", work.__iter__())))
        await asyncio.to_thread(work.begun.wait, 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        work.go.set()
        assert await asyncio.to_thread(work.dropped.wait, 10)
        return await all_of(queue, QueuedJob("b", iter([{"event": "fine"}])))

    assert {"event": "fine"} in run(main())


def test_a_page_that_leaves_while_waiting_is_never_served(queue):
    served = []

    async def main():
        first = Blocked()
        task = asyncio.create_task(all_of(queue, QueuedJob("a", iter(first))))
        await asyncio.to_thread(first.begun.wait, 10)
        leaver = asyncio.create_task(all_of(queue, QueuedJob("b", (served.append(n) for n in range(3)))))
        await waiting(queue, 1)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        first.go.set()
        await task
        assert queue.load() == {"running": 0, "waiting": 0} or queue.load()["waiting"] == 0

    run(main())
    assert served == []


def test_an_error_in_one_job_is_sent_and_does_not_stop_the_next(queue, capfd):
    def bad():
        yield {"event": "step"}
        raise ZeroDivisionError("by nought")

    def wrong():
        raise UserError("One clear sentence.")
        yield

    async def main():
        return [(await all_of(queue, QueuedJob("a", work)))[-1] for work in (bad(), wrong(), iter([]))]

    first, second, third = run(main())
    assert first["event"] == "error" and "ZeroDivisionError: by nought" in first["sentence"]
    assert second == {"event": "error", "sentence": "One clear sentence."}
    assert third == {"event": "end"}
    assert "by nought" in capfd.readouterr().err


def test_a_full_queue_refuses(queue, monkeypatch):
    monkeypatch.setattr(module, "_MAX_WAITING", 0)

    async def main():
        return await all_of(queue, QueuedJob("a", iter([])))

    assert run(main()) == [{"event": "error", "sentence": module._FULL}]
