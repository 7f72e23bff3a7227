"""Attacks on Tessera and one table of what they did: kills, corruptions, fuzzed inputs, an attacked explorer, hostile names.

python tools/chaos.py --out chaos.json            # all of it, about a quarter of an hour on 2 cores
python tools/chaos.py --scale 0.02 --parts corruptions fuzz
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from _common import program
from tessera.console import answer, print_json, say, table_of
from tessera.files import write_json
from tessera.rows import Rows

Part = Literal["kills", "corruptions", "fuzz", "explorer", "hostile"]
PARTS: tuple[Part, ...] = ("kills", "corruptions", "fuzz", "explorer", "hostile")
LEAST = {  # what a whole run must reach; everything else in the table must be 0
    "kills": ("kills", 100),
    "corruptions": ("refused_or_recovered", 400),
    "fuzz": ("inputs", 5000),
}
_SHOWN_FAILURES = 20


@dataclass(frozen=True)
class Chaos:
    """Kill, corrupt and attack; exit code 1 if anything changed, was lost, or ended in a traceback."""

    parts: tuple[Part, ...] = PARTS
    """What to run."""
    scale: float = 1.0
    """Share of the whole number of kills, corruptions, inputs and users."""
    workers: int = 2
    """Processes at once."""
    seed: int = 0
    """Of the random choices."""
    out: Path | None = None
    """File for the record, with every failure."""
    json: bool = False
    """Print the record instead of the table."""

    def run(self) -> int:
        record: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="tessera-chaos-") as folder:
            world = Path(folder) / "world"
            _in_child(_make_world, world)
            for part in self.parts:
                began = time.monotonic()
                record[part] = _PARTS[part](self, world)
                record[part]["seconds"] = round(time.monotonic() - began, 1)
                say(f"{part}: {record[part]['seconds']:.0f} s")
        if self.out:
            write_json(self.out, record)
        if self.json:
            print_json(record)
        else:
            answer(table_of(rows_of(record, self.scale)))
        for name, found in record.items():
            for failure in found["failures"][:_SHOWN_FAILURES]:
                say(f"{name}: {failure if isinstance(failure, str) else json.dumps(failure)[-1500:]}")
        return int(any(value not in ("", "0") and not ok for _, _, value, _, ok in _compared(record, self.scale)))

    # -- the parts -----------------------------------------------------------------------------------------------

    def kills(self, world: Path) -> dict[str, Any]:
        from chaos_parts import kills

        names = list(kills.jobs(world))
        each = max(1, round(24 * self.scale))
        chains = self._pool(_kill_chain, [(name, world.parent / "kills", each, self.seed) for name in names])
        return kills.summary(chains)

    def corruptions(self, world: Path) -> dict[str, Any]:
        from chaos_parts.corrupt import summary

        turns = max(1, round(3 * self.scale))
        shares = [(world, turns, (n, self.workers), self.scale) for n in range(self.workers)]
        return summary([row for rows in self._pool(_corruptions, shares) for row in rows])

    def fuzz(self, world: Path) -> dict[str, Any]:
        from chaos_parts.fuzz import fuzz

        return fuzz(world, max(4, round(5000 * self.scale)), self.seed, self.workers)

    def explorer(self, world: Path) -> dict[str, Any]:
        from chaos_parts.explorer import attack

        return attack("exp1", world.parent, max(2, round(50 * self.scale)), max(4, 120 * self.scale))

    def hostile(self, world: Path) -> dict[str, Any]:
        return self._pool(_hostile, [(world,)])[0]

    def _pool(self, work: Callable, tasks: list[tuple]) -> list[Any]:
        """Each task in a process of its own that has imported nothing before."""
        with multiprocessing.get_context("spawn").Pool(self.workers, _alone, maxtasksperchild=1) as pool:
            return pool.starmap(work, tasks, chunksize=1)


_PARTS: dict[Part, Callable[[Chaos, Path], dict[str, Any]]] = {
    "kills": Chaos.kills,
    "corruptions": Chaos.corruptions,
    "fuzz": Chaos.fuzz,
    "explorer": Chaos.explorer,
    "hostile": Chaos.hostile,
}


# --- in processes of their own ----------------------------------------------------------------------------------


def _alone() -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["MPLBACKEND"] = "agg"


def _make_world(world: Path) -> None:
    from chaos_parts.world import make_world

    make_world(world)


def _in_child(work: Callable, *given: Any) -> None:
    with multiprocessing.get_context("spawn").Pool(1, _alone) as pool:
        pool.apply(work, given)


def _kill_chain(name: str, root: Path, kills: int, seed: int) -> dict[str, Any]:
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo  # noqa: F401  imported once here, not in every child

    from chaos_parts.kills import kill_chain, reference_for

    reference_for(name, root / "reference")
    return kill_chain(name, root / "reference", root / "killed", kills, seed)


def _corruptions(world: Path, turns: int, share: tuple[int, int], scale: float) -> list[dict[str, Any]]:
    from chaos_parts.corrupt import corruptions

    return corruptions(world, turns, share, scale)


def _hostile(world: Path) -> dict[str, Any]:
    from chaos_parts.hostile import hostile

    return hostile(world)


# --- the table --------------------------------------------------------------------------------------------------


def _compared(record: dict[str, Any], scale: float) -> list[tuple[str, str, str, str, bool]]:
    """Part, measure, found, must, and whether it is as it must be."""
    compared = []
    for part, found in record.items():
        enough, count = LEAST.get(part, ("", 0))
        for name, value in found.items():
            if name in ("failures", "seconds", "refused", "cases"):
                continue
            if name == "note":
                compared += [(part, note.replace("_", " "), str(number), "", True) for note, number in value.items()]
                continue
            if name == enough:
                must, ok = f">= {count}", scale < 1 or value >= count
            else:
                must, ok = "0", not value
            compared.append((part, name.replace("_", " "), str(value), must, ok))
    return compared


def rows_of(record: dict[str, Any], scale: float) -> Rows:
    rows: Rows = [["part", "measure", "found", "must", ""]]
    for part, name, value, must, ok in _compared(record, scale):
        rows.append([part, name, value, must, "" if ok else "no"])
    return rows


main = program(Chaos)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
