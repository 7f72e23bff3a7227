"""Figures in the manner of the paper's Figures 4 to 7 and 13, each with the control that belongs to it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from tessera.analysis.feature_figures import draw_number, layer_legend, mark_sections
from tessera.analysis.feature_study import Level, mean_over_hooks
from tessera.analysis.locality_figures import figure_conditions
from tessera.analysis.pixel_influence import Pixel
from tessera.files import atomic
from tessera.plots import figures
from tessera.plots.image_grid import image_grid
from tessera.render.image_io import resize, save_png, to_uint8
from tessera.studies.text_to_image.blocks import short_name
from tessera.studies.text_to_image.features import TextFeatureResult
from tessera.studies.text_to_image.influence import UNITS, PixelInfluence, Unit, WordInfluence
from tessera.studies.text_to_image.pipeline import Sdxl
from tessera.studies.text_to_image.prompts import Concept
from tessera.studies.text_to_image.words import REMOVAL_NAMES, Removal

_WITHIN, _BETWEEN = "#2a6f97", "#d9a15b"
_MEASURE_NAMES = {"ratio": "within / between", "gap": "within - between"}
_OUTLINE = withStroke(linewidth=4, foreground="white")
_SHEET_WIDTH = 192  # pixels of each image on a sheet of them


# -- files -------------------------------------------------------------------------------------------------


def save_prompt_study(
    file: Path,
    header: dict[str, Any],
    sdxl: Sdxl,
    latents: Tensor,
    pixel: PixelInfluence | None,
    paths: Mapping[Removal, WordInfluence],
    unit: Unit,
) -> None:
    """Arrays of one prompt in `file`, figures beside it; `latents` (B, C, H, W) are those at the end of sampling."""
    folder, model, words = file.parent, header["model"], paths["remove"]
    image = sdxl.decode(latents[:1])[0].cpu()
    save_png(folder / "image.png", image)
    title = f"{model}: {len(header['seeds'])} seeds, guidance {header['guidance']:g}"
    figures.save_figure(figure_locality(image, pixel, words, unit, title), file.with_suffix(".png"))
    arrays: dict[str, Tensor] = {}
    for removal, found in paths.items():
        title = f"{model}: words {REMOVAL_NAMES[removal]}"
        name = f"word-maps-{removal}.png" if len(paths) > 1 else "word-maps.png"
        figures.save_figure(figure_conditions(found.maps, found.sigmas, found.words, title), folder / name)
        arrays |= {f"maps_{removal}": found.maps, f"influence_{removal}": found.each}
    header = header | {"words": words.words, "sigmas": words.sigmas}
    if len(paths) > 1:
        figures.save_figure(figure_paths(paths, f"{model}: by which path words act"), folder / "paths.png")
    if pixel:
        header |= {"sigmas": pixel.sigmas, "word_sigmas": words.sigmas}
        arrays = {"pixel_maps": pixel.maps, "pixel_sides": pixel.sides_each, "latents": latents}
        arrays |= {"word_maps": words.maps, "word_influence": words.each}
    _save_arrays(file, header, arrays)


def save_features(folder: Path, label: str, header: dict[str, Any], found: TextFeatureResult) -> None:
    """Figures of every noise level, the first seed's images, and cosines as arrays."""
    about = f"{Path(header['model']).name}: {label}"
    for number, (step, sigma) in enumerate(zip(found.config.at, found.blocks.sigmas)):
        name = f"{label}-step{step + 1:02d}.png"
        title = rf"{about}, $\sigma$ = {sigma:.3g}, {len(header['seeds'])} seeds"
        figures.save_figure(figure_features(found, number, title), folder / f"features-{name}")
        figures.save_figure(figure_layers(found, number, title), folder / f"layers-{name}")
        if found.composites:
            figures.save_figure(figure_composites(found, number, title), folder / f"composites-{name}")
    if found.images:
        save_png(folder / f"images-{label}.png", _image_sheet(found.images))
    header = header | {"concepts": [asdict(concept) for concept in found.config.concepts]}
    _save_arrays(folder / f"features-{label}.npz", header, found.arrays())


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


@figures.styled
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
    figures.figure_title(figure, title)
    return figure


def _draw_image(part, image: Tensor, words: WordInfluence) -> None:
    ax = part.subplots()
    figures.show_image(ax, image)
    height, width = (side / cells for side, cells in zip(image.shape[-2:], words.maps.shape[-2:]))  # of a cell
    for number, probe in enumerate(words.probes):
        spot = ((probe.col + 0.5) * width - 0.5, (probe.row + 0.5) * height - 0.5)
        ax.plot(*spot, marker="+", ms=12, mew=2.2, color=figures.INK, path_effects=[_OUTLINE])
        ax.annotate(_letter(number), spot, (7, 5), textcoords="offset points", weight="bold", path_effects=[_OUTLINE])
    ax.set_title("the first seed's image", fontsize=8)


