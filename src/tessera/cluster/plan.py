"""How long independent pieces take on so many workers, some of them slow and some failing: where adding more stops helping."""

import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tessera.stats import quantile_range


@dataclass(frozen=True)
class ClusterConditions:
    """What goes wrong on a cluster. The defaults are guesses, not measurements."""

    startup: float = 0.2  # minutes until a piece's process works: imports, compiled kernels
    slow_share: float = 0.1  # of the workers
    slowdown: float = 1.5  # times as long on a slow worker
    failures_per_hour: float = 0.02  # of a worker at work
    lost: float = 0.5  # minutes of work since the last saved state, which a failure costs
    restart: float = 2.0  # minutes until a failed worker is back

    @property
    def summary(self) -> str:
        return (
            f"{60 * self.startup:.0f} s to start a job, {self.slow_share:.0%} of the workers {self.slowdown:g} times slower, "
            f"{self.failures_per_hour:g} failures per worker and hour"
        )


@dataclass(frozen=True)
class Forecast:
    """Pieces on so many workers, over simulated runs."""

    workers: int
    minutes: float  # median
    low: float  # 95% of the runs lie between these
    high: float
    efficiency: float  # share of the workers' time that is work without trouble

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def forecast(
    minutes: Sequence[float], workers: int, conditions: ClusterConditions | None = None, runs: int = 200, seed: int = 0
) -> Forecast:
    """Pieces go to whichever worker is free first, in their order, as the scheduler hands them out."""
    conditions = conditions or ClusterConditions()
    random = np.random.default_rng(seed)
    ends = np.array([_one_run(minutes, workers, conditions, random) for _ in range(runs)])
    (low, high), middle = quantile_range(ends), float(np.median(ends))
    efficiency = sum(minutes) / (workers * middle) if middle else 1.0
    return Forecast(workers, middle, float(low), float(high), efficiency)


def _one_run(
    minutes: Sequence[float], workers: int, conditions: ClusterConditions, random: np.random.Generator
) -> float:
    slowness = np.where(random.random(workers) < conditions.slow_share, conditions.slowdown, 1.0)
    free = [(0.0, worker) for worker in range(workers)]  # a heap already
    end = 0.0
    for work in minutes:
        begin, worker = heapq.heappop(free)
        time = conditions.startup + work * slowness[worker]
        failures = random.poisson(conditions.failures_per_hour * time / 60)
        done = begin + time + failures * (conditions.lost + conditions.restart + conditions.startup)
        end = max(end, done)
        heapq.heappush(free, (done, worker))
    return end


def enough_workers(minutes: Sequence[float]) -> int:
    """Beyond so many workers the longest piece alone decides how long all take."""
    longest = max(minutes, default=0.0)
    return int(np.ceil(sum(minutes) / longest)) if longest else 1
