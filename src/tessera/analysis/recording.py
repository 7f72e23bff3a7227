"""Record features inside a network during its forward passes, without changing what it computes."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessera.analysis.hooks import chosen_hooks, network_of, watch
from tessera.errors import UserError

_Keep = Literal["mean", "rows"] | Callable[[Tensor], Any]
_SIGMA_RTOL = 0.01  # a pass within one percent of a chosen noise level counts as that level


class _FeatureRecording(Mapping[str, Any]):
    """What was recorded: by name of the hook, in order of first use.

    With `keep` "mean", `activations[name]` is the mean over all images, (C, H, W), and memory does not grow with
    their number. With "rows" it is every image's features, (N, C, H, W). With a function it is the list of
    what the function returned for each pass. `activations.level(sigma)` has the same of one noise level alone.
    """

    def __init__(self, names: Sequence[str], keep: _Keep = "mean", sigmas: Sequence[float] | None = None):
        self.names, self.keep = tuple(names), keep
        self.levels = (None,) if sigmas is None else tuple(float(sigma) for sigma in sigmas)  # None for all
        self.kept: dict[str, dict[float | None, Any]] = {}  # by hook and level
        self.counts: Counter[tuple[str, float | None]] = Counter()
        self.pass_sigmas: Tensor | None = None  # noise level of each image in the current pass

    def __getitem__(self, name: str) -> Any:
        if name in self.kept:
            return self._joined(name, list(self.kept[name]))
        if name in self.names:
            raise UserError(f"`{name}` was recorded, but no image passed there.")
        raise UserError(f"`{name}` was not recorded; recorded were {', '.join(self.names)}.")

    def __contains__(self, name: object) -> bool:
        return name in self.kept

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def level(self, sigma: float) -> dict[str, Any]:
        """Features at one of the chosen noise levels."""
        levels = [level for level in self.levels if level is not None]
        for chosen in levels:
            if abs(sigma / chosen - 1) <= _SIGMA_RTOL:
                return {name: self._joined(name, [chosen]) for name, kept in self.kept.items() if chosen in kept}
        known = ", ".join(f"{chosen:g}" for chosen in levels) or "none"
        raise UserError(f"Noise level {sigma:g} was not chosen for recording; chosen were {known}.")

    def count(self, name: str) -> int:
        """How many images were recorded at a hook."""
        return sum(number for (hook, _), number in self.counts.items() if hook == name)

    @torch.no_grad()
    def add(self, name: str, features: Tensor) -> None:
        """One pass at one hook: features (B, ...)."""
        for level in self.levels:
            rows = self._rows_at(level, features.detach())
            if len(rows):
                self._put(name, level, rows)

    def _rows_at(self, level: float | None, features: Tensor) -> Tensor:
        """The images of this pass that are at the level; all or none where they share one."""
        if level is None:
            return features
        assert self.pass_sigmas is not None
        here = (self.pass_sigmas / level - 1).abs() <= _SIGMA_RTOL
        if bool((here == here[0]).all()):
            return features if bool(here[0]) else features[:0]
        if len(here) != len(features):
            raise UserError("Images of several noise levels cannot be separated inside this network.")
        return features[here]

    def _put(self, name: str, level: float | None, rows: Tensor) -> None:
        kept = self.kept.setdefault(name, {})
        self.counts[name, level] += len(rows)
        if self.keep == "mean":
            total = rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32))
            kept[level] = total if level not in kept else kept[level].add_(total)
        else:
            kept.setdefault(level, []).append(rows.clone() if self.keep == "rows" else self.keep(rows))

    def _joined(self, name: str, levels: Sequence[float | None]) -> Any:
        if self.keep == "mean":
            total = torch.stack([self.kept[name][sigma] for sigma in levels]).sum(0)
            return total / sum(self.counts[name, sigma] for sigma in levels)
        passes = []
        for sigma in levels:
            passes += self.kept[name][sigma]
        return torch.cat(passes) if self.keep == "rows" else passes


@contextmanager
def record(
    denoiser: Any, at: str | Sequence[str] = "encoder.*", *, sigmas: Sequence[float] | None = None, keep: _Keep = "mean"
) -> Iterator[_FeatureRecording]:
    """Record features of all passes inside the `with`; afterwards the network is as before, whatever happens.

    `at` chooses hooks (see `chosen_hooks`), `sigmas` noise levels (default: all). Outputs are the same bits with
    and without.
    """
    if sigmas is not None and (not len(sigmas) or not all(sigma > 0 for sigma in sigmas)):
        raise UserError("Noise levels to record must be positive, and at least one.")
    hooks = chosen_hooks(denoiser, at)
    activations = _FeatureRecording(list(hooks), keep, sigmas)
    with ExitStack() as stack:
        if sigmas is not None:
            _note_sigmas(network_of(denoiser), activations, stack)
        for name, hook in hooks.items():
            watch(name, hook, partial(activations.add, name), stack)
        yield activations


def _note_sigmas(network: nn.Module, activations: _FeatureRecording, stack: ExitStack) -> None:
    """Read the noise level off every call denoise(x, sigma, cond)."""
    signature = inspect.signature(network.forward)

    def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        bound = signature.bind(*given, **named).arguments
        if "sigma" not in bound:
            raise UserError("Noise levels can be chosen only where the network takes `sigma`.")
        activations.pass_sigmas = torch.as_tensor(bound["sigma"]).detach().reshape(-1)

    stack.callback(network.register_forward_pre_hook(note, with_kwargs=True).remove)
