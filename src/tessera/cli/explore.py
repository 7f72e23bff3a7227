"""The verb `explore`: the page, and what one click on it measures, without the page."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.table import Table

from tessera.cli.options import Colors, Folder, ImageCount, Locations, Number, OpensModels, Printed, WithDetails
from tessera.console import publish, say
from tessera.devices import pick_device
from tessera.errors import UserError, needs_extra
from tessera.files import make_folder
from tessera.records import ProbeRecord, new_record
from tessera.render.image_io import save_png
from tessera.sampling.compose import ComposeMethod

# The last three come with the first.
_EXTRA = ("The explorer needs its extra", "explorer", "fastapi", "uvicorn", "pydantic", "starlette", "anyio")


@dataclass(frozen=True, kw_only=True)
class Explore(OpensModels, Printed, WithDetails):
    """Open a page to prompt models, watch them sample, and see what influences a pixel.

    With `--probe` there is no page: one pixel of one image of one model is measured, as a click on the page does.
    """

    #: Run folders, model folders, names of shipped models or hub ids (default: the study's shipped models).
    models: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN|MODEL ...", help_behavior_hint="")
    ] = ()
    #: Address to listen at; 0.0.0.0 lets other machines in, without a password.
    host: tyro.conf.Fixed[str] = "127.0.0.1"
    #: Port to listen at; 0 takes a free one.
    port: int = 7860
    #: Open the page in the browser.
    open: bool = False
    #: Location of the pixel to probe, such as 0.65,0.65 (x,y in 0..1 from the top left).
    probe: Locations = None
    #: Sampling step to probe at, counted from 0, the noisiest.
    step: int = 0
    #: Which of the images, counted from 0.
    image: tyro.conf.Fixed[int] = 0
    #: Locations of the prompt, such as "0.65,0.65 0.25,0.65".
    locations: Locations = None
    #: Colors of the prompt instead, such as red,blue.
    colors: Colors = None
    #: Images sampled together.
    each: int = 1
    #: Noise levels of the sampler.
    steps: int = 18
    #: Random seed of the images.
    seed: int = 0
    #: How single conditions are composed; plain gives the network all of them at once.
    compose: ComposeMethod = "plain"
    #: Cells to each side that belong to an object, for --compose project and localize.
    radius: tyro.conf.Fixed[int] = 2
    #: Length of the EMA, for run folders (default: the shortest one kept).
    std: tyro.conf.Fixed[Number] = None
    #: Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last).
    images: tyro.conf.Fixed[ImageCount] = None
    #: Folder for probe.json, the image and the heat map (default: none are written).
    out: Folder = None

    def run(self) -> None:
        if self.probe is not None:
            return self.run_probe(self.probe)
        with needs_extra(*_EXTRA):
            from tessera.app.explorer.server import check_port, serve
            from tessera.app.explorer.session import Session
        from tessera.app.explorer.models import open_models
        from tessera.evaluation.detector import load_detector

        check_port(self.port)
        device = pick_device(self.device)
        session = Session(open_models(self.models, device), load_detector(device=device))
        serve(session, self.host, self.port, self.open)

    def run_probe(self, at: str) -> None:
        with needs_extra(*_EXTRA):
            from tessera.app.explorer.single_probe import probe_once
        if len(self.models) != 1:
            raise UserError("One model is probed: name it, and no other.")
        options = {name: getattr(self, name) for name in _PROBE_OPTIONS}
        record, images = probe_once(self.models[0], pick_device(self.device), at, **options)
        out = None if self.out is None else make_folder(self.out)
        if out:
            for name, image in images.items():
                save_png(out / f"{name}.png", image)
            say(f"probe.json, denoised.png and influence.png are in {out}.")
        publish(new_record(ProbeRecord, record), self.json, out and out / "probe.json", _probe_table(record))


_PROBE_OPTIONS = (
    "step", "image", "locations", "colors", "each", "steps", "seed", "compose", "radius", "std", "images",
)  # fmt: skip


def _probe_table(record: dict[str, Any]) -> Table:
    table = Table("condition", "influence on the pixel", title=_probe_title(record))
    for wanted, influence in zip(record["wanted"], record["conditions"]):
        table.add_row(wanted if isinstance(wanted, str) else "({:g}, {:g})".format(*wanted), f"{influence:.4g}")
    return table


def _probe_title(record: dict[str, Any]) -> str:
    where = f"row {record['row']}, column {record['col']}, sigma {record['sigma']:.3g}"
    return f"{where}: 90% of the energy within {record['side90']} pixels"
