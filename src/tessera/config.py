"""The experiments of the study and the sizes they can be run at: one table each, to be compared by eye."""

import dataclasses
import difflib
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tessera.errors import UserError
from tessera.records import SETTING_KEYS, SETTING_VALUES

Ki, Mi = 2**10, 2**20
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": Ki, "mi": Mi, "gi": 2**30}
COUNT = "count"  # marks settings that may be written 4Mi or 500k

ConditionerKind = Literal["grid", "list", "color", "nothing"]
Label = Literal["all", "one", "random", "all-but-one", "drop"]
Strategy = Literal["eager", "compiled", "graph"]
DenoiserKind = Literal["edm2", "patchwise", "localconv"]


@dataclass(frozen=True)
class ConditionerConfig:
    """What the network is told about a scene."""

    kind: Annotated[
        ConditionerKind, "counts on a grid, a list of locations, counts of colors, or nothing"
    ] = "grid"
    label: Annotated[
        Label,
        "objects that are labeled: all, one, a random number, all-but-one (at least 1), or drop (n - 1, even 0)",
    ] = "all"
    cells: Annotated[int, "cells along one side of the image"] = 16
    slots: Annotated[int, "locations a list can hold"] = 12
    fill: Annotated[Literal["anywhere", "first"], "slots a list uses: random ones, or from the first on"] = (
        "first"
    )


@dataclass(frozen=True)
class DataConfig:
    """The scenes and how they are drawn."""

    objects: Annotated[tuple[int, int], "fewest and most objects in a training scene, such as 1-3"] = (1, 3)
    size: Annotated[int, "side of the image in pixels"] = 64
    quality: Annotated[Literal["fast", "true"], "quality of the renderer for training images"] = "fast"
    seed: Annotated[int, "which endless stream of scenes"] = 0


@dataclass(frozen=True)
class DenoiserConfig:
    """The network."""

    kind: Annotated[DenoiserKind, "global EDM2, EDM2 on patches, or a local convolutional network"] = "edm2"
    width: Annotated[int, "channels of the first level"] = 48
    mult: Annotated[tuple[int, ...], "width of each level, in multiples of the first, such as 1,2,2"] = (
        1,
        2,
        2,
    )
    blocks: Annotated[int, "residual blocks per level"] = 2
    attention: Annotated[tuple[int, ...], "resolutions (of the whole image) with attention, such as 16,8"] = (
        16,
    )
    head_width: Annotated[int, "channels per attention head"] = 48
    emb_mult: Annotated[
        int, "width of what noise level and condition are told through, in multiples; 0: the widest level's"
    ] = 0
    coords: Annotated[bool, "give the network the x and y of every pixel"] = True
    tile: Annotated[int, "pixels along a side that a network takes as one; 1 is the paper's"] = 1
    radius: Annotated[int, "cells a local network sees on each side of a cell"] = 2
    cond_radius: Annotated[int, "cells on each side whose conditions a patch is told, if not all it sees"] = (
        16
    )
    depth: Annotated[int, "residual blocks of the local convolutional network"] = 6
    local_width: Annotated[int, "its channels, on tiles of the image"] = 96
    dropout: Annotated[float, "share of activations dropped in training"] = 0.0


