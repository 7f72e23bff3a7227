"""The experiments of the study and the sizes they can be run at: one table each, to be compared by eye.

Every network and every conditioner has a class of settings of its own, so that a run has no setting that its network does not have.
Types that are written in a special way on the command line (4Mi, 1-3, 1,2,2, on) say so in their annotation; settings marked
`Fixed` are no options of their own: `--set training.beta1=0.95` or a config file changes them.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from tessera.errors import UserError, suggestion
from tessera.files import check_types
from tessera.records import SETTING_KEYS, SETTING_VALUES
from tessera.registry import CONDITIONERS

Ki, Mi = 2**10, 2**20
NUMBERS = {int: "a whole number", float: "a number"}  # in words
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": Ki, "mi": Mi, "gi": 2**30}

Label = Literal["all", "one", "random", "all-but-one", "drop"]
Strategy = Literal["eager", "compiled", "graph"]
_Changes = dict[str, dict[str, Any]]  # group -> setting -> value


# -- how settings are written -----------------------------------------------------------------------------


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


def parse_numbers(
    text: str, kind: Callable[[str], Any] = float, what: str = "numbers", example: str = "1,2,3"
) -> tuple:
    """`1,2,3` as a tuple; an empty text or `none` as no numbers."""
    words = [] if text.strip().lower() in ("", "none") else text.replace(",", " ").split()
    try:
        return tuple(kind(word) for word in words)
    except ValueError:
        raise UserError(f"`{text}` is no list of {what}; write for example {example}.") from None


def _format_numbers(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers) or "none"


def _written(metavar: str, parse: Callable[[str], Any], form: Callable[[Any], str], kind: type) -> Any:
    """The command line takes one word for such a setting: `parse` reads it, `form` shows the default."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [form(value)],
    )


def _parse_switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise UserError(f"A switch is on or off, not `{text}`.")
    return text == "on"


_Count = Annotated[int, _written("COUNT", parse_count, format_count, int)]
Range = Annotated[tuple[int, int], _written("RANGE", parse_range, lambda ends: f"{ends[0]}-{ends[1]}", tuple)]
Integers = Annotated[tuple[int, ...], _written("LIST", lambda text: parse_numbers(text, int), _format_numbers, tuple)]
Numbers = Annotated[tuple[float, ...], _written("LIST", parse_numbers, _format_numbers, tuple)]
_Switch = Annotated[
    bool, tyro.conf.FlagConversionOff, _written("{on,off}", _parse_switch, lambda on: "on" if on else "off", bool)
]


# -- conditioners -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LabelsConfig:
    """What all conditioners of labeled objects have."""

    kind: str = ""
    """Conditioner: grid, list, color, nothing or a registered name."""
    #: Objects that are labeled: all, one, a random number, all-but-one (at least 1), or drop (n - 1, even 0).
    labels: Label = "all"


@dataclass(frozen=True)
class _GridConfig(_LabelsConfig):
    """Counts of labeled objects on a grid."""

    kind: Literal["grid"] = "grid"
    #: Cells along one side of the image.
    cells: int = 16


@dataclass(frozen=True)
class _ListConfig(_LabelsConfig):
    """A list of the locations of labeled objects."""

    kind: Literal["list"] = "list"
    #: Cells along one side of the image, by which distances are counted.
    cells: int = 16
    #: Locations a list can hold.
    slots: int = 12
    #: Slots a list uses: random ones, or from the first on.
    fill: tyro.conf.Fixed[Literal["anywhere", "first"]] = "first"


@dataclass(frozen=True)
class _ColorConfig(_LabelsConfig):
    """Counts of labeled objects of each color."""

    kind: Literal["color"] = "color"


@dataclass(frozen=True)
class _UnconditionalConfig:
    """No condition."""

    kind: Literal["nothing"] = "nothing"
    """Conditioner: grid, list, color, nothing or a registered name."""

    @property
    def labels(self) -> Label:
        return "all"


