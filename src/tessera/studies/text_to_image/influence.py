"""Where latents and words act: Eq. 9 and Eq. 10 along SDXL's own sampling trajectories.

Both are measured on the conditional network, without guidance. With guidance w and only the conditional prompt
changed, a word's influence is exactly w times the one measured here.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tessera.analysis.condition_influence import condition_influence
from tessera.analysis.feature_statistics import with_interval
from tessera.analysis.pixel_influence import (
    GradientConfig,
    Pairs,
    Pixel,
    pixel_influence,
    smallest_square,
    total_energy,
)
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.precondition import like_image, per_image
from tessera.rng import generator
from tessera.sampling.trajectory import Trajectory
from tessera.stats import RESAMPLES, mean_interval, resample_counts, spread_around
from tessera.studies.text_to_image.pipeline import Sdxl
from tessera.studies.text_to_image.words import PromptWords, Removal, Word

Of = Literal["clean", "eps"]
Unit = Literal["clean", "eps", "score"]
UNITS = {"clean": "change of the clean latent", "eps": "change of the predicted noise", "score": "change of the score"}
_DOMINANT = 2.0  # how many times the next word's influence the weakest dominant word must have
_ONE_BY_ONE = GradientConfig(method="loop")  # attention kernels that save memory cannot batch their gradients


# -- Eq. 9 -------------------------------------------------------------------------------------------------


def predicted_noise(denoise: Denoiser) -> Denoiser:
    """(x - clean) / sigma: what is left of a denoiser's derivative without the identity."""

    def noise(x: Tensor, sigma: Tensor, cond: Any = None) -> Tensor:
        return (x - denoise(x, sigma, cond)) / like_image(per_image(sigma, x))

    return noise


@dataclass(frozen=True)
class PixelInfluence:
    """Eq. 9 for P probes at S levels, on the CPU."""

    sigmas: tuple[float, ...]
    probes: tuple[Pixel, ...]
    maps: Tensor  # (S, P, H, W), mean over seeds
    sides: Tensor  # (S, P) of the smallest square with 90% of the mean map's energy
    sides_each: Tensor  # (B, S, P) of every seed's
    energy: Tensor  # (S, P)
    of: Of
    pairs: Pairs

    def record(self, seed: int = 0) -> list[dict[str, Any]]:
        """A row per level and probe; intervals draw seeds again."""
        rng = generator(seed)
        records = []
        for level, sigma in enumerate(self.sigmas):
            for p, probe in enumerate(self.probes):
                energy = self.energy[level, p]
                share = self.maps[level, p, probe.row, probe.col].square() / energy.clamp(min=1e-300)
                record = {
                    "sigma": sigma,
                    "row": probe.row,
                    "col": probe.col,
                    "side90": int(self.sides[level, p]),
                    "side90_each": mean_interval(self.sides_each[:, level, p].numpy(), rng).to_dict(),
                    "energy": float(energy),
                    "share_at_probe": float(share),
                }
                records.append(record)
        return records


def pixel_study(
    sdxl: Sdxl,
    prompt: str,
    trajectory: Trajectory,
    probes: Sequence[tuple[int, int]],
    *,
    of: Of = "clean",
    pairs: Pairs = "same",
    how: GradientConfig = _ONE_BY_ONE,
    guidance: float = 1.0,
    advance: Callable[[], Any] = lambda: None,
) -> PixelInfluence:
    """Every probe at every kept level of every seed; a backward pass per probe and channel."""
    denoise = sdxl.denoiser(guidance)
    measured = denoise if of == "clean" else predicted_noise(denoise)
    cond = sdxl.conditioner(prompt)
    levels = []
    for sigma, x in zip(trajectory.sigmas.tolist(), trajectory.x):
        each = pixel_influence(measured, x, sigma, cond.expand(len(x), -1), at=probes, pairs=pairs, how=how)
        levels.append(each.cpu())  # (B, P, H, W)
        advance()
    found = torch.stack(levels)  # (S, B, P, H, W)
    maps = found.mean(1)
    return PixelInfluence(
        sigmas=tuple(trajectory.sigmas.tolist()),
        probes=tuple(Pixel(*probe) for probe in probes),
        maps=maps,
        sides=smallest_square(maps, probes),
        sides_each=smallest_square(found, probes).transpose(0, 1),
        energy=total_energy(maps),
        of=of,
        pairs=pairs,
    )


