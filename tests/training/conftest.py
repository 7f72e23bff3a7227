"""A run so small that a step takes milliseconds."""

import pytest

from tessera.config import fitting, settings_for

MINUTE = {
    "conditioner": {"cells": 4},
    "data": {"size": 8, "objects": (1, 2)},
    "denoiser": {"width": 8, "mult": (1,), "blocks": 1, "head_width": 8, "radius": 1, "tile": 1},
    "training": {
        "total": 64,
        "batch": 4,
        "lr": 0.01,
        "lr_warmup": 8,
        "lr_decay_start": 20,
        "snapshot": 32,
        "checkpoint": 8,
        "render_batch": 64,
    },
}


@pytest.fixture
def minute():
    """`minute("exp1", training={"total": 8})`: settings of a run of sixteen steps or so."""

    def make(experiment="exp1", **changes):
        kind = {"denoiser": changes["denoiser"]} if "kind" in changes.get("denoiser", {}) else {}
        usual = fitting(settings_for(experiment, "tiny", kind), MINUTE)
        groups = {name: {**usual.get(name, {}), **changes.get(name, {})} for name in usual | changes}
        return settings_for(experiment, "tiny", groups)

    return make