_ConditionerConfig = _GridConfig | _ListConfig | _ColorConfig | _UnconditionalConfig


# -- data -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DataConfig:
    """Training scenes and how they are rendered."""

    #: Fewest and most objects in a training scene.
    objects: Annotated[Range, tyro.conf.arg(aliases=("--objects",))] = (1, 3)
    #: Side of the image in pixels.
    size: int = 64
    #: Quality of the renderer for training images.
    quality: Literal["fast", "true"] = "fast"
    #: Stream of scenes.
    seed: int = 0


# -- networks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EDM2Config:
    """A global EDM2 U-Net."""

    kind: Literal["edm2"] = "edm2"
    """Network: edm2, patchwise (EDM2 on patches) or localconv (local convolutional)."""
    #: Channels of the first level.
    width: int = 48
    #: Width of each level, in multiples of the first.
    mult: Integers = (1, 2, 2)
    #: Residual blocks per level.
    blocks: int = 2
    #: Resolutions (of the whole image) with attention.
    attention: Integers = (16,)
    #: Channels per attention head.
    head_width: int = 48
    #: Width of the embedding of noise level and condition, in multiples of the first level; 0: the widest level's.
    emb_mult: tyro.conf.Fixed[int] = 0
    #: Give the network the x and y of every pixel.
    coords: _Switch = True
    #: Pixels along a side that a network takes as one; 1 in the paper.
    tile: int = 1
    #: Share of activations dropped in training.
    dropout: tyro.conf.Fixed[float] = 0.0


@dataclass(frozen=True)
class PatchwiseConfig(EDM2Config):
    """EDM2 on patches around every cell."""

    kind: Literal["patchwise"] = "patchwise"  # type: ignore[assignment]
    #: Cells of the image on each side of a cell that belong to its patch.
    radius: int = 2
    #: Cells on each side whose conditions a patch takes, at most all of the patch.
    cond_radius: int = 16


@dataclass(frozen=True)
class LocalConvConfig:
    """A local convolutional network: one pass per image."""

    kind: Literal["localconv"] = "localconv"
    """Network: edm2, patchwise (EDM2 on patches) or localconv (local convolutional)."""
    #: Cells on each side of a pixel in its receptive field.
    radius: int = 2
    #: Residual blocks.
    depth: int = 6
    #: Channels, on tiles of the image.
    local_width: int = 96
    #: Give the network the x and y of every pixel.
    coords: _Switch = True


_DenoiserConfig = EDM2Config | PatchwiseConfig | LocalConvConfig


# -- training ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingConfig:
    """Optimizer, noise levels, averages, and how a step is executed."""

    #: Images to train on.
    total: Annotated[_Count, tyro.conf.arg(aliases=("--total",))] = 4 * Mi
    #: Images per step, over all processes.
    batch: _Count = 512
    #: Images per forward pass and process; 0 takes the whole batch at once.
    micro_batch: tyro.conf.Fixed[int] = 0
    #: Largest learning rate.
    lr: float = 0.01
    #: Steps after which the rate falls as one over the square root; 0: it does not.
    lr_decay_start: float = 2000
    #: Images over which the rate rises from 0.
    lr_warmup: _Count = 100_000
    #: Images at the end over which the rate falls to 0.
    cooldown: _Count = 0
    #: Adam's decay of the mean gradient.
    beta1: tyro.conf.Fixed[float] = 0.9
    #: Adam's decay of the mean squared gradient.
    beta2: tyro.conf.Fixed[float] = 0.99
    #: Mean of ln sigma in training.
    p_mean: tyro.conf.Fixed[float] = -0.8
    #: Standard deviation of ln sigma in training.
    p_std: tyro.conf.Fixed[float] = 1.6
    #: Relative lengths (sigma_rel) of the running averages.
    ema: Numbers = (0.05, 0.10)
    #: Images between snapshots of the averages, with an image grid of samples.
    snapshot: _Count = Mi // 2
    #: Images between full states to resume from.
    checkpoint: _Count = Mi // 2
    #: Random seed of weights, noise and labels.
    seed: int = 0
    #: Of activations; auto is bfloat16 on CUDA, else float32.
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    #: Plain PyTorch, torch.compile, or compiled and replayed as a CUDA graph; auto takes the fastest that is possible
    #: on CUDA, and eager elsewhere.
    strategy: Literal["auto", Strategy] = "auto"
    #: When the filters are normalized.
    weight_norm: tyro.conf.Fixed[Literal["after-update", "in-forward", "projected"]] = "projected"
    #: Images rendered together, ahead of training.
    render_batch: _Count = 4096