# -- Eq. 10 ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordInfluence:
    """Eq. 10 for K words at S levels, on the CPU: change of the clean latent when a word is removed."""

    prompt: str
    words: tuple[str, ...]
    how: Removal
    sigmas: tuple[float, ...]
    probes: tuple[Pixel, ...]
    maps: Tensor  # (S, K, H, W), mean over seeds
    each: Tensor  # (B, S, P, K), of every seed at the probes

    def at(self, unit: Unit = "clean", guidance: float = 1.0) -> Tensor:
        """Mean over seeds at the probes, (S, P, K), in another unit and under guidance."""
        return self.each.mean(0) * guidance * self.factor(unit)[:, None, None]

    def factor(self, unit: Unit) -> Tensor:
        """From the clean latent to the unit: sigma divides once for the noise, twice for the score; (S,)."""
        powers = {"clean": 0, "eps": 1, "score": 2}
        return torch.tensor(self.sigmas, dtype=self.each.dtype) ** -powers[unit]

    def dominant(self, level: int, probe: int) -> list[str]:
        """The paper's rule: the fewest strongest words, the weakest of them twice as strong as the next."""
        return dominant(self.words, self.each.mean(0)[level, probe])

    def sameness(self, seed: int = 0, resamples: int = RESAMPLES) -> list[dict[str, Any]]:
        """Per level: do words act alike at two probes? Pearson's r and the cosine of their K numbers.

        Means over pairs of probes; intervals draw seeds again. Near 1 there is no conditional locality.
        """
        rng = generator(seed)
        seeds = len(self.each)
        shares = resample_counts(rng, seeds, resamples) / seeds
        again = torch.einsum("rb,bspk->rspk", torch.from_numpy(shares), self.each.double())
        whole = sameness(self.each.double().mean(0))  # name: (S,)
        spread = sameness(again)  # name: (R, S)
        records: list[dict[str, Any]] = []
        for level, sigma in enumerate(self.sigmas):
            ranges = {name: _ranged(whole[name][level], spread[name][:, level], seeds) for name in whole}
            records.append({"sigma": sigma, **ranges})
        return records

    def record(self, seed: int = 0) -> dict[str, Any]:
        """JSON-ready: curves, dominant words and sameness."""
        return {
            "how": self.how,
            "unit": UNITS["clean"],
            "words": list(self.words),
            "levels": [self._level_record(level) for level in range(len(self.sigmas))],
            "sameness": self.sameness(seed) if len(self.probes) > 1 else None,
        }

    def _level_record(self, level: int) -> dict[str, Any]:
        influence, maps = self.each.mean(0)[level], self.maps[level].flatten(1)  # (P, K), (K, H W)
        probes = []
        for p, (row, col) in enumerate(self.probes):
            found = {"influence": influence[p].tolist(), "dominant": self.dominant(level, p)}
            probes.append({"row": row, "col": col, **found})
        return {
            "sigma": self.sigmas[level],
            "probes": probes,
            "mean_over_image": maps.mean(1).tolist(),
            "variation_over_image": (maps.std(1) / maps.mean(1)).nan_to_num().tolist(),
        }


def dominant(words: Sequence[str], influence: Tensor, factor: float = _DOMINANT) -> list[str]:
    """The smallest m < K with I_(m) >= 2 I_(m+1) of influence (K,) sorted downwards; none, if there is no such m."""
    values, order = influence.sort(descending=True)
    enough = values[:-1] >= factor * values[1:]
    if not len(enough) or not bool(enough.any()) or not values[0] > 0:
        return []
    return [words[position] for position in order[: int(enough.int().argmax()) + 1].tolist()]


def sameness(influence: Tensor) -> dict[str, Tensor]:
    """Of influence (..., P, K): mean over pairs of probes of Pearson's r and of the cosine, (...)."""
    pairs = torch.tensor(list(itertools.combinations(range(influence.shape[-2]), 2)), dtype=torch.long).reshape(-1, 2)
    if not len(pairs):
        raise UserError("Sameness needs at least two probes.")
    centered = influence - influence.mean(-1, keepdim=True)
    return {
        name: mean_cosine(rows[..., pairs[:, 0], :], rows[..., pairs[:, 1], :])
        for name, rows in (("pearson_r", centered), ("cosine", influence))
    }


def mean_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Of rows (..., pairs, K), mean over pairs."""
    return torch.cosine_similarity(first, second, dim=-1, eps=1e-30).clamp(-1, 1).mean(-1)


def _ranged(value: Tensor, spread: Tensor, seeds: int) -> dict[str, float | None]:
    """A value, and its 95% interval from resampled ones (R,)."""
    ends = spread_around(float(value), spread, (-1.0, 1.0)) if seeds > 1 else None
    return with_interval(float(value), ends)


def word_study(
    sdxl: Sdxl,
    prompt: str,
    trajectory: Trajectory,
    probes: Sequence[tuple[int, int]],
    *,
    words: Sequence[str | Word] | None = None,
    how: Removal = "remove",
    rows: int = 16,
    advance: Callable[[], Any] = lambda: None,
) -> WordInfluence:
    """Every word removed in turn, at every kept level of every seed; `rows` latents are denoised together."""
    words_at = PromptWords(sdxl, prompt, words, how)
    check_inside(probes, sdxl.latent)
    levels = []
    for sigma, x in zip(trajectory.sigmas.tolist(), trajectory.x):
        cond = words_at.cond.expand(len(x), -1)
        levels.append(
            condition_influence(sdxl.plain, x, sigma, cond, words_at, words_at.names, rows=rows).cpu()  # type: ignore[arg-type]
        )
        advance()
    found = torch.stack(levels, dim=1)  # (B, S, K, H, W)
    at = torch.tensor([tuple(probe) for probe in probes]).reshape(-1, 2)
    return WordInfluence(
        prompt=prompt,
        words=tuple(words_at.names),
        how=how,
        sigmas=tuple(trajectory.sigmas.tolist()),
        probes=tuple(Pixel(*probe) for probe in probes),
        maps=found.mean(0),
        each=found[..., at[:, 0], at[:, 1]].transpose(2, 3),
    )


def check_inside(probes: Sequence[tuple[int, int]], latent: tuple[int, int, int]) -> None:
    for row, col in probes:
        if not (0 <= row < latent[1] and 0 <= col < latent[2]):
            raise UserError(f"The probe ({row}, {col}) lies outside a latent of {latent[1]} x {latent[2]} cells.")


def word_paths(
    sdxl: Sdxl, prompt: str, trajectory: Trajectory, probes: Sequence[tuple[int, int]], **options: Any
) -> dict[str, WordInfluence]:
    """The same for every way of removing a word: whole, by its sequence, by its pooled vector, by its own tokens."""
    removals: tuple[Removal, ...] = ("remove", "sequence", "pooled", "mask")
    usable = [how for how in removals if sdxl.has_pooled or how != "pooled"]
    return {how: word_study(sdxl, prompt, trajectory, probes, how=how, **options) for how in usable}
