"""How the words of the golden files, which keep the names of the day they were made, read today.

Whoever renames a key, a vocabulary word or a sentence edits this table, never the golden files. Applied in this
order to every golden file before it is compared: RESHAPE, KEYS (and KEYS_OF), VALUES (and VALUES_OF). Sentences may be
rephrased freely, as long as they hold the same numbers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = Any

KEYS: dict[str, str] = {
    "told.weight": "cond.weight",
    "flat grey": "flat gray",
    "exam_minutes": "evaluation_minutes",
    "all_filled": "all_found",
    "any_thing": "any_object",
    "as_asked": "as_prompted",
    "centred": "centered",
    "centred_off_diagonal": "centered_off_diagonal",
    "centred_off_rms": "centered_off_rms",
    "churn": "s_churn",
    "compile": "strategy",
    "decay": "lr_decay_start",
    "dials": "config",
    "exam": "evaluation",
    "false_things": "false_objects",
    "examined": "cost",
    "findings": "detections",
    "hears": "cond_radius",
    "improper": "malformed",
    "judge": "detector",
    "judge_range": "detector_range",
    "judged": "evaluated",
    "mean_over_picture": "mean_over_image",
    "micro": "micro_batch",
    "per_picture": "per_image",
    "picture": "image",
    "pictures": "images",
    "place": "location",
    "place_precision": "location_precision",
    "place_recall": "location_recall",
    "places": "locations",
    "proper": "well_formed",
    "rampup": "lr_warmup",
    "repair": "compose",
    "require_proper": "require_well_formed",
    "seen_max": "max_train_objects",
    "snapshots_asked": "snapshots_requested",
    "stockpile": "render_batch",
    "strange": "ood",
    "strangeness": "ood_score",
    "tell": "conditioner",
    "things": "objects",
    "things_without_warning": "objects_without_warning",
    "variation_over_picture": "variation_over_image",
    "wishes": "prompts",
}
"""Old key -> new key, of every file."""

KEYS_BESIDE: dict[str, dict[str, str]] = {
    "all_filled": {"clean": "exact", "within": "allowed_extras", "near": "two_missing"},
    "places": {"told": "conditioned_on"},
    "low": {"share": "value", "mean": "value", "count": ""},
    "share": {"things": "n", "objects": "n"},
    "median": {"share": "share"},
    "networks": {"mean": "mean"},
    "scenes": {"kind": "closed_form"},
    "beside_untrained": {"places": "hooks"},
    "clears": {"places": "hooks"},
    "images": {"pictures": "samples"},
}
"""Old key that stands in the same object -> old key -> new key; these go before all others."""

KEYS_OF: dict[str, dict[str, str]] = {
    **{name: {"places": "hooks"} for name in ("features-exp1", "features-color")},
    **{name: {"verdict": "score"} for name in ("detector-samples", "detector-renders")},
    "sdxl-features": {"place": "position", "places": "positions"},
}
"""Golden file -> old key -> new key, where one key became several; these go before KEYS."""

VALUES: dict[str, str] = {}
"""Old string -> new string, for whole strings: words of the vocabulary, such as "plain"."""

VALUES_OF: dict[str, dict[str, str]] = {}
"""New key -> old string -> new string, where the same word became several; these go before VALUES."""


def with_coordinates(content: Json) -> Json:
    """Detections have x and y, and scores of images say for each asked location whether it is found."""
    if isinstance(content, list):
        return [with_coordinates(part) for part in content]
    if not isinstance(content, dict):
        return content
    content = {key: with_coordinates(part) for key, part in content.items()}
    if "confidence" in content:
        content["x"], content["y"] = content.pop("place")
    if "pairs" in content and "wanted" in content:
        filled = {pair[0] for pair in content["pairs"]}
        content["found"] = [number in filled for number in range(content["wanted"])]
    return content


def with_ends(content: Json) -> Json:
    """Intervals have a low and a high end, not a list of two."""
    if isinstance(content, list):
        return [with_ends(part) for part in content]
    if not isinstance(content, dict):
        return content
    content = {key: with_ends(part) for key, part in content.items()}
    if "ci95" in content:
        content["low"], content["high"] = content.pop("ci95")
    return content


UNET = {"kind", "width", "mult", "blocks", "attention", "head_width", "emb_mult", "coords", "tile", "dropout"}
OWN_SETTINGS = {  # of the networks and conditioners; one flat group held those of all of them
    "edm2": UNET,
    "patchwise": UNET | {"radius", "hears"},
    "localconv": {"kind", "radius", "depth", "local_width", "coords"},
    "grid": {"kind", "label", "cells"},
    "list": {"kind", "label", "cells", "slots", "fill"},
    "color": {"kind", "label"},
    "nothing": {"kind"},
}


def settings_of_the_kind(value: Json) -> Json:
    """Settings without those of other networks and conditioners; `label` is called `labels` among settings."""
    if isinstance(value, list):
        return [settings_of_the_kind(part) for part in value]
    if not isinstance(value, dict):
        return value
    value = {key: settings_of_the_kind(part) for key, part in value.items()}
    if not {"denoiser", "training"} <= value.keys():
        return value
    conditioner = "tell" if "tell" in value else "conditioner"
    for group in ("denoiser", conditioner):
        own = OWN_SETTINGS[value[group]["kind"]]
        value[group] = {key: part for key, part in value[group].items() if key in own}
    if "label" in value[conditioner]:
        value[conditioner]["labels"] = value[conditioner].pop("label")
    if value["denoiser"]["kind"] != "patchwise":
        patches = ("patches", "loss_radius")
        value["training"] = {key: part for key, part in value["training"].items() if key not in patches}
    return value


OF_FILES: dict[str, Callable[[Json], Json]] = {
    "dynamics-sweep": with_ends,
    **dict.fromkeys(("detector-samples", "detector-renders", "detector-colors"), with_coordinates),
}


def reshaped(name: str) -> Callable[[Json], Json]:
    """All changes of a file's shape, one after the other."""
    own = OF_FILES.get(name, lambda content: content)
    return lambda content: settings_of_the_kind(own(content))


RESHAPE: dict[str, Callable[[Json], Json]] = {
    path.stem: reshaped(path.stem) for path in Path(__file__).parent.glob("*.json")
}
"""Golden file -> function of its content, where more than names has changed, such as the shape of an interval."""

ADDED: set[str] = {
    "counts",
    "detections",
    "grafted",
    "study",
    "tessera",
    "forecasts",
    "format",
    "k50",
    "kind",
    "n",
    "mean_recall",
    "ood_score",
    "prompts",
}
"""New keys that may be there although the golden file has none like them."""

GONE: set[str] = {"format"}
"""Old keys that need not be there any more (and are not compared)."""

IGNORED: set[str] = {
    "bytes",
    "commit",
    "date",
    "device",
    "file",
    "folder",
    "numpy",
    "path",
    "provenance",
    "python",
    "tessera",
    "torch",
}
"""Keys in old or new words whose values are not kept or compared: times, places on disk, versions, hardware.

So are all that end with `seconds` or `per_second`."""
