"""The verb `sample`: pictures from a run or a model, sheets of them, and a record of what was asked."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from tessera.conditioners import ColorCounts, Conditioner
from tessera.console import print_json, progress, say
from tessera.denoiser.contract import Denoiser
from tessera.denoiser.folder import Model, find_model, load_model
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on
from tessera.errors import UserError
from tessera.experiments import parse_count
from tessera.files import make_folder, read_json, resolve_inside, write_json
from tessera.images.pictures import load_png, save_png, to_float
from tessera.provenance import provenance
from tessera.sampler.asking import Ask, parse_colors, parse_ks, parse_places, study, wish
from tessera.sampler.compose import How, repair
from tessera.sampler.noise import noise_levels
from tessera.sampler.sample import sample
from tessera.sampler.sheets import sample_sheet

SHEET_COLUMNS = 8
AT_ONCE = 64
ASKED = "asked.json"
OTHERS = ("scenes.json", "config.json")  # of renders, runs and models, which samples must not be mixed with
NEAR = ("project", "localize")  # ways that put answers together by where they lie


@dataclass(frozen=True)
class Sample:
    """Make pictures with a trained network: for the study's places or colours, or for your own.

    The same command carries on after an interruption; another one into the same folder replaces its pictures.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
    """A run folder, a model folder, the name of a shipped model, or a hub id."""
    k: Annotated[str | None, tyro.conf.arg(metavar="LIST", help_behavior_hint="")] = None
    """How many conditions to ask for, such as 0-12 or 1,3,6 (default: all the study asks for)."""
    each: int = 8
    """Pictures for each K."""
    out: Path = Path("samples")
    """Folder for pictures, sheets and asked.json."""
    places: Annotated[str | None, tyro.conf.arg(metavar="PLACES", help_behavior_hint="")] = None
    """Places of your own instead, such as "0.65,0.65 0.25,0.65" (x,y in 0..1 from the top left)."""
    colors: Annotated[str | None, tyro.conf.arg(metavar="COLORS", help_behavior_hint="")] = None
    """Colours of your own instead, such as red,blue."""
    steps: int = 32
    """Noise levels on the way (each but the last takes two calls of the network)."""
    churn: float = 0.0
    """Fresh noise on the way (Karras et al.'s S_churn): patches that cannot see one another agree better with it."""
    seed: int = 0
    """Another seed gives other pictures."""
    repair: How = "plain"
    """Ask the network about few conditions at a time and put its answers together; plain asks about all at once."""
    radius: int = 2
    """Cells to each side that belong to a thing, for --repair project and localize."""
    std: float | None = None
    """Length of the running average, for run folders (default: the shortest one kept)."""
    images: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")] = None
    """Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last)."""
    batch: int = AT_ONCE
    """Pictures made together."""
    precision: PrecisionName = "auto"
    """Of the network; auto is bfloat16 on CUDA and float32 elsewhere."""
    device: DeviceName = "auto"
    """Where to compute."""
    threads: int = 0
    """CPU threads (0: torch's own number); with another number the last bits of a picture may differ."""
    json: bool = False
    """Print the record on stdout."""

    def run(self) -> None:
        use_threads(self.threads)
        device = pick_device(self.device)
        model = open_model(self.model, self.std, self.images, device)
        set_precision(model, self.precision, device)
        asks = self.asks(model.tell)
        denoise = as_asked(model, self.repair, self.radius, self.batch)
        record = {
            "model": self.model,
            "settings": model.config.get("settings"),
            "images_seen": model.config.get("images_seen"),
            "ema": model.config.get("ema"),
            "size": model.size,
            "steps": self.steps,
            "churn": self.churn,
            "seed": self.seed,
            "repair": self.repair,
            "radius": self.radius if self.repair in NEAR else None,
            "precision": model.denoiser.precision,
            "provenance": provenance(device),
        }

        def draw(missing: list[Ask]) -> Iterator[Tensor]:
            return drawn(model, missing, self.steps, self.batch, device, denoise, self.churn)

        record, _ = save_samples(self.out, record, asks, draw)
        if self.json:
            print_json(record)
        say(f"{len(asks)} pictures, sheets and asked.json are in {self.out}.")

    def asks(self, tell: Conditioner) -> list[Ask]:
        if min(self.each, self.batch) < 1:
            raise UserError("At least one picture must be made for each K, and at a time (--each, --batch).")
        if self.places is not None or self.colors is not None:
            if self.k is not None:
                raise UserError(
                    "--k chooses among the study's places and colours; with your own, leave it out."
                )
            return wish(tell, self.own_wish(tell), self.each, self.seed)
        all_ks = "0-8" if isinstance(tell, ColorCounts) else "0" if tell.dim == 0 else "0-12"
        return study(tell, parse_ks(self.k or all_ks), self.each, self.seed)

    def own_wish(self, tell: Conditioner) -> tuple:
        told_colors = isinstance(tell, ColorCounts)
        if self.places is not None and self.colors is not None:
            raise UserError("Give either --places or --colors: a model is told one kind of thing.")
        if (self.places is not None) == told_colors:
            kind, flag = ("colours", "--colors") if told_colors else ("places", "--places")
            raise UserError(f"This model is told {kind}: use {flag}.")
        return parse_places(self.places or "") if not told_colors else parse_colors(self.colors or "")


