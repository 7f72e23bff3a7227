"""Compare the speed of two source trees: their measures take turns, so that both see the same machine.

    python tools/compare_speed.py /path/to/old/src src
    python tools/compare_speed.py /path/to/old/src src --old-adapter old_adapter.py --json --out speed.json

One process for each tree prepares every measure and then works only while the other waits. An adapter is a Python
file with `MEASURES`: name -> function without arguments that prepares the work and returns (work, units, unit), where
`work()` does `units` of something once. Each tree has an adapter of its own, since names differ between trees;
the one for today's names is `tools/speed_adapter.py`.
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SLICE = 0.4  # seconds of work before the other tree has its turn
# The C library keeps unused memory. Otherwise it returns some and asks again, how often differs from process to process,
# and the page faults hide what is compared.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # the second one is steadier beside other work
STARTS = {"import tessera": ["-c", "import tessera"], "tessera --help": ["-m", "tessera", "--help"]}


# --- the process that works for one tree --------------------------------------------------------------------------


def serve(adapter: Path, clock: str) -> None:
    """Answer each line `MEASURE` on stdin with a line of JSON: units done and seconds taken."""
    now = CLOCKS[clock]
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    spec = importlib.util.spec_from_file_location("adapter", adapter)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ready: dict[str, Any] = {}
    answer, sys.stdout = sys.stdout, sys.stderr  # what the library prints must not be taken for an answer
    print(json.dumps(list(module.MEASURES)), file=answer, flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            ready[name] = module.MEASURES[name]()
            ready[name][0]()  # caches fill up
        work, units, unit = ready[name]
        begun, times = now(), 0
        while (seconds := now() - begun) < SLICE:
            work()
            times += 1
        print(json.dumps({"units": units * times, "seconds": seconds, "unit": unit}), file=answer, flush=True)


class Tree:
    """A source folder, and the process that works for it."""

    def __init__(self, source: Path, adapter: Path, threads: int, clock: str = "wall"):
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(source.resolve()), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": str(threads),
            **KEEP_MEMORY,
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(adapter), clock],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.measures: list[str] = self.read()

    def read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit("compare_speed: a worker ended early; its complaint stands above.")
        return json.loads(line)

    def work(self, name: str) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self.read()

    def start(self, arguments: list[str]) -> dict[str, Any]:
        """The time that a new Python takes for this."""
        begun = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=self.environment, check=True, stdout=subprocess.DEVNULL)
        return {"units": 1, "seconds": time.perf_counter() - begun, "unit": "starts"}


# --- taking turns -------------------------------------------------------------------------------------------------


def compare(old: Tree, new: Tree, rounds: int, only: list[str]) -> list[dict[str, Any]]:
    shared = [name for name in old.measures if name in new.measures]
    rows = []
    for name in [*shared, *STARTS]:
        if only and name not in only:
            continue
        turns = [turn(old, new, name, number) for number in range(rounds + 1)][1:]  # the first one warms up
        rows.append(row(name, [a for a, _ in turns], [b for _, b in turns]))
        print(sentence(rows[-1]), file=sys.stderr, flush=True)
    return rows


def turn(old: Tree, new: Tree, name: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Old first in even rounds, new first in odd ones."""

    def one(tree: Tree) -> dict[str, Any]:
        return tree.start(STARTS[name]) if name in STARTS else tree.work(name)

    if number % 2:
        later = one(new)
        return one(old), later
    return one(old), one(new)


def row(name: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both rates, and the median of their ratios with a 95% bootstrap interval."""
    rates = np.array([[part["units"] / part["seconds"] for part in parts] for parts in (old, new)])  # (2, rounds)
    ratios = rates[1] / rates[0]
    picked = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[picked], axis=1), (0.025, 0.975))
    return {
        "measure": name,
        "unit": f"{old[0]['unit']}/s",
        "old": statistics.median(rates[0]),
        "new": statistics.median(rates[1]),
        "ratio": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
        "rounds": len(ratios),
    }


def sentence(row: dict[str, Any]) -> str:
    return (
        f"{row['measure']:<18} old {row['old']:9.2f} {row['unit']:<10} new {row['new']:9.2f}   "
        f"new/old {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="source folder, such as /path/to/checkout/src")
    parser.add_argument("new", type=Path, help="the other one; ratios above 1 say that it is faster")
    parser.add_argument("--old-adapter", type=Path, default=HERE / "speed_adapter.py")
    parser.add_argument("--new-adapter", type=Path, default=HERE / "speed_adapter.py")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="starts of Python always take the wall clock")
    parser.add_argument("--only", nargs="+", default=[], help="measures, by name")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--out", type=Path, help="write it to this file, too")
    given = parser.parse_args()
    for source in (given.old, given.new):
        if not (source / "tessera").is_dir():
            parser.error(f"{source} has no folder tessera")
    trees = (
        Tree(given.old, given.old_adapter, given.threads, given.clock),
        Tree(given.new, given.new_adapter, given.threads, given.clock),
    )
    try:
        rows = compare(*trees, given.rounds, given.only)
    finally:
        for tree in trees:
            tree.process.kill()
    record = {
        "rows": rows,
        "machine": platform.processor() or platform.machine(),
        "threads": given.threads,
        "clock": given.clock,
    }
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    if given.json:
        print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