def _letter(number: int) -> str:
    return ascii_uppercase[number % len(ascii_uppercase)]


def _probe_name(number: int, probe: Pixel) -> str:
    return f"{_letter(number)} ({probe.row}, {probe.col})"


def _draw_heat(part, pixel: PixelInfluence, words: WordInfluence) -> None:
    """A row per probe, a column per level; each map to its own maximum, below it the words that dominate there."""
    axes = part.subplots(len(pixel.probes), len(pixel.sigmas), squeeze=False)
    for row, probe in enumerate(pixel.probes):
        for column, sigma in enumerate(pixel.sigmas):
            ax = axes[row, column]
            figures.show_heat_map(ax, pixel.maps[column, row])
            figures.outline_square(ax, probe, int(pixel.sides[column, row]))
            if sigma in words.sigmas:
                named = words.dominant(words.sigmas.index(sigma), row)
                text = ", ".join(named[:3]) + " ..." * (len(named) > 3)
                ax.set_xlabel(text, fontsize=6.5, color=figures.LEARNED, labelpad=2)
            if row == 0:
                figures.sigma_title(ax, sigma)
        axes[row, 0].set_ylabel(_probe_name(row, probe), fontsize=8)
    of = "clean latent" if pixel.of == "clean" else "predicted noise"
    note = f"influence of latent cells on the {of} at a probe (root); square: 90%; red: dominant words"
    part.supxlabel(note, fontsize=7, color=figures.QUIET)


def _draw_curves(part, words: WordInfluence, unit: Unit) -> None:
    """Influence of every word at the first probes; dominant words of the noisiest level are named in bold."""
    values = words.at(unit).numpy()  # (S, P, K)
    axes = part.subplots(min(2, len(words.probes)), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for number, ax in enumerate(axes):
        for k, word in enumerate(words.words):
            ax.plot(words.sigmas, values[:, number, k], color=figures.condition_color(k), lw=1.4, label=word)
        ax.set_title(_probe_name(number, words.probes[number]), fontsize=8)
        figures.noise_axis(ax)
    axes[-1].set_xlabel(r"noise level $\sigma$")
    part.supylabel(UNITS[unit], fontsize=8)
    part.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)


@figures.styled
def figure_paths(paths: Mapping[Removal, WordInfluence], title: str) -> Figure:
    """How much of a word's influence enters by the sequence and how much by the pooled vector, and how flat each is."""
    figure = Figure(figsize=(8.4, 3.1))
    left, right = figure.subplots(1, 2)
    for number, (removal, words) in enumerate(paths.items()):
        options = {"color": figures.condition_color(number), "marker": "o", "ms": 3, "label": REMOVAL_NAMES[removal]}
        left.plot(words.sigmas, words.means.mean(1), **options)
        right.plot(words.sigmas, words.variations.mean(1), **options)
    left.set(ylabel=UNITS["clean"] + ",\nmean over words and cells", xlabel=r"noise level $\sigma$", yscale="log")
    right.set(ylabel="variation over the image\n(standard deviation / mean)", xlabel=r"noise level $\sigma$")
    right.set_ylim(0, None)
    for ax in (left, right):
        figures.noise_axis(ax)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figures.figure_title(figure, title)
    return figure


# -- Figure 5 ----------------------------------------------------------------------------------------------


@figures.styled
def figure_features(result: TextFeatureResult, number: int, title: str) -> Figure:
    """Within and between categories by position, ratio and gap over layers beside untrained networks, and matrices."""
    positions = result.positions(number)
    below = 10.5 / (len(positions) + 0.6) + 0.5
    figure = Figure(figsize=(11, 4.4 + below))
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=[4.4, below])[:, 0]
    left, right = top.subfigures(1, 2, squeeze=False, width_ratios=[1, 1.7])[0]
    _draw_bars(left.subplots(), positions)
    axes = right.subplots(2, 1, squeeze=False)
    mark_sections(axes, result.layer_positions)
    for ax, name in zip(axes[:, 0], _MEASURE_NAMES):
        _draw_layers(ax, name, result, number)
    outputs, _ = axes[0, 0].get_legend_handles_labels()
    layer_legend(right, result.blocks, outputs)
    _draw_matrices(bottom, positions, result.config.concepts)
    figures.figure_title(figure, title)
    return figure


