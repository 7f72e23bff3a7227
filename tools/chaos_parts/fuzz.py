"""Fuzzed inputs: workers of many inputs each, with 4 GiB of address space and a time limit for every input.

`python -m chaos_parts.fuzz WORLD FIRST COUNT SEED` is one worker; it prints a line of JSON for every input.
"""

import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT = 4 << 30  # bytes of address space
SECONDS = 20  # for one input
_STUCK = 60  # a worker that cannot even be interrupted is killed
TOOLS = Path(__file__).parents[1]


# --- one worker -------------------------------------------------------------------------------------------------


def _late(number, frame):
    raise TimeoutError("too late")


def work(world: Path, first: int, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """The inputs first .. first + count - 1 of a seed, one after another in a copy of the world."""
    import torch

    from chaos_parts.readers import READERS

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    wheel = [reader for reader in READERS for _ in range(reader.weight)]
    own = world.parent / f"world-{os.getpid()}"
    for number in range(first, first + count):
        chance = random.Random(f"{seed} {number}")
        reader = wheel[number % len(wheel)]
        if not own.exists():
            shutil.copytree(world, own)
        target = own / reader.file
        target = _one_record(own, chance) if reader.file == "shown/record.json" else target
        target = chance.choice(sorted(target.iterdir())) if target.is_dir() else target
        yield {"number": number, "reader": reader.name, "began": True}
        yield {"number": number, "reader": reader.name, **_one(own, target, reader, chance)}
        shutil.rmtree(own)
    shutil.rmtree(own, ignore_errors=True)


def _one_record(own: Path, chance: random.Random) -> Path:
    """A record of any kind, alone in a folder."""
    chosen = chance.choice(sorted((own / "results").rglob("*.json")))
    (own / "shown").mkdir()
    return Path(shutil.copy(chosen, own / "shown"))


def _one(own: Path, target: Path, reader: Any, chance: random.Random) -> dict[str, Any]:
    from chaos_parts.mutate import damage

    began = time.perf_counter()
    way = damage(target, reader.kind, chance)
    signal.alarm(SECONDS)
    try:
        ending, words = outcome(reader.use, own)
    except TimeoutError:
        ending, words = "hang", ""
    finally:
        signal.alarm(0)
    return {"way": way, "ending": ending, "words": words, "seconds": round(time.perf_counter() - began, 2)}


def outcome(use: Any, root: Path) -> tuple[str, str]:
    """read, refused, traceback or memory, and the words of a failure."""
    from chaos_parts.world import Ending
    from tessera.errors import UserError

    try:
        found = use(root)
    except UserError as error:
        found = Ending(2, str(error))
    except TimeoutError:
        raise
    except BaseException:
        found = Ending(None, traceback.format_exc())
    if not isinstance(found, Ending):
        return "read", str(found)
    if "MemoryError" in found.said or "not enough memory" in found.said or "allocate memory" in found.said:
        return "memory", found.said[-2000:]
    if found.code is None or "Traceback (most recent" in found.said:
        return "traceback", found.said[-3000:]
    return ("refused" if found.code else "read"), found.said[-300:]


# --- all workers ------------------------------------------------------------------------------------------------


def fuzz(world: Path, count: int, seed: int, workers: int, on_input: Any = lambda row: None) -> dict[str, Any]:
    """The counts of the table, and every failure."""
    rows: list[dict[str, Any]] = []
    share = -(-count // workers)
    pools = [_Worker(world, start, min(share, count - start), seed) for start in range(0, count, share)]
    while any(pool.left for pool in pools):
        for pool in pools:
            for row in pool.lines():
                rows.append(row)
                on_input(row)
    endings = Counter(row["ending"] for row in rows)
    failures = [row for row in rows if row["ending"] not in ("read", "refused")]
    return {
        "inputs": len(rows),
        "tracebacks": endings["traceback"],
        "over_4_gib": endings["memory"],
        "hangs": endings["hang"],
        "refused": endings["refused"],
        "failures": failures,
    }


class _Worker:
    """A process of many inputs, started anew behind an input that ended or froze it."""

    def __init__(self, world: Path, first: int, count: int, seed: int):
        self.world, self.next, self.end, self.seed = world, first, first + count, seed
        self.process: subprocess.Popen | None = None
        self.last_answer = time.monotonic()
        self.current: dict[str, Any] = {}

    @property
    def left(self) -> bool:
        return self.next < self.end

    def start(self) -> None:
        words = [sys.executable, "-m", "chaos_parts.fuzz", self.world, self.next, self.end - self.next, self.seed]
        paths = os.pathsep.join([str(TOOLS), *sys.path])
        env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        self.process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, env=env, cwd=self.world.parent, text=True
        )
        self.last_answer = time.monotonic()

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the worker reported since the last call; waits a moment for it."""
        if not self.left:
            return
        if self.process is None:
            self.start()
        assert self.process is not None and self.process.stdout is not None
        if select.select([self.process.stdout], [], [], 0.05)[0]:
            line = self.process.stdout.readline()
            if not line:
                yield self._ended("traceback", f"the process ended with {self.process.wait()}")
                return
            self.last_answer, row = time.monotonic(), json.loads(line)
            if "began" in row:
                self.current = row
                return
            self.next = row["number"] + 1
            if not self.left:
                self.process.wait()
            yield row
        elif time.monotonic() - self.last_answer > _STUCK:
            self.process.kill()
            yield self._ended("hang", "the process did not answer")

    def _ended(self, ending: str, words: str) -> dict[str, Any]:
        row = {**self.current, "number": self.next, "way": "", "ending": ending, "words": words}
        self.process, self.next = None, self.next + 1
        return row


def main() -> None:
    world, first, count, seed = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for row in work(Path(world), int(first), int(count), int(seed)):
        out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