@dataclass(frozen=True)
class TrainingConfig:
    """Optimizer, noise levels, averages, and how the work is done."""

    total: Annotated[int, "images to train on, such as 4Mi", COUNT] = 4 * Mi
    batch: Annotated[int, "images per step, over all processes", COUNT] = 512
    patches: Annotated[int, "patches of each image that a network which sees no more learns from"] = 2
    loss_radius: Annotated[
        int, "cells around the center of a patch that its loss counts, if not all of it"
    ] = 16
    micro_batch: Annotated[int, "images per forward pass and process; 0 takes the whole batch at once"] = 0
    lr: Annotated[float, "largest learning rate"] = 0.01
    lr_decay_start: Annotated[
        float, "steps after which the rate falls as one over the square root; 0: it does not"
    ] = 2000
    lr_warmup: Annotated[int, "images over which the rate rises from 0", COUNT] = 100_000
    cooldown: Annotated[int, "images at the end over which the rate falls to 0", COUNT] = 0
    beta1: Annotated[float, "Adam's memory of the gradient"] = 0.9
    beta2: Annotated[float, "Adam's memory of the squared gradient"] = 0.99
    p_mean: Annotated[float, "mean of ln sigma in training"] = -0.8
    p_std: Annotated[float, "spread of ln sigma in training"] = 1.6
    ema: Annotated[tuple[float, ...], "relative lengths of the running averages kept, such as 0.05,0.10"] = (
        0.05,
        0.10,
    )
    snapshot: Annotated[int, "images between snapshots of the averages, with a sample sheet", COUNT] = Mi // 2
    checkpoint: Annotated[int, "images between full states to resume from", COUNT] = Mi // 2
    seed: Annotated[int, "chance of weights, noise and labels"] = 0
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "of activations; auto is bfloat16 on CUDA, else float32",
    ] = "auto"
    strategy: Annotated[
        Literal["auto", Strategy],
        "how a step is executed: plain PyTorch, torch.compile, or compiled and replayed as a CUDA graph; "
        "auto is graph on CUDA where possible, else compiled; eager elsewhere",
    ] = "auto"
    weight_norm: Annotated[
        Literal["after-update", "in-forward", "projected"], "who keeps the filters at unit size"
    ] = "projected"
    render_batch: Annotated[int, "images rendered together, ahead of training", COUNT] = 4096


