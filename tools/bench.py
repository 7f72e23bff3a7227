"""Benchmarks: `python tools/bench.py WHAT`; WHAT is render, train, strategies, denoise, detector, locality, dynamics or zoo."""

import importlib
import sys
from collections.abc import Sequence

from _common import run

BENCHMARKS = {
    "render": "benchmarks.render:BenchRender",
    "train": "benchmarks.training:BenchTrain",
    "strategies": "benchmarks.strategies:BenchStrategies",
    "denoise": "benchmarks.training:BenchDenoise",
    "detector": "benchmarks.detector:BenchDetector",
    "locality": "benchmarks.locality:BenchLocality",
    "dynamics": "benchmarks.dynamics:BenchDynamics",
    "zoo": "benchmarks.zoo:BenchZoo",
}


def main(words: Sequence[str] | None = None) -> None:
    what, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if what in BENCHMARKS:
        module, name = BENCHMARKS[what].split(":")
        run(getattr(importlib.import_module(module), name), rest, f"bench.py {what}")
    wants_help = what in ("-h", "--help")
    print(__doc__, file=sys.stdout if wants_help else sys.stderr)
    sys.exit(0 if wants_help else 2)


if __name__ == "__main__":
    main()