def open_model(name: str, std: float | None = None, images: str | int | None = None, device=None) -> Model:
    """A run folder's averaged network, or a model folder, shipped name or hub id."""
    from tessera.training.run import is_run, load_run

    if is_run(Path(name)):
        return load_run(Path(name), std, None if images is None else parse_count(images), device)
    if std is not None or images is not None:
        raise UserError(
            "--std and --images choose among the snapshots of a run folder; a model has only one."
        )
    return load_model(name, device)


def check_models(names: Iterable[str]) -> None:
    """One sentence about the first name that stands for nothing, before any of them is worked on."""
    from tessera.training.run import is_run

    for name in names:
        if not is_run(Path(name)):
            find_model(name)


def use_threads(threads: int) -> None:
    """So many CPU threads from now on; 0 leaves their number as it is."""
    if threads < 0:
        raise UserError(f"A number of threads is not negative, as {threads} is.")
    if threads:
        torch.set_num_threads(threads)


def set_precision(model: Model, precision: str, device: torch.device) -> None:
    model.denoiser.precision = precision_on(device, precision)  # type: ignore[assignment]


def as_asked(model: Model, how: str = "plain", radius: int = 2, batch: int = AT_ONCE) -> Denoiser:
    """The model's network, or its answers about few conditions at a time put together."""
    if how == "plain":
        return model.denoiser
    return repair(model.denoiser, model.tell, how, radius, batch)


def save_samples(
    out: Path, facts: dict[str, Any], asks: list[Ask], draw: Callable[[list[Ask]], Iterator[Tensor]]
) -> tuple[dict[str, Any], Tensor]:
    """What `asks` are for, as files: what asked.json says, and the pictures, of which only missing ones are drawn."""
    names = file_names(asks)
    record = {**facts, "pictures": [{"file": name, **ask.record} for name, ask in zip(names, asks)]}
    opened(out, record)
    files = [resolve_inside(out, name) for name in names]
    missing = [(file, ask) for file, ask in zip(files, asks) if not file.exists()]
    made = (picture for pictures in draw([ask for _, ask in missing]) for picture in pictures)
    for (file, _), picture in zip(missing, made):
        save_png(file, picture)
    pictures = torch.stack([to_float(load_png(file)) for file in files])
    save_sheets(out, asks, pictures)
    return record, pictures


def opened(out: Path, record: dict[str, Any]) -> None:
    """Makes the folder and its asked.json: pictures of the very same command stay, those of another one go."""
    asked = resolve_inside(out, ASKED)
    if not asked.is_file() and any((out / name).exists() for name in OTHERS):
        raise UserError(f"{out} holds something else than samples; choose another folder (--out).")
    before = read_json(asked) if asked.is_file() else {}
    earlier = listed_pictures(out, before)
    if without_provenance(before) != json.loads(json.dumps(without_provenance(record))):
        for picture in earlier:
            picture.unlink(missing_ok=True)
        for sheet in out.glob("sheet*.png"):
            sheet.unlink()
        write_json(make_folder(out) / ASKED, record)
    for picture in listed_pictures(out, record):
        picture.parent.mkdir(exist_ok=True)


def listed_pictures(out: Path, record: dict[str, Any]) -> list[Path]:
    """The pictures an asked.json names; all names are checked before any picture is touched."""
    try:
        return [resolve_inside(out, entry["file"]) for entry in record.get("pictures", [])]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{out / ASKED} is not what `tessera sample` writes: {error!r}.") from error


def without_provenance(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "provenance"}


def file_names(asks: list[Ask]) -> list[str]:
    """A PNG for each, in a folder per K."""
    numbers: Counter[str] = Counter()
    names = []
    for ask in asks:
        names.append(f"{ask.name}/{numbers[ask.name]:04d}.png")
        numbers[ask.name] += 1
    return names


def drawn(
    model: Model,
    asks: list[Ask],
    steps: int,
    batch: int,
    device,
    denoise: Denoiser | None = None,
    churn: float = 0.0,
) -> Iterator[Tensor]:
    """Pictures (B, 3, H, W) on the CPU, batch by batch; `denoise` may stand in for the model's network."""
    sigmas = noise_levels(steps)
    with progress("sampling", len(asks)) as advance:
        for start in range(0, len(asks), batch):
            some = asks[start : start + batch]
            yield sample(
                denoise or model.denoiser,
                torch.cat([model.tell.at(ask.wanted) for ask in some]),
                model.size,
                [ask.seed for ask in some],
                batch=batch,
                sigmas=sigmas,
                churn=churn,
                device=device,
            ).cpu()
            advance(len(some))


def save_sheets(out: Path, asks: list[Ask], pictures: Tensor) -> None:
    """A sheet per K, and one with the first few pictures of every K, a row each."""
    rows: dict[str, list[int]] = {}
    for n, ask in enumerate(asks):
        rows.setdefault(ask.name, []).append(n)
    for name, numbers in rows.items():
        save_png(resolve_inside(out, f"sheet-{name}.png"), sheet_of(asks, pictures, numbers))
    first = [n for numbers in rows.values() for n in numbers[:SHEET_COLUMNS]]
    columns = min(SHEET_COLUMNS, max(len(numbers) for numbers in rows.values()))
    save_png(resolve_inside(out, "sheet.png"), sheet_of(asks, pictures, first, columns))


def sheet_of(asks: list[Ask], pictures: Tensor, numbers: list[int], columns: int = SHEET_COLUMNS) -> Tensor:
    return sample_sheet(pictures[numbers], [asks[n].wanted for n in numbers], min(columns, len(numbers)))
