"""Figures in the manner of the paper's Figures 4 to 7 and 13, each with the control that belongs to it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from tessera.analysis.feature_study import Level
from tessera.analysis.pixel_influence import Pixel
from tessera.files import atomic
from tessera.plots.figures import (
    BAND,
    INK,
    INTERVAL,
    LEARNED,
    QUIET,
    compact_layout,
    condition_color,
    cosine_bar,
    evenly_spaced,
    figure_title,
    noise_axis,
    outline_square,
    save_figure,
    show_cosines,
    show_heat_map,
    show_image,
    sigma_title,
    styled,
)
from tessera.plots.image_grid import image_grid
from tessera.render.image_io import resize, save_png, to_uint8
from tessera.studies.text_to_image.blocks import position_of, short_name
from tessera.studies.text_to_image.features import TextFeatureResult, mean_of
from tessera.studies.text_to_image.influence import UNITS, PixelInfluence, Unit, WordInfluence
from tessera.studies.text_to_image.pipeline import Sdxl
from tessera.studies.text_to_image.prompts import Concept
from tessera.studies.text_to_image.words import REMOVAL_NAMES, Removal

WITHIN, BETWEEN = "#2a6f97", "#d9a15b"
_MEASURE_NAMES = {"ratio": "within / between", "gap": "within - between"}
_OUTLINE = withStroke(linewidth=4, foreground="white")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHEET_WIDTH = 192  # pixels of each image on a sheet of them


# -- files -------------------------------------------------------------------------------------------------


def save_locality(
    folder: Path,
    header: dict[str, Any],
    sdxl: Sdxl,
    latents: Tensor,
    pixel: PixelInfluence,
    words: WordInfluence,
    unit: Unit,
) -> None:
    """Figures and arrays of one prompt's locality; `latents` (B, C, H, W) are those at the end of sampling."""
    model, image = header["model"], _save_first(folder, sdxl, latents)
    title = f"{model}: {len(header['seeds'])} seeds, guidance {header['guidance']:g}"
    save_figure(figure_locality(image, pixel, words, unit, title), folder / "locality.png")
    save_figure(figure_words(words, f"{model}: where words act"), folder / "word-maps.png")
    header = header | {"sigmas": pixel.sigmas, "word_sigmas": words.sigmas, "words": words.words}
    arrays = {
        "pixel_maps": pixel.maps,
        "pixel_sides": pixel.sides_each,
        "word_maps": words.maps,
        "word_influence": words.each,
        "latents": latents,
    }
    _save_arrays(folder / "locality.npz", header, arrays)


def save_words(
    folder: Path,
    header: dict[str, Any],
    sdxl: Sdxl,
    latents: Tensor,
    paths: Mapping[Removal, WordInfluence],
    unit: Unit,
) -> None:
    """Figures and arrays of all ways to remove words."""
    model, image = header["model"], _save_first(folder, sdxl, latents)
    save_figure(figure_locality(image, None, paths["remove"], unit, f"{model}: words"), folder / "words.png")
    save_figure(figure_paths(paths, f"{model}: by which path words act"), folder / "paths.png")
    arrays: dict[str, Tensor] = {}
    for removal, words in paths.items():
        title = f"{model}: words {REMOVAL_NAMES[removal]}"
        save_figure(figure_words(words, title), folder / f"word-maps-{removal}.png")
        arrays |= {f"maps_{removal}": words.maps, f"influence_{removal}": words.each}
    _save_arrays(folder / "words.npz", header, arrays)


def save_features(folder: Path, label: str, header: dict[str, Any], found: TextFeatureResult) -> None:
    """Figures of every noise level, the first seed's images, and cosines as arrays."""
    about = f"{Path(header['model']).name}: {label}"
    for number, (step, sigma) in enumerate(zip(found.steps, found.blocks.sigmas)):
        name = f"{label}-step{step + 1:02d}.png"
        title = rf"{about}, $\sigma$ = {sigma:.3g}, {len(header['seeds'])} seeds"
        save_figure(figure_features(found, number, title), folder / f"features-{name}")
        save_figure(figure_layers(found, number, title), folder / f"layers-{name}")
        if found.composites:
            save_figure(figure_composites(found, number, title), folder / f"composites-{name}")
    if found.images:
        save_png(folder / f"images-{label}.png", _image_sheet(found.images))
    header = header | {"concepts": [asdict(concept) for concept in found.concepts]}
    _save_arrays(folder / f"features-{label}.npz", header, found.arrays())


def _save_first(folder: Path, sdxl: Sdxl, latents: Tensor) -> Tensor:
    """The first seed's image."""
    image = sdxl.decode(latents[:1])[0].cpu()
    save_png(folder / "image.png", image)
    return image


