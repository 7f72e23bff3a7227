"""The verbs `explore` and `explore probe`: the page, and what one click on it measures, without the page."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from tessera.console import publish, say
from tessera.devices import DeviceName, free_threads, pick_device, use_threads
from tessera.errors import UserError
from tessera.files import make_folder
from tessera.sampling.compose import ComposeMethod

NEEDS = "The explorer needs its extra: pip install 'tessera-diffusion[explorer]'."
EXTRA = ("fastapi", "uvicorn", "pydantic", "starlette", "anyio")  # the last three come with the first


@contextmanager
def extra_needed() -> Iterator[None]:
    """Imports that fail because the extra is missing say so; any other failure keeps its own words."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise UserError(NEEDS) from error


@dataclass(frozen=True)
class Explore:
    """Open a page to play with models: set objects, watch them being drawn, and see what moves a pixel."""

    models: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN|MODEL ...", help_behavior_hint="")
    ] = ()
    """Run folders, model folders, names of shipped models or hub ids (default: the study's shipped models)."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in, and nobody is asked for a password."""
    port: int = 7860
    """Port to listen at; 0 takes a free one."""
    open: bool = False
    """Open the page in the browser."""
    device: DeviceName = "auto"
    """Where to compute."""
    threads: int = 0
    """CPU threads (0: as many as other work leaves free now)."""

    def run(self) -> None:
        with extra_needed():
            from tessera.app.explorer.server import check_port, serve
            from tessera.app.explorer.session import Session
        import torch

        from tessera.app.explorer.models import open_models
        from tessera.evaluation.detector import load_detector

        check_port(self.port)
        use_threads(self.threads or free_threads(torch.get_num_threads(), os.getloadavg()[0]))
        device = pick_device(self.device)
        session = Session(open_models(self.models, device), load_detector(device=device))
        serve(session, self.host, self.port, self.open)


@dataclass(frozen=True)
class ExploreProbe:
    """Which pixels and which conditions move one pixel of one image: what a click in the explorer measures."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
    """A run folder, a model folder, the name of a shipped model, or a hub id."""
    at: str
    """Location of the pixel, such as 0.65,0.65 (x,y in 0..1 from the top left)."""
    step: int
    """Sampling step at which to look, counted from 0, the noisiest."""
    image: int = 0
    """Which of the images, counted from 0."""
    locations: Annotated[str | None, tyro.conf.arg(metavar="LOCATIONS", help_behavior_hint="")] = None
    """Locations asked for, such as "0.65,0.65 0.25,0.65"."""
    colors: Annotated[str | None, tyro.conf.arg(metavar="COLORS", help_behavior_hint="")] = None
    """Colors asked for instead, such as red,blue."""
    each: int = 1
    """Images made together."""
    steps: int = 18
    """Noise levels on the way."""
    seed: int = 0
    """Another seed gives other images."""
    compose: ComposeMethod = "plain"
    """ComposeMethod the network is asked: about all conditions at once, or about few at a time."""
    radius: int = 2
    """Cells to each side that belong to an object, for --compose project and localize."""
    std: float | None = None
    """Length of the running average, for run folders (default: the shortest one kept)."""
    images: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")] = None
    """Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for probe.json, the image and the heat-map (default: none are written)."""
    device: DeviceName = "auto"
    """Where to compute."""
    threads: int = 0
    """CPU threads (0: torch's own number); with another number the last bits may differ."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> None:
        with extra_needed():
            from tessera.app.explorer.single_probe import ProbeOptions, probe_once
        use_threads(self.threads)
        options = ProbeOptions(**{field.name: getattr(self, field.name) for field in fields(ProbeOptions)})
        record, images = probe_once(options, pick_device(self.device))
        out = None if self.out is None else make_folder(self.out)
        if out:
            images.save(out)
            say(f"probe.json, denoised.png and influence.png are in {out}.")
        publish(record, self.json, out and out / "probe.json", probe_table(record))


def probe_table(record: dict[str, Any]) -> Table:
    table = Table("condition", "influence on the pixel", title=probe_title(record))
    for wanted, told in zip(record["wanted"], record["conditions"]):
        table.add_row(wanted if isinstance(wanted, str) else "({:g}, {:g})".format(*wanted), f"{told:.4g}")
    return table


def probe_title(record: dict[str, Any]) -> str:
    where = f"row {record['row']}, column {record['col']}, sigma {record['sigma']:.3g}"
    return f"{where}: 90% of the energy within {record['side90']} pixels"
