"""Look inside a network while it works: running means of named hooks, without touching what it computes."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessera.analysis.hooks import Hook, chosen_hooks, network_of
from tessera.errors import UserError

Keep = Literal["mean", "rows"] | Callable[[Tensor], Any]
NEAR = 0.01  # a noise level within one percent is the one asked for
EVERY: float | None = None  # the level under which features are kept when none was chosen


class FeatureRecording(Mapping[str, Any]):
    """What was recorded: by name of the hook, in order of first use.

    With `keep` "mean", `seen[name]` is the mean over all images, (C, H, W), and memory does not grow with
    their number. With "rows" it is every image's features, (N, C, H, W). With a function it is the list of
    what the function made of each pass. `seen.level(sigma)` has the same of one noise level alone.
    """

    def __init__(self, names: Sequence[str], keep: Keep = "mean", sigmas: Sequence[float] | None = None):
        self.names, self.keep = tuple(names), keep
        self.sigmas = None if sigmas is None else tuple(float(sigma) for sigma in sigmas)
        self.kept: dict[str, dict[float | None, Any]] = {}
        self.counts: dict[tuple[str, float | None], int] = {}
        self.now: Tensor | None = None  # noise level of each image in the current pass

    def __getitem__(self, name: str) -> Any:
        self.check(name)
        return self.joined(name, list(self.kept[name]))

    def __contains__(self, name: object) -> bool:
        return name in self.kept

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def level(self, sigma: float) -> dict[str, Any]:
        """What was seen at one of the chosen noise levels."""
        wanted_level = nearest(sigma, self.sigmas or ())
        if wanted_level is None:
            known = ", ".join(f"{s:g}" for s in self.sigmas or ()) or "none"
            raise UserError(f"Noise level {sigma:g} was not chosen for recording; chosen were {known}.")
        return {
            name: self.joined(name, [wanted_level])
            for name, kept in self.kept.items()
            if wanted_level in kept
        }

    def count(self, name: str) -> int:
        """How many images were seen at a hook."""
        return sum(number for (hook, _), number in self.counts.items() if hook == name)

    # -- filling -----------------------------------------------------------------------------------------

    def add(self, name: str, features: Tensor) -> None:
        """One pass at one hook: features (B, ...)."""
        with torch.no_grad():
            if self.sigmas is None:
                self.put(name, EVERY, features.detach())
                return
            for sigma in self.sigmas:
                rows = self.rows_at(sigma, features)
                if len(rows):
                    self.put(name, sigma, rows)

    def rows_at(self, sigma: float, features: Tensor) -> Tensor:
        """The images of this pass that are at the level; all or none where they share one."""
        assert self.now is not None
        here = (self.now / sigma - 1).abs() <= NEAR
        if bool(here.all()):
            return features.detach()
        if not bool(here.any()):
            return features[:0].detach()
        if len(here) != len(features):
            raise UserError("Images of several noise levels cannot be told apart inside this network.")
        return features.detach()[here]

    def put(self, name: str, sigma: float | None, rows: Tensor) -> None:
        kept = self.kept.setdefault(name, {})
        key = (name, sigma)
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        if self.keep == "mean":
            total = rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32))
            kept[sigma] = total if sigma not in kept else kept[sigma].add_(total)
        else:
            kept.setdefault(sigma, []).append(rows.clone() if self.keep == "rows" else self.keep(rows))

    # -- reading -----------------------------------------------------------------------------------------

    def joined(self, name: str, levels: Sequence[float | None]) -> Any:
        parts = [self.kept[name][sigma] for sigma in levels]
        if self.keep == "mean":
            return torch.stack(parts).sum(0) / sum(self.counts[name, sigma] for sigma in levels)
        passes = [one for part in parts for one in part]
        return torch.cat(passes) if self.keep == "rows" else passes

    def check(self, name: str) -> None:
        if name in self.kept:
            return
        if name in self.names:
            raise UserError(f"`{name}` was recorded, but no image passed there.")
        raise UserError(f"`{name}` was not recorded; recorded were {', '.join(self.names)}.")


def nearest(sigma: float, sigmas: Sequence[float]) -> float | None:
    return next((one for one in sigmas if abs(sigma / one - 1) <= NEAR), None)


@contextmanager
def record(
    denoiser: Any,
    at: str | Sequence[str] = "encoder.*",
    *,
    sigmas: Sequence[float] | None = None,
    keep: Keep = "mean",
) -> Iterator[FeatureRecording]:
    """Record features of all passes inside the `with`; the network is as before afterwards, whatever happens.

    `at` chooses hooks (see `chosen_hooks`), `sigmas` noise levels (default: all that come). Outputs are the
    same bits with and without.
    """
    hooks = chosen_hooks(denoiser, at)
    seen = FeatureRecording(list(hooks), keep, checked_levels(sigmas))
    with ExitStack() as stack:
        if sigmas is not None:
            watch_level(network_of(denoiser), seen, stack)
        for name, hook in hooks.items():
            watch(name, hook, seen, stack)
        yield seen


def watch(name: str, hook: Hook, seen: FeatureRecording, stack: ExitStack) -> None:
    hook.watch(lambda features: seen.add(name, features), stack)


def watch_level(network: nn.Module, seen: FeatureRecording, stack: ExitStack) -> None:
    """Read the noise level off every call denoise(x, sigma, cond)."""
    signature = inspect.signature(network.forward)

    def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        bound = signature.bind(*given, **named).arguments
        if "sigma" not in bound:
            raise UserError("Noise levels can be chosen only where the network takes `sigma`.")
        seen.now = torch.as_tensor(bound["sigma"]).detach().reshape(-1)

    stack.callback(network.register_forward_pre_hook(note, with_kwargs=True).remove)


def checked_levels(sigmas: Sequence[float] | None) -> Sequence[float] | None:
    if sigmas is not None and (not len(sigmas) or not all(sigma > 0 for sigma in sigmas)):
        raise UserError("Noise levels to record must be positive, and at least one.")
    return sigmas