@dataclass(frozen=True)
class PatchTrainingConfig(TrainingConfig):
    """Optimizer, noise levels, averages, and how a step is executed; patches of a patchwise network."""

    #: Patches of each image that are trained on.
    patches: int = 2
    #: Cells around the center of a patch that the loss counts, at most all of the patch.
    loss_radius: int = 16


@dataclass(frozen=True)
class Settings:
    """Everything a run depends on. Its plain form is the run folder's config.json."""

    #: One of exp1, exp2, exp2-random, exp2-drop, exp3, exp2L, exp3L, exp1C, exp2C, color.
    experiment: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="EXPERIMENT")] = "exp1"
    #: tiny (32 px, minutes on a CPU), small (64 px, minutes on a GPU), paper (128 px).
    preset: str = "small"
    conditioner: _ConditionerConfig = field(default_factory=_GridConfig)
    data: _DataConfig = field(default_factory=_DataConfig)
    denoiser: _DenoiserConfig = field(default_factory=EDM2Config)
    training: TrainingConfig | PatchTrainingConfig = field(default_factory=TrainingConfig)

    @property
    def run_name(self) -> str:
        low, high = self.data.objects
        span = f"M{high}" if low == 1 else f"N{low}-{high}"
        return f"{self.experiment}-{span}-{self.preset}"

    def plain(self) -> dict[str, Any]:
        """As JSON holds it: tuples become lists."""
        return listed(dataclasses.asdict(self))


GROUPS: dict[str, tuple[type, ...]] = {
    "conditioner": get_args(_ConditionerConfig),
    "data": (_DataConfig,),
    "denoiser": get_args(_DenoiserConfig),
    "training": (TrainingConfig, PatchTrainingConfig),
}


class _Experiment(NamedTuple):
    """A row of the table: what makes this experiment, and what it is about."""

    conditioner: str
    labels: Label
    network: str
    about: str
    radius: int | None = None

    @property
    def changes(self) -> _Changes:
        """The settings that make this experiment."""
        denoiser = {"kind": self.network} | ({} if self.radius is None else {"radius": self.radius})
        return {"conditioner": {"kind": self.conditioner, "labels": self.labels}, "denoiser": denoiser}


# Numbering of the later revision; the earlier one calls exp2L "Experiment 3".
EXPERIMENTS = {
    "exp1": _Experiment("grid", "all", "edm2", "all objects labeled on a grid"),
    "exp2": _Experiment("grid", "one", "edm2", "one object, at random, labeled on a grid"),
    "exp2-random": _Experiment("grid", "random", "edm2", "a random number of objects labeled on a grid"),
    "exp2-drop": _Experiment("grid", "drop", "edm2", "all objects but one labeled on a grid"),
    "exp3": _Experiment("list", "all", "edm2", "all objects labeled, as a list of locations"),
    "exp2L": _Experiment("grid", "one", "patchwise", "exp2 made local: patches conditioned only on what lies in them"),
    "exp3L": _Experiment("list", "all", "patchwise", "exp3 made local"),
    # Ours: local at one pass per image. Its reach of 3 cells, counted from the pixel, is that of a patch of
    # 2 cells to each side, counted from the cell.
    "exp1C": _Experiment("grid", "all", "localconv", "exp1 with a local convolutional network", radius=3),
    "exp2C": _Experiment("grid", "one", "localconv", "exp2 with a local convolutional network", radius=3),
    "color": _Experiment("color", "all", "edm2", "how many objects of each color"),
}