def _image_sheet(images: Mapping[str, Tensor]) -> Tensor:
    """Small images with their names, 8-bit."""
    height, width = next(iter(images.values())).shape[-2:]
    small = [resize(to_uint8(image), (_SHEET_WIDTH, _SHEET_WIDTH * height // width)) for image in images.values()]
    return image_grid(small, [name or "(empty)" for name in images], columns=8)


def _save_arrays(file: Path, header: dict[str, Any], arrays: Mapping[str, Any]) -> None:
    """One .npz file: arrays, and a JSON text `header` that says what they are."""
    plain: dict[str, Any] = {"header": np.array(json.dumps(header))}
    for name, array in arrays.items():
        plain[name] = array.float().cpu() if isinstance(array, Tensor) else array
    with atomic(file) as temporary, open(temporary, "wb") as opened:
        np.savez_compressed(opened, **plain)


# -- Figures 4 and 6 ---------------------------------------------------------------------------------------


@styled
def figure_locality(
    image: Tensor, pixel: PixelInfluence | None, words: WordInfluence, unit: Unit, title: str
) -> Figure:
    """The image with its probes, which latent cells move each probe, and which words, over noise levels."""
    height = max(3.6, 1.15 * len(pixel.probes) + 0.7) if pixel else 3.6
    widths = [height - 0.6, *([1.12 * len(pixel.sigmas) + 0.5] if pixel else []), 3.2]
    figure = Figure(figsize=(sum(widths), height))
    parts = figure.subfigures(1, len(widths), squeeze=False, width_ratios=widths)[0]
    _draw_image(parts[0], image, words)
    if pixel:
        _draw_heat(parts[1], pixel, words)
    _draw_curves(parts[-1], words, unit)
    figure_title(figure, title)
    return figure


def _draw_image(part, image: Tensor, words: WordInfluence) -> None:
    ax = part.subplots()
    show_image(ax, image)
    rows, cols = words.maps.shape[-2:]
    height, width = image.shape[-2:]
    for number, probe in enumerate(words.probes):
        spot = ((probe.col + 0.5) * width / cols - 0.5, (probe.row + 0.5) * height / rows - 0.5)
        ax.plot(*spot, marker="+", ms=12, mew=2.2, color=INK, path_effects=[_OUTLINE])
        ax.annotate(
            _LETTERS[number % len(_LETTERS)],
            spot,
            (7, 5),
            textcoords="offset points",
            weight="bold",
            path_effects=[_OUTLINE],
        )
    ax.set_title("the first seed's image", fontsize=8)


def probe_name(number: int, probe: Pixel) -> str:
    return f"{_LETTERS[number % len(_LETTERS)]} ({probe.row}, {probe.col})"


def _draw_heat(part, pixel: PixelInfluence, words: WordInfluence) -> None:
    """A row per probe, a column per level; each map to its own maximum, below it the words that dominate there."""
    axes = part.subplots(len(pixel.probes), len(pixel.sigmas), squeeze=False)
    for row, probe in enumerate(pixel.probes):
        for column, sigma in enumerate(pixel.sigmas):
            ax = axes[row, column]
            show_heat_map(ax, pixel.maps[column, row])
            outline_square(ax, probe, int(pixel.sides[column, row]))
            if sigma in words.sigmas:
                named = words.dominant(words.sigmas.index(sigma), row)
                ax.set_xlabel(", ".join(named[:3]) + " ..." * (len(named) > 3), fontsize=6.5, color=LEARNED, labelpad=2)
            if row == 0:
                sigma_title(ax, sigma)
        axes[row, 0].set_ylabel(probe_name(row, probe), fontsize=8)
    of = "clean latent" if pixel.of == "clean" else "predicted noise"
    note = f"influence of latent cells on the {of} at a probe (root); square: 90%; red: dominant words"
    part.supxlabel(note, fontsize=7, color=QUIET)


def _draw_curves(part, words: WordInfluence, unit: Unit) -> None:
    """Influence of every word at the first probes; dominant words of the noisiest level are named in bold."""
    values = words.at(unit).numpy()  # (S, P, K)
    axes = part.subplots(min(2, len(words.probes)), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for number, ax in enumerate(axes):
        for k, word in enumerate(words.words):
            ax.plot(words.sigmas, values[:, number, k], color=condition_color(k), lw=1.4, label=word)
        ax.set_title(probe_name(number, words.probes[number]), fontsize=8)
        noise_axis(ax)
    axes[-1].set_xlabel(r"noise level $\sigma$")
    part.supylabel(UNITS[unit], fontsize=8)
    part.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)


@styled
def figure_words(words: WordInfluence, title: str, columns: int = 6) -> Figure:
    """Where each word acts: Eq. 10 over the whole latent, a row per word; one scale per level."""
    levels = evenly_spaced(len(words.sigmas), columns)
    rows = len(words.words)
    figure = Figure(figsize=(1.1 * len(levels) + 1.2, 1.08 * rows + 0.8), layout=compact_layout())
    axes = figure.subplots(rows, len(levels), squeeze=False)
    for column, level in enumerate(levels):
        maps = words.maps[level]
        sigma_title(axes[0, column], words.sigmas[level])
        for row, influence_map in enumerate(maps):
            show_heat_map(axes[row, column], influence_map, float(maps.max()))
    for row, word in enumerate(words.words):
        axes[row, 0].set_ylabel(word, fontsize=8)
    figure.supxlabel("change when the word is removed (root, one scale per column)", fontsize=7, color=QUIET)
    figure_title(figure, title)
    return figure


@styled
def figure_paths(paths: Mapping[Removal, WordInfluence], title: str) -> Figure:
    """How much of a word's influence enters by the sequence and how much by the pooled vector, and how flat each is."""
    figure = Figure(figsize=(8.4, 3.1))
    left, right = figure.subplots(1, 2)
    for number, (removal, words) in enumerate(paths.items()):
        options = {"color": condition_color(number), "marker": "o", "ms": 3, "label": REMOVAL_NAMES[removal]}
        left.plot(words.sigmas, words.means.mean(1), **options)
        right.plot(words.sigmas, words.variations.mean(1), **options)
    left.set(ylabel=UNITS["clean"] + ",\nmean over words and cells", xlabel=r"noise level $\sigma$", yscale="log")
    right.set(ylabel="variation over the image\n(standard deviation / mean)", xlabel=r"noise level $\sigma$")
    right.set_ylim(0, None)
    for ax in (left, right):
        noise_axis(ax)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure_title(figure, title)
    return figure


# -- Figure 5 ----------------------------------------------------------------------------------------------


@styled
def figure_features(result: TextFeatureResult, number: int, title: str) -> Figure:
    """Within and between categories by position, ratio and gap over layers beside untrained networks, and matrices."""
    positions = result.positions(number)
    below = 10.5 / (len(positions) + 0.6) + 0.5
    figure = Figure(figsize=(11, 4.4 + below))
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=[4.4, below])[:, 0]
    left, right = top.subfigures(1, 2, squeeze=False, width_ratios=[1, 1.7])[0]
    _draw_bars(left.subplots(), positions)
    ratio, gap = right.subplots(2, 1, sharex=True)
    _draw_layers(ratio, "ratio", result, number)
    _draw_layers(gap, "gap", result, number)
    ratio.legend(fontsize=7.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _draw_matrices(bottom, positions, result.concepts)
    figure_title(figure, title)
    return figure


def _draw_bars(ax: Axes, positions: Mapping[str, Level]) -> None:
    """Means over the layers of a position."""
    for number, level in enumerate(positions.values()):
        for shift, name, color in ((-0.2, "within", WITHIN), (0.2, "between", BETWEEN)):
            value, label = mean_of(level, name), f"{name} categories" if number == 0 else None
            ax.bar(number + shift, value, 0.36, color=color, label=label)
            ax.text(number + shift, value, f"{value:.2f}", ha="center", va="bottom", fontsize=7)
    ax.set_xticks(range(len(positions)), list(positions))
    ax.set(ylabel="mean cosine similarity")
    ax.margins(y=0.2)
    ax.grid(False, axis="x")
    ax.axhline(0, color=INK, lw=0.8)
    ax.legend(fontsize=7.5, loc="upper right", ncols=2)


def _draw_layers(ax: Axes, name: str, result: TextFeatureResult, number: int) -> None:
    """A measure of every layer with its interval, over the band of untrained networks."""
    level, origin = result.blocks.learned[number], 1 if name == "ratio" else 0
    position = np.arange(len(level))
    values = np.array([getattr(found.raw, name) for found in level.values()])
    unknown = (math.nan, math.nan)
    bands = [result.band(number, hook, name) for hook in level]
    if any(bands):
        low, high = np.array([(band.low, band.high) if band else unknown for band in bands]).T
        ax.fill_between(position, low, high, color=BAND, lw=0, step="mid", label="untrained")
    low, high = np.array([found.raw.intervals.get(name) or unknown for found in level.values()]).T
    ax.fill_between(position, low, high, color=INTERVAL, alpha=0.7, lw=0, label="95%, seeds")
    ax.plot(position, values, color=LEARNED, lw=1.4, marker="o", ms=2.6, label="layer by layer")
    outputs = [getattr(found.raw, name) for found in result.outputs.values()]
    for count, (output, value) in enumerate(zip(result.outputs, outputs), 1):
        ax.axhline(value, color=condition_color(count), lw=1.1, ls=(0, (4, 2)), label=output)
    ax.axhline(origin, color=QUIET, lw=0.8)
    _mark_positions(ax, [position_of(hook) for hook in level])
    ax.set(ylabel=_MEASURE_NAMES[name], xlim=(-0.5, len(level) - 0.5))
    ax.set_ylim(*limits(values, outputs, origin))
    ax.grid(False, axis="x")


def limits(values: np.ndarray, outputs: Sequence[float], origin: float) -> tuple[float, float]:
    """Around what was measured: a ratio whose denominator is near 0 in some untrained network must not hide it."""
    known = [value for value in (*values, *outputs, origin) if math.isfinite(value)]
    room = 0.6 * max(max(known) - min(known), 0.05)
    return min(known) - room, max(known) + room


def _mark_positions(ax: Axes, names: Sequence[str]) -> None:
    """Parts of the network under the axis, lines where they meet."""
    parts = runs(names)
    for start, _ in parts[1:]:
        ax.axvline(start - 0.5, color=QUIET, lw=0.7)
    ax.set_xticks([start + (size - 1) / 2 for start, size in parts], [names[start] for start, _ in parts])
    ax.tick_params(axis="x", length=0)


def _draw_matrices(part, positions: Mapping[str, Level], concepts: Sequence[Concept]) -> None:
    """Cosines of all concepts, mean over the layers of each position."""
    axes = part.subplots(1, len(positions), squeeze=False)
    for number, (position, level) in enumerate(positions.items()):
        ax = axes[0, number]
        _framed_cosines(ax, torch.stack([found.raw.matrix for found in level.values()]).nanmean(0), concepts)
        title = position if len(level) == 1 else f"{position}, mean of {len(level)} layers"
        ax.set_title(title, fontsize=8)
        if number == 0:
            ax.set_yticks(range(len(concepts)), [concept.name for concept in concepts], fontsize=6)
            ax.tick_params(axis="y", length=0)
    cosine_bar(part, axes)


def _framed_cosines(ax: Axes, matrix: Tensor, concepts: Sequence[Concept]) -> None:
    """A matrix with a frame around every category."""
    show_cosines(ax, matrix)
    for start, size in runs([concept.category for concept in concepts]):
        ax.add_patch(Rectangle((start - 0.5, start - 0.5), size, size, fill=False, ec=INK, lw=1.0))


def runs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Start and length of every stretch of equal names."""
    starts = [number for number, name in enumerate(names) if number == 0 or names[number - 1] != name]
    return [(start, end - start) for start, end in zip(starts, [*starts[1:], len(names)])]


# -- Figures 7 and 13 --------------------------------------------------------------------------------------


def _panels(count: int, columns: int, cell: tuple[float, float], sharey: bool = False) -> tuple[Figure, np.ndarray]:
    """A figure with `count` small panels, row by row; `cell` is (width, height) in inches."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(cell[0] * columns + 1.0, cell[1] * rows + 0.8))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, axes


@styled
def figure_layers(result: TextFeatureResult, number: int, title: str) -> Figure:
    """The matrix of every layer, in the order in which they run, with its ratio."""
    level = result.blocks.learned[number]
    figure, axes = _panels(len(level), 10, (1.12, 1.3))
    for ax, (name, found) in zip(axes.flat, level.items()):
        _framed_cosines(ax, found.raw.matrix, result.concepts)
        ratio = f"{found.raw.ratio:.2f}" if math.isfinite(found.raw.ratio) else "-"
        ax.set_title(f"{short_name(name)}:  {ratio}", fontsize=6.5, loc="center")
    cosine_bar(figure, axes)
    categories = ", ".join(dict.fromkeys(concept.category for concept in result.concepts))
    figure.supxlabel(f"framed: {categories}; above each: within / between", fontsize=7, color=QUIET)
    figure_title(figure, title)
    return figure


@styled
def figure_composites(result: TextFeatureResult, number: int, title: str) -> Figure:
    """Is a concept inside a composite prompt the concept it is alone? Layer by layer, beside absent concepts."""
    level = result.blocks.learned[number]
    labels = {
        "cosine": ("with the same concept alone", LEARNED),
        "cosine_with_others": ("with concepts that are not in the prompt, mean", QUIET),
    }
    figure, axes = _panels(len(result.composites), 4, (2.6, 1.9), sharey=True)
    for index, (ax, record) in enumerate(zip(axes.flat, result.composites)):
        for key, (label, color) in labels.items():
            values = [found.composites[index][key] for found in level.values()]
            ax.plot(np.array(values, dtype=float), color=color, lw=1.4, marker="o", ms=2, label=label)
        _mark_positions(ax, [position_of(hook) for hook in level])
        ax.set_title(f"{record['concept']} in {record['composite']}", fontsize=7.5)
        ax.grid(False, axis="x")
        ax.set_ylim(-1.05, 1.05)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.supylabel("cosine similarity", fontsize=8)
    figure_title(figure, title)
    return figure