@dataclass(frozen=True)
class Settings:
    """Everything a run depends on. Its plain form is the run folder's config.json."""

    experiment: str = "exp1"
    preset: str = "small"
    conditioner: ConditionerConfig = field(default_factory=ConditionerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    denoiser: DenoiserConfig = field(default_factory=DenoiserConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def run_name(self) -> str:
        low, high = self.data.objects
        span = f"M{high}" if low == 1 else f"N{low}-{high}"
        return f"{self.experiment}-{span}-{self.preset}"

    def plain(self) -> dict[str, Any]:
        """As JSON holds it: tuples become lists."""
        return listed(dataclasses.asdict(self))


class Experiment(dict):
    """A row of the table: changes to the settings that make this experiment, and what it is about."""

    def __init__(self, about: str, **changes: dict[str, Any]):
        super().__init__(changes)
        self.about = about


# Numbering of the later revision; the earlier one calls exp2L "Experiment 3".
EXPERIMENTS: dict[str, Experiment] = {
    "exp1": Experiment(
        "all objects told on a grid",
        conditioner={"kind": "grid", "label": "all"},
        denoiser={"kind": "edm2"},
    ),
    "exp2": Experiment(
        "one object, at random, told on a grid",
        conditioner={"kind": "grid", "label": "one"},
        denoiser={"kind": "edm2"},
    ),
    "exp2-random": Experiment(
        "a random number of objects told on a grid",
        conditioner={"kind": "grid", "label": "random"},
        denoiser={"kind": "edm2"},
    ),
    "exp2-drop": Experiment(
        "all objects but one told on a grid",
        conditioner={"kind": "grid", "label": "drop"},
        denoiser={"kind": "edm2"},
    ),
    "exp3": Experiment(
        "all objects told as a list of locations",
        conditioner={"kind": "list", "label": "all"},
        denoiser={"kind": "edm2"},
    ),
    "exp2L": Experiment(
        "exp2 made local: patches told only what lies in them",
        conditioner={"kind": "grid", "label": "one"},
        denoiser={"kind": "patchwise"},
    ),
    "exp3L": Experiment(
        "exp3 made local",
        conditioner={"kind": "list", "label": "all"},
        denoiser={"kind": "patchwise"},
    ),
    # Ours: local at one pass per image. Its reach of 3 cells, counted from the pixel, is that of a patch of
    # 2 cells to each side, counted from the cell.
    "exp1C": Experiment(
        "exp1 with a local convolutional network",
        conditioner={"kind": "grid", "label": "all"},
        denoiser={"kind": "localconv", "radius": 3},
    ),
    "exp2C": Experiment(
        "exp2 with a local convolutional network",
        conditioner={"kind": "grid", "label": "one"},
        denoiser={"kind": "localconv", "radius": 3},
    ),
    "color": Experiment(
        "how many objects of each color",
        conditioner={"kind": "color", "label": "all"},
        denoiser={"kind": "edm2"},
    ),
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {  # two minutes or so on two cores: enough for exp1C and exp2L, not for the global networks to position
        "data": {"size": 32},
        "denoiser": {
            "width": 24,
            "mult": (1, 2),
            "blocks": 1,
            "attention": (),
            "head_width": 24,
            "coords": True,
            "tile": 2,
        },
        "training": {
            "total": 12 * Ki,
            "batch": 16,
            "lr": 0.02,
            "lr_decay_start": 500,
            "lr_warmup": 512,
            "snapshot": 4 * Ki,
            "checkpoint": 2 * Ki,
            "render_batch": 256,
        },
    },
    "small": {  # 2.8M weights; docs/speed-log.md has what was tried on the way
        "data": {"size": 64, "quality": "fast"},
        "denoiser": {
            "width": 16,  # 64, 96 and 64 channels
            "mult": (4, 6, 4),
            "blocks": 1,
            "attention": (16,),
            "head_width": 32,
            "emb_mult": 32,  # fewer numbers than the grid has cells blur neighboring cells into one
            "coords": True,
            "tile": 2,
        },
        "training": {
            "total": 5 * Mi // 4,
            "batch": 256,
            "patches": 8,
            "lr": 0.02,
            "lr_decay_start": 0,
            "lr_warmup": 50_000,
            "p_mean": 0.4,
            "ema": (0.10, 0.20),  # instead of a falling rate
            "snapshot": Mi // 4,
            "checkpoint": Mi // 2,
            "render_batch": 8192,
        },
    },
    "paper": {  # 124,330,021 weights with the 256 numbers of the grid
        "data": {"size": 128, "quality": "true"},
        "denoiser": {
            "width": 128,
            "mult": (1, 2, 3, 4),
            "blocks": 3,
            "attention": (32, 16),
            "head_width": 64,
            "local_width": 512,
            "coords": False,
        },
        "training": {
            "total": 128 * Mi,
            "batch": 2048,
            "micro_batch": 256,
            "lr": 0.012,
            "lr_decay_start": 35_000,
            "lr_warmup": 10_000_000,
            "snapshot": 8 * Mi,
            "checkpoint": 4 * Mi,
            "render_batch": 4096,
        },
    },
}


# What an experiment needs beyond its size; docs/study.md has what it does without.
NEEDS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    # Counting the loss in the center of a patch alone, it learns to let a condition further off be.
    ("small", "exp2L"): {"training": {"total": 4 * Mi, "loss_radius": 0}},
    # Nobody tells which object has which color: objects must agree on it across the image.
    ("small", "color"): {
        "denoiser": {"mult": (4, 4, 4), "blocks": 2, "attention": (32, 16), "emb_mult": 16},
        "training": {"total": 6 * Mi, "cooldown": 2 * Mi},
    },
}


def settings_for(
    experiment: str, preset: str = "small", changes: Mapping[str, Any] | None = None, needs: bool = True
) -> Settings:
    """The settings of a row at a size, with `changes` such as {"denoiser": {"width": 96}} on top."""
    row = look_up(experiment, EXPERIMENTS, "experiment")
    size = look_up(preset, PRESETS, "preset")
    own = NEEDS.get((preset, experiment), {}) if needs else {}
    settings = Settings(experiment=experiment, preset=preset)
    for layer in (size, row, own, changes or {}):
        settings = changed(settings, layer)
    return checked(settings)


def current_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json, or a group of it, of any version under the names and values of this one."""
    found = {}
    for key, value in config.items():
        name = SETTING_KEYS.get(key, key)
        if isinstance(value, Mapping):
            found[name] = current_names(value)
        else:
            found[name] = SETTING_VALUES[name].get(value, value) if name in SETTING_VALUES else value
    return found


def settings_from(config: Mapping[str, Any]) -> Settings:
    """Settings as read back from config.json."""
    config, known = current_names(config), {"experiment", "preset"}
    named = {name: config[name] for name in known & config.keys()}
    groups = {name: values for name, values in config.items() if name not in known}
    return checked(changed(Settings(**named), groups))


def changed(settings: Settings, changes: Mapping[str, Mapping[str, Any]]) -> Settings:
    """A copy with some settings of some groups replaced."""
    groups = {}
    for name, values in changes.items():
        look_up(name, group_names(), "group of settings")
        group = getattr(settings, name)
        for key in values:
            look_up(key, {f.name: f for f in dataclasses.fields(group)}, f"{name} setting")
        groups[name] = dataclasses.replace(group, **{key: tupled(value) for key, value in values.items()})
    return dataclasses.replace(settings, **groups)


NOT_BELOW = [  # group, setting, the least that makes sense
    ("training", "micro_batch", 0),
    ("training", "lr_decay_start", 0),
    ("training", "lr_warmup", 0),
    ("training", "cooldown", 0),
    ("training", "render_batch", 1),
    ("denoiser", "emb_mult", 0),
    ("denoiser", "width", 1),
    ("denoiser", "blocks", 1),
    ("denoiser", "head_width", 1),
    ("denoiser", "depth", 1),
    ("denoiser", "local_width", 1),
    ("conditioner", "cells", 1),
    ("conditioner", "slots", 1),
]


def checked(settings: Settings) -> Settings:
    """The same settings, if they make sense together."""
    data, training, denoiser, conditioner = (
        settings.data,
        settings.training,
        settings.denoiser,
        settings.conditioner,
    )
    low, high = data.objects
    if not 0 <= low <= high:
        raise UserError(f"Training scenes cannot hold from {low} to {high} objects.")
    if data.size < 8:
        raise UserError(f"An image needs at least 8 pixels along a side, not {data.size}.")
    if min(training.batch, training.total, training.snapshot, training.checkpoint) < 1:
        raise UserError("Batch, total, snapshot and checkpoint must each be at least one image.")
    if training.patches < 2 or training.patches % 2:
        raise UserError(
            "Patches come in pairs, one with a condition in it and one without: --training.patches 2."
        )
    if training.loss_radius < 0:
        raise UserError("The loss counts at least the center cell of a patch: --training.loss-radius 0.")
    for group, name, least in NOT_BELOW:
        if not getattr(getattr(settings, group), name) >= least:
            raise UserError(f"--{group}.{name.replace('_', '-')} must be at least {least}.")
    if not (training.lr > 0 and training.p_std > 0):
        raise UserError("The learning rate and the spread of noise levels must be positive.")
    if not all(0 <= beta < 1 for beta in (training.beta1, training.beta2)):
        raise UserError("Adam's memories lie between 0 and 1 (--training.beta1, --training.beta2).")
    if conditioner.kind == "list" and conditioner.slots < high:
        raise UserError(
            f"A list of {conditioner.slots} locations cannot tell of {high} objects (--conditioner.slots)."
        )
    if denoiser.kind != "edm2" and conditioner.kind not in ("grid", "list"):
        raise UserError(
            f"A local network needs conditions that lie somewhere, and `{conditioner.kind}` ones do not."
        )
    if denoiser.kind == "patchwise" and data.size % conditioner.cells:
        raise UserError(f"{conditioner.cells} cells do not divide an image of {data.size} pixels.")
    if not training.ema or not all(0 < std < 0.288 for std in training.ema):
        raise UserError("At least one running average is kept, each of a length between 0 and 0.288.")
    if len(set(training.ema)) < len(training.ema):
        raise UserError("Of running averages of the same length one is enough.")
    if not 0 <= denoiser.dropout < 1:
        raise UserError(f"A share of activations to drop lies between 0 and 1, not at {denoiser.dropout}.")
    return settings


UNET = ("width", "mult", "blocks", "attention", "head_width", "emb_mult", "dropout", "tile")
ONLY_OF: list[tuple[str, tuple[str, ...], str, tuple[str, ...]]] = [
    # group, settings, whose kind decides, and the kinds that have them
    ("denoiser", UNET, "denoiser", ("edm2", "patchwise")),
    ("denoiser", ("depth", "local_width"), "denoiser", ("localconv",)),
    ("denoiser", ("radius",), "denoiser", ("patchwise", "localconv")),
    ("denoiser", ("cond_radius",), "denoiser", ("patchwise",)),
    ("training", ("patches", "loss_radius"), "denoiser", ("patchwise",)),
    ("conditioner", ("slots", "fill"), "conditioner", ("list",)),
    ("conditioner", ("cells",), "conditioner", ("grid", "list")),
    ("conditioner", ("label",), "conditioner", ("grid", "list", "color")),
]


def unused_settings(changes: Mapping[str, Mapping[str, Any]], runs: Sequence[Settings]) -> list[str]:
    """A sentence about each change that none of these runs notices."""
    sentences = []
    for group, names, decider, having in ONLY_OF:
        kinds = sorted({getattr(run, decider).kind for run in runs})
        if set(kinds) & set(having):
            continue
        what = "networks" if decider == "denoiser" else "conditions"
        why = f"it is for {what} of kind {' and '.join(having)}, not {' and '.join(kinds)}"
        flags = [f"--{group}.{name.replace('_', '-')}" for name in names if name in changes.get(group, {})]
        sentences += [f"{flag} changes nothing here: {why}." for flag in flags]
    return sentences


def first_difference(old: Settings, new: Settings, ignoring: set[str]) -> tuple[str, Any, Any] | None:
    """The first setting, as `group.name`, in which two runs differ, with both values."""
    if old.experiment != new.experiment:
        return "experiment", old.experiment, new.experiment
    for group in group_names():
        before, after = getattr(old, group), getattr(new, group)
        for f in dataclasses.fields(before):
            name, was, now = f"{group}.{f.name}", getattr(before, f.name), getattr(after, f.name)
            if was != now and name not in ignoring:
                return name, was, now
    return None


def group_names() -> dict[str, type]:
    """The groups of settings and their classes."""
    hints = get_type_hints(Settings)
    return {
        name: kind
        for name, kind in hints.items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }


def look_up(name: str, table: Mapping[str, Any], what: str) -> Any:
    """The entry called `name`, or one sentence that suggests the nearest."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.4)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(table)}."
    raise UserError(f"There is no {what} `{name}`; {hint}")


def parse_count(text: str | int) -> int:
    """4Mi, 500k or 1048576 as a number of images."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?", str(text).strip().lower())
    if not match:
        raise UserError(f"`{text}` is no number of images; write for example 65536, 500k or 4Mi.")
    return round(float(match[1]) * UNITS[match[2] or ""])


def format_count(count: int) -> str:
    """1048576 as 1Mi, 1500 as 1500."""
    for unit, size in (("Gi", 2**30), ("Mi", Mi), ("Ki", Ki)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def parse_range(text: str, what: str = "objects") -> tuple[int, int]:
    """`1-3` or `3` as (fewest, most)."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:[-:,]\s*(\d+)\s*)?", text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UserError(f"`{text}` is no range of {what}; write for example 1-3.")
    return int(match[1]), int(match[2] or match[1])


def tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def listed(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, tuple | list) else value


def plain_type(hint: Any) -> Any:
    """The type below Annotated and Optional."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    return hint
