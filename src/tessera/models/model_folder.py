"""Model folders: config.json, model.safetensors and a README.md card. Nothing is ever unpickled."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tessera.conditioning import Conditioner, conditioner_from
from tessera.config import current_settings
from tessera.errors import UserError, needs_extra
from tessera.files import atomic, make_folder, read_json, reads, sha256, write_json
from tessera.models.build import denoiser_config, denoiser_from
from tessera.models.checkpoint_io import read_float32, to_half, write_checkpoint
from tessera.models.model import Model
from tessera.records import current_words
from tessera.version import __version__

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
_FORMER_NAMES = {"told": "cond"}  # of LocalConv's layers
_FETCHED = [CONFIG, WEIGHTS, CARD, "model_index.json", "unet/*.json", "unet/*.safetensors"]  # ours, and of diffusers
_FETCHED += ["diffusion_pytorch_model.safetensors", "scheduler/*.json", "scheduler_config.json"]
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
ZOO_FOLDERS = (Path(__file__).parents[1] / "zoo", Path(__file__).parents[3] / "zoo")  # installed, in a checkout


# -- writing -----------------------------------------------------------------------------------------------


def save_model(
    folder: Path, denoiser: nn.Module, conditioner: Conditioner, config: Mapping[str, Any], half: bool = True
) -> Path:
    """Write a model folder. `config` is what else to remember: settings, images seen, average, results."""
    folder = make_folder(Path(folder))
    state = dict(denoiser.state_dict())
    write_checkpoint(folder / WEIGHTS, to_half(state) if half else state)
    record = {
        "format": FORMAT,
        "tessera": __version__,
        "denoiser": denoiser_config(denoiser),
        "conditioner": conditioner.config,
        **config,
        "sha256": sha256(folder / WEIGHTS),
    }
    write_json(folder / CONFIG, record)
    with atomic(folder / CARD) as temporary:
        temporary.write_text(card(folder, denoiser, record))
    return folder


def card(folder: Path, denoiser: nn.Module, record: Mapping[str, Any]) -> str:
    """A page for the person who finds the folder."""
    weights = sum(p.numel() for p in denoiser.parameters())
    settings = record.get("settings", {})
    objects = settings.get("data", {}).get("objects")
    facts = {
        "experiment": settings.get("experiment"),
        "training scenes": f"{objects[0]} to {objects[1]} objects" if objects else None,
        "conditioner": ", ".join(f"{key} {value}" for key, value in record["conditioner"].items()),
        "network": f"{record['denoiser']['kind']}, {weights:,} weights",
        "images": f"{record['denoiser']['size']} x {record['denoiser']['size']}",
        "images seen": record.get("images_seen"),
        "running average": record.get("ema"),
        "sha256": record["sha256"],
    }
    rows = [f"| {key} | {value} |" for key, value in facts.items() if value is not None]
    return "\n".join(
        [
            "---", "library_name: tessera", "tags: [diffusion, clevr]", "---", "",
            f"# {folder.name}", "", "A conditional diffusion model of CLEVR-like scenes, trained by Tessera.", "",
            "| | |", "|---|---|", *rows, "",
            "```python", "import tessera", "", f'model = tessera.load("{_load_word(folder)}")', "```", "",
            "Its images show rendered toy scenes and nothing else.", "",
        ]
    )  # fmt: skip


def _load_word(folder: Path) -> str:
    """What `load_model` finds the folder by: its name if it is shipped, else its path."""
    shelved = folder.resolve().parent in [models.resolve() for models in ZOO_FOLDERS]
    return folder.name if shelved else folder.as_posix()


# -- reading -----------------------------------------------------------------------------------------------


@reads
def load_model(name: str | Path, device=None) -> Model:
    """The model in a folder, of a shipped name, or behind a hub id such as `someone/model@revision`."""
    folder = find_model(name)
    record = current_words(read_json(folder / CONFIG))
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UserError(f"{folder / CONFIG} is no model config of a kind this version reads.")
    try:
        denoiser, conditioner = denoiser_from(record["denoiser"]), conditioner_from(record["conditioner"])
    except KeyError as error:
        raise UserError(f"{folder / CONFIG} lacks the entry {error}.") from error
    load_weights_into(denoiser, _read_weights(folder, record), folder)
    if isinstance(record.get("settings"), dict):
        record["settings"] = current_settings(record["settings"])
    return Model(denoiser.to(device).eval().requires_grad_(False), conditioner, config=record)


def _read_weights(folder: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights in float32, if the file is the one the config speaks of."""
    weights = folder / WEIGHTS
    if weights.is_file() and record.get("sha256") not in (None, sha256(weights)):
        raise UserError(f"{weights} is damaged or was replaced: its checksum is not the one in {CONFIG}.")
    return read_float32(weights)


def load_weights_into(denoiser: nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    """Set the weights of a network; those of earlier versions under their names of then."""
    renamed = {current_weight_name(name): value for name, value in state.items()}
    try:
        denoiser.load_state_dict(renamed if renamed.keys() == denoiser.state_dict().keys() else state)
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise UserError(f"The weights in {where} do not fit their config: {first[0].strip()}") from error


def current_weight_name(name: str) -> str:
    """The name of a weight, or of a tensor that belongs to it, for one of any version."""
    return ".".join(_FORMER_NAMES.get(part, part) for part in name.split("."))


def find_model(name: str | Path) -> Path:
    """The folder a name stands for."""
    path = Path(name).expanduser()
    if is_model_folder(path):
        return path
    for models in ZOO_FOLDERS:
        if is_model_folder(models / str(name)):
            return models / str(name)
    if path.exists():
        raise UserError(f"{path} is no model folder: it has no {CONFIG} with {WEIGHTS} beside it.")
    if HUB_ID.fullmatch(str(name)):
        return _from_hub(str(name))
    near = difflib.get_close_matches(str(name), shipped(), n=1, cutoff=0.4)
    known = f"shipped are {', '.join(shipped())}" if shipped() else "no models are shipped with this version"
    raise UserError(f"There is no model `{name}`; " + (f"did you mean `{near[0]}`?" if near else f"{known}."))


def is_model_folder(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / WEIGHTS).exists()


def shipped() -> list[str]:
    """Names of the models that come with Tessera."""
    names = set()
    for zoo in ZOO_FOLDERS:
        folders = zoo.iterdir() if zoo.is_dir() else []
        names |= {folder.name for folder in folders if is_model_folder(folder)}
    return sorted(names)


def _from_hub(name: str) -> Path:
    """The files of a hub repository that make a model, downloaded once into the hub's own cache."""
    with needs_extra(f"To fetch {name} install the hub extra", "hub", "huggingface_hub"):
        from huggingface_hub import snapshot_download
    repo, _, revision = name.partition("@")
    try:
        found = snapshot_download(repo, revision=revision or None, allow_patterns=_FETCHED)
    except Exception as error:  # the hub has a dozen kinds of failure, all of which mean: not available
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"Could not fetch {name} from the hub: {reason}") from error
    return Path(found)