# tiny: two minutes or so on two cores, enough for exp1C and exp2L, not for the global networks to position.
# small: 2.8M weights; docs/speed-log.md has what was tried on the way. Channels of its levels: 64, 96 and 64.
# paper: 124,330,021 weights with the 256 numbers of the grid.
_SIZES = ("tiny", "small", "paper")
# fmt: off
_SETTINGS_BY_SIZE: dict[str, tuple] = {  # None: the default
    "data.size": (32, 64, 128),
    "data.quality": (None, "fast", "true"),
    "denoiser.width": (24, 16, 128),
    "denoiser.mult": ((1, 2), (4, 6, 4), (1, 2, 3, 4)),
    "denoiser.blocks": (1, 1, 3),
    "denoiser.attention": ((), (16,), (32, 16)),
    "denoiser.head_width": (24, 32, 64),
    "denoiser.emb_mult": (None, 32, None),  # fewer numbers than the grid has cells blur neighboring cells into one
    "denoiser.local_width": (None, None, 512),
    "denoiser.coords": (True, True, False),
    "denoiser.tile": (2, 2, None),
    "training.total": (12 * Ki, 5 * Mi // 4, 128 * Mi),
    "training.batch": (16, 256, 2048),
    "training.micro_batch": (None, None, 256),
    "training.patches": (None, 8, None),
    "training.lr": (0.02, 0.02, 0.012),
    "training.lr_decay_start": (500, 0, 35_000),
    "training.lr_warmup": (512, 50_000, 10_000_000),
    "training.p_mean": (None, 0.4, None),
    "training.ema": (None, (0.10, 0.20), None),  # long ones instead of a falling rate
    "training.snapshot": (4 * Ki, Mi // 4, 8 * Mi),
    "training.checkpoint": (2 * Ki, Mi // 2, 4 * Mi),
    "training.render_batch": (256, 8192, 4096),
}
# fmt: on


def _column(number: int) -> _Changes:
    groups: _Changes = {"data": {}, "denoiser": {}, "training": {}}
    for name, values in _SETTINGS_BY_SIZE.items():
        group, _, setting = name.partition(".")
        if values[number] is not None:
            groups[group][setting] = values[number]
    return groups


PRESETS = {size: _column(number) for number, size in enumerate(_SIZES)}

# What an experiment needs beyond its size; docs/study.md has what it does without.
_NEEDS: dict[tuple[str, str], _Changes] = {
    # Counting the loss in the center of a patch alone, it learns to let a condition further off be.
    ("small", "exp2L"): {"training": {"total": 4 * Mi, "loss_radius": 0}},
    # No condition assigns a color to an object: objects must agree on it across the image.
    ("small", "color"): {
        "denoiser": {"mult": (4, 4, 4), "blocks": 2, "attention": (32, 16), "emb_mult": 16},
        "training": {"total": 6 * Mi, "cooldown": 2 * Mi},
    },
}


# -- making settings --------------------------------------------------------------------------------------


def settings_for(
    experiment: str, preset: str = "small", changes: Mapping[str, Any] | None = None, needs: bool = True
) -> Settings:
    """The settings of an experiment at a size, with `changes` such as {"denoiser": {"width": 96}} on top.

    A change of `kind` chooses another network or conditioner, which then takes what it can of the preset.
    """
    row = look_up(experiment, EXPERIMENTS, "experiment").changes
    size = look_up(preset, PRESETS, "preset")
    own = _NEEDS.get((preset, experiment), {}) if needs else {}
    changes = changes or {}
    settings = Settings(experiment, preset, **_empty_groups(row, own, changes))
    for layer in (size, row, own):
        settings = changed(settings, fitting(settings, layer))
    return checked(changed(settings, changes))


def _empty_groups(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The groups of settings, with the network and the conditioner that the last layer to name a kind chooses."""
    groups = {}
    for name in ("conditioner", "denoiser"):
        kinds = [layer[name]["kind"] for layer in layers if "kind" in layer.get(name, {})]
        groups[name] = (_class_of(name, kinds[-1]) if kinds else GROUPS[name][0])()
    patches = isinstance(groups["denoiser"], PatchwiseConfig)
    return {**groups, "training": PatchTrainingConfig() if patches else TrainingConfig()}


def _class_of(group: str, kind: str) -> type:
    """The class of settings of a kind of network or conditioner."""
    classes: dict[str, type] = {cls.kind: cls for cls in GROUPS[group]}  # type: ignore[attr-defined]
    if group == "denoiser" or kind in classes:
        return look_up(kind, classes, "network" if group == "denoiser" else group)
    look_up(kind, dict.fromkeys([*classes, *CONDITIONERS]), group)
    return _registered_config(kind, CONDITIONERS[kind])


@functools.cache
def _registered_config(kind: str, conditioner: Callable[..., Any]) -> type:
    """The settings of a registered conditioner: the arguments of its class, with their defaults."""
    entries: list[Any] = [("kind", str, field(default=kind))]
    for name, argument in inspect.signature(conditioner, eval_str=True).parameters.items():
        entries.append(("labels" if name == "label" else name, argument.annotation, field(default=argument.default)))
    return dataclasses.make_dataclass(f"_{conditioner.__name__}Config", entries, frozen=True)


def fitting(settings: Settings, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of the changes that the networks and conditioners of these settings have."""
    kept: dict[str, dict[str, Any]] = {}
    for group, values in changes.items():
        names = {f.name for f in dataclasses.fields(getattr(settings, group))} - {"kind"}
        kept[group] = {name: value for name, value in values.items() if name in names}
    return kept


def settings_from(config: Mapping[str, Any]) -> Settings:
    """Settings as read back from config.json, of this version or an earlier one.

    Earlier ones held the settings of all networks and conditioners in one flat group; what this run's do not have is left out.
    """
    config = current_settings(config)
    named = {name: config[name] for name in ("experiment", "preset") if name in config}
    groups = {name: values for name, values in config.items() if name not in named}
    return checked(changed(Settings(**named, **_empty_groups(groups)), groups))


def current_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in a file of any version, perhaps not all, as this version would write them."""
    config = current_names(config)
    groups = {name: dict(values) for name, values in config.items() if isinstance(values, Mapping)}
    if "label" in groups.get("conditioner", {}):  # which conditioners themselves, in model folders, still call so
        groups["conditioner"]["labels"] = groups["conditioner"].pop("label")
    empty = Settings(**_empty_groups(groups))
    for name, values in groups.items():
        own = {f.name for f in dataclasses.fields(getattr(empty, name))} if name in GROUPS else set(values)
        known = _all_settings(name) if name in GROUPS else {}
        config[name] = {key: value for key, value in values.items() if key in own or key not in known}
    return config


def _all_settings(group: str) -> dict[str, Any]:
    """The settings of a group, of any kind: name -> type."""
    found: dict[str, Any] = {}
    for cls in look_up(group, GROUPS, "group of settings"):
        found |= get_type_hints(cls, include_extras=True)
    return found


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


def changed(settings: Settings, changes: Mapping[str, Mapping[str, Any]]) -> Settings:
    """A copy with some settings of some groups replaced."""
    groups = {}
    for name, values in changes.items():
        look_up(name, GROUPS, "group of settings")
        if not isinstance(values, Mapping):
            raise UserError(f"The settings of {name} are an object, not {values!r}.")
        group = getattr(settings, name)
        for key in values:
            _check_setting(group, name, key)
        check_types(type(group), values, f"The settings of {name}")
        # JSON has lists where settings have tuples.
        tupled = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        groups[name] = dataclasses.replace(group, **tupled)
    return dataclasses.replace(settings, **groups)


def _check_setting(group: Any, name: str, key: str) -> None:
    """One sentence about a setting that is misspelled, or that only other networks or conditioners have."""
    own = {f.name: f for f in dataclasses.fields(group)}
    if key not in own and key in _all_settings(name):
        kind = getattr(group, "kind", "")
        what = f"{name} of kind {kind}" if kind else "training of this network"
        raise UserError(f"A {what} has no setting `{key}`; it has {', '.join(own)}.")
    look_up(key, own, f"{name} setting")


def parse_changes(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`denoiser.width=96` and the like, as changes of settings."""
    changes: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        group, dot, name = path.strip().replace("-", "_").partition(".")
        if not (equals and dot):
            raise UserError(f"`{text}` is no change of a setting; write for example training.total=4Mi.")
        known = _all_settings(group)
        look_up(name, known, f"{group} setting")
        changes.setdefault(group, {})[name] = parse_value(known[name], value.strip(), path)
    return changes


def parse_value(hint: Any, text: str, name: str) -> Any:
    """The text as a value of an annotated type."""
    while get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, PrimitiveConstructorSpec):
                return note.instance_from_str([text])
        hint = base
    if get_origin(hint) in (Union, types.UnionType):
        if text.lower() == "none":
            return None
        hint = next(part for part in get_args(hint) if part is not type(None))
    if hint is bool:
        return _parse_switch(text)
    if get_origin(hint) is tuple:
        return parse_numbers(text, get_args(hint)[0])
    if name.endswith(".kind"):
        return text
    if get_origin(hint) is Literal:
        return look_up(text, {word: word for word in get_args(hint)}, f"{name} called")
    try:
        return hint(text)
    except ValueError:
        raise UserError(f"{name} takes {NUMBERS.get(hint, hint.__name__)}, not `{text}`.") from None


_MOST = 16384  # of any number that describes a network, its conditions or its images
_NOT_BELOW = {  # the least that makes sense
    "training": {"micro_batch": 0, "lr_decay_start": 0, "lr_warmup": 0, "cooldown": 0, "render_batch": 1},
    "denoiser": {"emb_mult": 0, "width": 1, "blocks": 1, "head_width": 1, "depth": 1, "local_width": 1},
    "conditioner": {"cells": 1, "slots": 1},
}


def checked(settings: Settings) -> Settings:
    """The same settings, if they make sense together."""
    for group, limits in _NOT_BELOW.items():
        for name, least in limits.items():
            if not getattr(getattr(settings, group), name, least) >= least:
                raise UserError(f"--{group}.{name.replace('_', '-')} must be at least {least}.")
    check_moderate(dataclasses.asdict(settings.conditioner), "conditioner")
    check_moderate(dataclasses.asdict(settings.denoiser), "denoiser")
    check_moderate({name: getattr(settings.data, name) for name in ("size", "objects")}, "data")
    for mistakes in (_training_mistakes(settings.training), _mistakes(settings)):
        for sentence, is_made in mistakes.items():
            if is_made:
                raise UserError(sentence)
    return settings


def check_moderate(options: Mapping[str, Any], what: str) -> None:
    """Refuse numbers of which no network, condition or image is made, before memory is reserved for them."""
    for name, value in options.items():
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int | float) and abs(number) > _MOST:
                raise UserError(f"{what}.{name} is at most {_MOST}, not {number}.")


def _mistakes(settings: Settings) -> dict[str, bool]:
    """Sentences about settings that do not fit one another, and whether they hold."""
    data, denoiser, conditioner = settings.data, settings.denoiser, settings.conditioner
    low, high = data.objects
    slots = getattr(conditioner, "slots", high)
    dropout = getattr(denoiser, "dropout", 0)
    is_local = isinstance(denoiser, PatchwiseConfig | LocalConvConfig)
    cells = getattr(conditioner, "cells", None)  # of conditions with locations
    return {
        f"Training scenes cannot hold from {low} to {high} objects.": not 0 <= low <= high,
        f"An image needs at least 8 pixels along a side, not {data.size}.": data.size < 8,
        f"A list of {slots} locations cannot hold {high} objects (--conditioner.slots).": slots < high,
        f"A share of activations to drop lies between 0 and 1, not at {dropout}.": not 0 <= dropout < 1,
        f"A local network needs conditions that lie somewhere, and `{conditioner.kind}` ones do not.": (
            is_local and cells is None
        ),
        f"{cells} cells do not divide an image of {data.size} pixels.": (
            isinstance(denoiser, PatchwiseConfig) and cells is not None and data.size % cells > 0
        ),
    }


def _training_mistakes(training: TrainingConfig) -> dict[str, bool]:
    counts = (training.batch, training.total, training.snapshot, training.checkpoint)
    patches, loss_radius = getattr(training, "patches", 2), getattr(training, "loss_radius", 0)
    betas, stds = (training.beta1, training.beta2), training.ema
    return {
        "Batch, total, snapshot and checkpoint must each be at least one image.": min(counts) < 1,
        "Patches come in pairs, one with a condition in it and one without: --training.patches 2.": (
            patches < 2 or patches % 2 > 0
        ),
        "The loss counts at least the center cell of a patch: --training.loss-radius 0.": loss_radius < 0,
        "The learning rate and the spread of noise levels must be positive.": (
            not (training.lr > 0 and training.p_std > 0)
        ),
        "Adam's decay rates lie between 0 and 1 (--set training.beta1, training.beta2).": (
            not all(0 <= beta < 1 for beta in betas)
        ),
        "At least one running average is kept, each of a length between 0 and 0.288.": (
            not stds or not all(0 < std < 0.288 for std in stds)
        ),
        "Of running averages of the same length one is enough.": len(set(stds)) < len(stds),
    }


_FREE_SETTINGS = {  # a run continues under other values of these: they do not change what is computed
    f"training.{name}" for name in ("total", "snapshot", "checkpoint", "strategy", "render_batch", "micro_batch")
}
_TOTAL = "training.total"  # free only without a cooldown, during which the learning rate depends on it


def first_difference(old: Settings, new: Settings, ignoring: set[str] | None = None) -> tuple[str, Any, Any] | None:
    """The first setting, as `group.name`, in which two runs differ, with both values; by default none that is free."""
    if ignoring is None:
        ignoring = _FREE_SETTINGS - {_TOTAL} if new.training.cooldown else _FREE_SETTINGS
    if old.experiment != new.experiment:
        return "experiment", old.experiment, new.experiment
    for group in GROUPS:
        before, after = (dataclasses.asdict(getattr(each, group)) for each in (old, new))
        for key in dict.fromkeys([*before, *after]):
            name, was, now = f"{group}.{key}", before.get(key), after.get(key)
            if was != now and name not in ignoring:
                return name, was, now
    return None


def seal_of(settings: Settings) -> str:
    """A digest of all settings that a run cannot change."""
    fixed = {}
    for group in GROUPS:
        for key, value in dataclasses.asdict(getattr(settings, group)).items():
            fixed[f"{group}.{key}"] = None if f"{group}.{key}" in _FREE_SETTINGS else value
    return hashlib.sha256(json.dumps([settings.experiment, fixed]).encode()).hexdigest()


def look_up(name: str, table: Mapping[str, Any], what: str) -> Any:
    """The entry called `name`, or one sentence that suggests the nearest."""
    if name in table:
        return table[name]
    raise UserError(f"There is no {what} `{name}`; {suggestion(name, table)}")


def listed(value: Any) -> Any:
    """Plain data as JSON holds it: tuples become lists, all the way down."""
    return json.loads(json.dumps(value))
