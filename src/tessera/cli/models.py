"""The verbs `models` and `models export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tessera.cli.options import Folder, ImageCount, Printed
from tessera.config import parse_count
from tessera.console import publish, say
from tessera.errors import UserError
from tessera.models.model_folder import is_model_folder, save_model, shipped
from tessera.models.run_snapshots import format_std, is_run, load_run
from tessera.studies.clevr.zoo import ZOO, described, zoo_table


@dataclass(frozen=True, kw_only=True)
class Models(Printed):
    """The models that come with Tessera, what they were trained on, and how far they length-generalize."""

    def run(self) -> None:
        models = [described(name) for name in shipped()]
        absent = [name for name in ZOO if name not in {model["name"] for model in models}]
        tables = [zoo_table(models)] if models else []
        state = f"Not shipped with this version: {', '.join(absent)}." if absent else "All models are shipped."
        publish({"models": models, "not_shipped": absent}, self.json, None, *tables, state)


@dataclass(frozen=True, kw_only=True)
class ModelsExport:
    """Write a model folder from a run, with an EMA of any length, reconstructed after training."""

    #: The run folder.
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    #: Relative length (sigma_rel) of the EMA: 0.05 averages over about a twentieth of the training.
    std: float = 0.05
    #: Snapshot at which the EMA ends, in images seen, such as 512Ki (default: the last).
    images: ImageCount = None
    #: Model folder to write (default: RUN/models/std-STD).
    out: Folder = None
    #: Keep weights in float32 rather than in half precision.
    full: bool = False

    def run(self) -> None:
        if not is_run(self.folder):
            raise UserError(f"{self.folder} is not a run folder.")
        model = load_run(self.folder, self.std, None if self.images is None else parse_count(self.images))
        out = self.out or self.folder / "models" / f"std-{format_std(self.std)}"
        if out.exists() and not is_model_folder(out) and any(out.iterdir()):
            raise UserError(f"{out} holds something else than a model; choose another folder (--out).")
        kept = {key: model.config[key] for key in ("settings", "images_seen", "ema")}
        save_model(out, model.denoiser, model.conditioner, kept, half=not self.full)
        say(f"The EMA of length {self.std:g} at {model.config['images_seen']} images is in {out}.")
