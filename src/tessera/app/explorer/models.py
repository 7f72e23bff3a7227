"""The models of a session, and what the page shows of each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tessera.conditioning import ColorCounts, SpatialConditioner
from tessera.config import EXPERIMENTS
from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.models.loading import open_model, set_precision
from tessera.models.model_folder import Model, shipped
from tessera.models.run_snapshots import is_run
from tessera.rows import distinct
from tessera.sampling.compose import COMPOSE_METHODS, Composed, compose_by_name
from tessera.sampling.prompts import Prompt, own_prompts
from tessera.studies.clevr.tables import k_max_words

_ConditionKind = Literal["locations", "colors", "none"]
BATCH = 64  # images that a composed network denoises together
_FIRST = ("exp1", "exp2", "exp2L", "color")  # of the shipped models, where none is named
_NO_MODELS = (
    "No models come with this version; train one with `tessera train exp1C --preset tiny --out runs/exp1C`,"
    " then call `tessera explore runs/exp1C`."
)


@dataclass(frozen=True)
class SessionModel:
    """A model the page can sample from."""

    name: str  # as the page calls it
    source: str  # as the command line calls it
    model: Model
    device: torch.device

    @property
    def condition_kind(self) -> _ConditionKind:
        if not self.model.conditioner.dim:
            return "none"
        return "colors" if isinstance(self.model.conditioner, ColorCounts) else "locations"

    @property
    def condition_words(self) -> str:
        return "without a condition" if self.condition_kind == "none" else f"conditioned on {self.condition_kind}"

    @property
    def compose_methods(self) -> tuple[str, ...]:
        """Colors have no location, so no region can be theirs."""
        methods = {"locations": COMPOSE_METHODS, "colors": ("plain", "sum"), "none": ("plain",)}
        return methods[self.condition_kind]

    @property
    def training(self) -> TrainingRange:
        return TrainingRange.of(self.model.config.get("settings"))

    def denoiser(self, method: str, radius: int) -> Composed:
        if method not in self.compose_methods:
            raise UserError(f"{self.name} is {self.condition_words}, which cannot be composed by `{method}`.")
        return compose_by_name(self.model.denoiser, self.model.conditioner, method, radius, BATCH)

    def prompts(self, locations: Sequence[Any], colors: Sequence[str], each: int, seed: int) -> list[Prompt]:
        """The prompts of `tessera sample`, one per image."""
        wanted = {"locations": locations, "colors": colors, "none": ()}[self.condition_kind]
        return own_prompts(self.model.conditioner, tuple(wanted), each, seed)

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Gradients are computed in float32, whatever the precision of sampling."""
        network: Any = self.model.denoiser
        before = getattr(network, "precision", None)
        try:
            network.precision = "float32"
            yield
        finally:
            network.precision = before

    def card(self) -> dict[str, Any]:
        """What the page shows of the model."""
        config, conditioner = self.model.config, self.model.conditioner
        experiment = (config.get("settings") or {}).get("experiment")
        k_max = {rule: k_max_words(found) for rule, found in (config.get("results") or {}).get("k_max", {}).items()}
        return {
            "name": self.name,
            "about": EXPERIMENTS[experiment].about if experiment in EXPERIMENTS else "",
            "condition_kind": self.condition_kind,
            "size": self.model.size,
            "cells": conditioner.cells if isinstance(conditioner, SpatialConditioner) else None,
            "capacity": getattr(conditioner, "capacity", None),
            "compose_methods": list(self.compose_methods),
            "max_train_objects": self.model.max_train_objects,
            "extras_allowed": self.training.extras_allowed,
            "k_max": "{paper}, by the strict rule {strict}".format(**k_max) if k_max else None,
            "images_seen": config.get("images_seen"),
            "weights": sum(p.numel() for p in self.model.denoiser.parameters()),
        }

    def origin(self, verb: str) -> list[str]:
        """The arguments that name this very network on the command line: a run may be trained further."""
        if not is_run(Path(self.source)):
            return [self.source]
        std, images = f"{self.model.config['ema']:g}", str(self.model.config["images_seen"])
        if verb == "sample":
            return [self.source, "--std", std, "--images", images]
        return [self.source, "--set", f"std={std}", "--set", f"images={images}"]


class ModelList(dict[str, SessionModel]):
    """Models by name, loaded once."""

    def __missing__(self, name: str) -> SessionModel:
        raise UserError(f"There is no model `{name}` in this session any more; reload the page.")


def open_models(names: Sequence[str], device: torch.device) -> ModelList:
    """The models called `names`, or those that come with Tessera."""
    sources = list(dict.fromkeys(names)) or _default_names()
    titles = distinct([Path(source).name for source in sources])
    return ModelList((title, open_session_model(title, source, device)) for title, source in zip(titles, sources))


def open_session_model(
    title: str, source: str, device: torch.device, std: float | None = None, images: str | None = None
) -> SessionModel:
    model = open_model(source, std, images, device)
    set_precision(model, "auto", device)
    return SessionModel(title, source, model, device)


def _default_names() -> list[str]:
    """The study's first models as far as they are shipped, else whatever is."""
    there = shipped()
    names = [name for name in _FIRST if name in there] or there
    if not names:
        raise UserError(_NO_MODELS)
    return names
