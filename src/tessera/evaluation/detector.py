"""`load_detector()`: objects in images with confidences, and how far an image is from those it was trained on."""

import math
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.errors import UserError
from tessera.evaluation.detection import Detection, ObjectDetector
from tessera.evaluation.network import CELLS, DetectorNetwork, fold_norms
from tessera.files import atomic, read_json, reading, sha256, write_json
from tessera.registry import Registry, import_object, names_object
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES, SIZES

THRESHOLD = 0.5  # a detection counts when the detector is this sure
BATCH = {"cpu": 32, "cuda": 2048, "mps": 256}
_KNOWN = {"mean", "whiten", "limit"}  # what images the detector knows look like
_COUNTER = (
    "num_batches_tracked"  # of batch norms: a whole number that half precision would round, and that is not needed
)
_ATTRIBUTE_WORDS = {"color": COLOR_NAMES, "shape": SHAPES, "size": tuple(SIZES), "material": MATERIALS}


class Detector:
    """Finds objects in images of any size."""

    def __init__(self, network: DetectorNetwork, known: dict[str, Tensor], device, threshold: float = THRESHOLD):
        self.network = fold_norms(network).eval().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.known = {name: value.to(device) for name, value in known.items()}
        self.device, self.threshold = torch.device(device), threshold

    @torch.inference_mode()
    def detect(self, images: Tensor) -> tuple[list[list[Detection]], Tensor]:
        """Detections and out-of-distribution score of each image, in one pass."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise UserError(f"The detector takes color images (B, 3, H, W), not {tuple(images.shape)}.")
        detections: list[list[Detection]] = []
        ood = []
        for part in images.split(BATCH.get(self.device.type, 32)) if len(images) else ():
            found, odd = self._detect(part.to(self.device, torch.float32))
            detections += found
            ood.append(odd.cpu())
        return detections, torch.cat(ood) if ood else torch.zeros(0)

    def _detect(self, images: Tensor) -> tuple[list[list[Detection]], Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            sight = self.network(images.contiguous(memory_format=torch.channels_last))
        offset = (sight.summary - self.known["mean"]) @ self.known["whiten"].T
        ood = offset.square().sum(1).sqrt() / self.known["limit"]
        return self._gather(sight.heads, len(images)), ood

    def _gather(self, heads: dict[str, Tensor], count: int) -> list[list[Detection]]:
        """Local maxima above the threshold become detections."""
        logit = heads["there"]  # (B, 1, 64, 64)
        # In half precision neighbors often tie: a tiny bonus, different for all nine of them, lets one win.
        third = torch.arange(CELLS, device=logit.device) % 3
        ranked = logit + (third + 3 * third[:, None]) * 1e-4
        peak = (ranked == F.max_pool2d(ranked, 3, 1, 1)) & (logit > math.log(self.threshold / (1 - self.threshold)))
        row, _, y, x = torch.nonzero(peak, as_tuple=True)
        sure = logit[row, 0, y, x].sigmoid()
        order = (row - sure / 2).argsort()  # image by image, surest first
        row, y, x, sure = row[order], y[order], x[order], sure[order]
        here = {name: values[row, :, y, x] for name, values in heads.items()}  # (M, channels)
        location = (torch.stack([x, y], 1) + here["offset"].clamp(0, 1)) / CELLS
        named = [[words[i] for i in here[name].argmax(1).tolist()] for name, words in _ATTRIBUTE_WORDS.items()]
        well_formed = here["well_formed"][:, 0].sigmoid().tolist()
        found = list(map(Detection, *location.T.tolist(), *named, sure.tolist(), well_formed))
        ends = torch.bincount(row, minlength=count).cumsum(0).tolist()
        return [found[start:end] for start, end in zip([0, *ends], ends)]


def save_detector(folder: Path, network: DetectorNetwork, known: dict[str, Tensor]) -> None:
    """Weights in half precision, beside what known images look like."""
    from safetensors.torch import save

    state = {f"detector.{name}": value for name, value in network.state_dict().items() if value.is_floating_point()}
    state |= {f"known.{name}": value for name, value in known.items()}
    with atomic(folder / "detector.safetensors") as temporary:
        temporary.write_bytes(save({name: value.cpu().half().contiguous() for name, value in state.items()}))
    write_json(folder / "detector.json", {**network.config, "sha256": sha256(folder / "detector.safetensors")})


_DETECTORS = Registry("tessera.detectors", "detector", {})


def open_detector(what: ObjectDetector | Path | str | None = None, device: Any = "cpu") -> ObjectDetector:
    """A detector of any origin: the shipped one, one in a folder, or somebody else's.

    Somebody else's is a registered name (an entry point `tessera.detectors`) or `package.module:name`, and stands for
    a class or function that is called with the device; `what` may also be a detector already.
    """
    if what is None:
        return _shipped_detector(device)
    if not isinstance(what, str | Path):
        return what
    if names_object(str(what)):
        return import_object(str(what))(device)
    if str(what) in _DETECTORS:
        return _DETECTORS[str(what)](device)
    return load_detector(what, device)


@cache
def _shipped_detector(device: Any) -> Detector:
    return load_detector(device=device)


def load_detector(path: Path | str | None = None, device="cpu") -> Detector:
    """The shipped detector, or one trained by `tools/train_detector.py` and kept in the folder `path`."""
    folder = Path(path) if path else Path(str(resources.files("tessera.evaluation") / "weights"))
    try:
        config = dict(read_json(folder / "detector.json"))
        state = _read_state(folder / "detector.safetensors", config.pop("sha256", None))
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"There is no readable detector in {folder}: {error}") from error
    weights, known = _part_of(state, "detector."), _part_of(state, "known.")
    try:
        network = DetectorNetwork(**config)
        unlike = network.load_state_dict(weights, strict=False)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"The weights in {folder} are not those of its detector.json.") from error
    missing = [name for name in unlike.missing_keys if not name.endswith(_COUNTER)]
    if missing or unlike.unexpected_keys or known.keys() != _KNOWN:
        raise UserError(f"The weights in {folder} are not those of its detector.json.")
    return Detector(network, known, device)


def _read_state(path: Path, digest: str | None) -> dict[str, Tensor]:
    """The tensors of a file whose checksum is the one in detector.json, if that has one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reading(path):
        if digest not in (None, sha256(path)):
            raise UserError(f"the checksum of {path} is not the one in detector.json.")
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(error) from error


def _part_of(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value.float() for name, value in state.items() if name.startswith(prefix)}