def _draw_bars(ax: Axes, positions: Mapping[str, Level]) -> None:
    """Means over the layers of a position."""
    for number, level in enumerate(positions.values()):
        for shift, name, color in ((-0.2, "within", _WITHIN), (0.2, "between", _BETWEEN)):
            value, label = mean_over_hooks(level, name), f"{name} categories" if number == 0 else None
            ax.bar(number + shift, value, 0.36, color=color, label=label)
            ax.text(number + shift, value, f"{value:.2f}", ha="center", va="bottom", fontsize=7)
    ax.set_xticks(range(len(positions)), list(positions))
    ax.set(ylabel="mean cosine similarity")
    ax.margins(y=0.2)
    ax.grid(False, axis="x")
    ax.axhline(0, color=figures.INK, lw=0.8)
    ax.legend(fontsize=7.5, loc="upper right", ncols=2)


def _draw_layers(ax: Axes, name: str, result: TextFeatureResult, number: int) -> None:
    """A measure of every layer with its interval, over the band of untrained networks."""
    level, origin = result.blocks.learned[number], 1 if name == "ratio" else 0
    draw_number(ax, result.blocks, number, name)
    for count, (output, found) in enumerate(result.outputs.items(), 1):
        ax.axhline(found.measure(name), color=figures.condition_color(count), lw=1.1, ls=(0, (4, 2)), label=output)
    ax.axhline(origin, color=figures.QUIET, lw=0.8)
    measured = [found.measure(name) for found in (*level.values(), *result.outputs.values())]
    ax.set(ylabel=_MEASURE_NAMES[name], xticks=[], ylim=_limits([origin, *measured]))


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Around what was measured: a ratio whose denominator is near 0 in some untrained network must not hide it."""
    known = [value for value in values if math.isfinite(value)]
    room = 0.6 * max(max(known) - min(known), 0.05)
    return min(known) - room, max(known) + room


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
    figures.cosine_bar(part, axes)


def _framed_cosines(ax: Axes, matrix: Tensor, concepts: Sequence[Concept]) -> None:
    """A matrix with a frame around every category."""
    figures.show_cosines(ax, matrix)
    start = -0.5
    for _, alike in groupby(concept.category for concept in concepts):
        size = len(list(alike))
        ax.add_patch(Rectangle((start, start), size, size, fill=False, ec=figures.INK, lw=1.0))
        start += size


# -- Figures 7 and 13 --------------------------------------------------------------------------------------


def _panels(count: int, columns: int, cell: tuple[float, float], sharey: bool = False) -> tuple[Figure, np.ndarray]:
    """A figure with `count` small panels, row by row; `cell` is (width, height) in inches."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(cell[0] * columns + 1.0, cell[1] * rows + 0.8))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    return figure, axes


@figures.styled
def figure_layers(result: TextFeatureResult, number: int, title: str) -> Figure:
    """The matrix of every layer, in the order in which they run, with its ratio."""
    level = result.blocks.learned[number]
    figure, axes = _panels(len(level), 10, (1.12, 1.3))
    for ax, (name, found) in zip(axes.flat, level.items()):
        _framed_cosines(ax, found.raw.matrix, result.config.concepts)
        ratio = f"{found.raw.ratio:.2f}" if math.isfinite(found.raw.ratio) else "-"
        ax.set_title(f"{short_name(name)}:  {ratio}", fontsize=6.5, loc="center")
    figures.cosine_bar(figure, axes)
    categories = ", ".join(dict.fromkeys(concept.category for concept in result.config.concepts))
    figure.supxlabel(f"framed: {categories}; above each: within / between", fontsize=7, color=figures.QUIET)
    figures.figure_title(figure, title)
    return figure


@figures.styled
def figure_composites(result: TextFeatureResult, number: int, title: str) -> Figure:
    """Is a concept inside a composite prompt the concept it is alone? Layer by layer, beside absent concepts."""
    level = result.blocks.learned[number]
    labels = {
        "cosine": ("with the same concept alone", figures.LEARNED),
        "cosine_with_others": ("with concepts that are not in the prompt, mean", figures.QUIET),
    }
    figure, axes = _panels(len(result.composites), 4, (2.6, 1.9), sharey=True)
    mark_sections(axes, result.layer_positions)
    for index, (ax, record) in enumerate(zip(axes.flat, result.composites)):
        for key, (label, color) in labels.items():
            values = [found.composites[index][key] for found in level.values()]
            ax.plot(np.array(values, dtype=float), color=color, lw=1.4, marker="o", ms=2, label=label)
        ax.set_title(f"{record['concept']} in {record['composite']}", fontsize=7.5, pad=12)
        ax.set(xticks=[], ylim=(-1.05, 1.05))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.supylabel("cosine similarity", fontsize=8)
    figures.figure_title(figure, title)
    return figure
