"""How often the detector agrees with the eye on generated images.

python tools/compare_eye.py tests/data/by-eye-128 --out results/detector-by-eye-128.json

A labeled folder holds a sheet of images, `images.png` or `images.webp`, and `labels.json`: `side`, and for each image its row and
column on the sheet, K, the prompted `locations` or null, `count`, and where they were labeled `empty` (prompted locations without
an object) and `sure`. A label that was given several times is a list; the first one counts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor

from _common import program
from tessera.console import publish, table_of
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.evaluation.detector import THRESHOLD, Detector, load_detector
from tessera.evaluation.matching import match
from tessera.files import read_json
from tessera.provenance import provenance
from tessera.render.image_io import to_float
from tessera.stats import share_interval

GROUPS = {"K = 0-3": range(4), "K = 4-6": range(4, 7), "K = 7-10": range(7, 11), "all": range(13)}
THRESHOLDS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7)


@dataclass(frozen=True)
class Labels:
    """Generated images and what a person saw in them."""

    images: Tensor  # (B, 3, side, side) in [-1, 1]
    ks: np.ndarray  # (B,)
    counts: np.ndarray  # (B,)
    sure: np.ndarray  # (B,) bool
    locations: list[Any]  # of each image, the points its condition stands for, or None
    all_found: list[bool | None]  # None where it was not labeled

    @classmethod
    def read(cls, folder: Path, cells: int) -> "Labels":
        labels = read_json(folder / "labels.json")
        sheets = [path for suffix in ("png", "webp") if (path := folder / f"images.{suffix}").is_file()]
        if not sheets:
            raise UserError(f"{folder} has neither images.png nor images.webp.")
        sheet = torch.from_numpy(np.array(Image.open(sheets[0]).convert("RGB"))).permute(2, 0, 1)
        side, rows = labels["side"], labels["images"]
        corners = [(row["row"] * side, row["col"] * side) for row in rows]
        images = torch.stack([sheet[:, y : y + side, x : x + side] for y, x in corners])
        return cls(
            to_float(images),
            np.array([row["k"] for row in rows]),
            np.array([_first(row["count"]) for row in rows]),
            np.array([_first(row.get("sure", "high")) == "high" for row in rows]),
            [row["locations"] and [_cell_center(point, cells) for point in row["locations"]] for row in rows],
            [None if row.get("empty") is None or row["locations"] is None else not row["empty"][0] for row in rows],
        )


def _first(label: Any) -> Any:
    return label[0] if isinstance(label, list) else label


def _cell_center(point: list[float], cells: int) -> tuple[float, float]:
    """What a grid conditioner passes of a location."""
    x, y = ((int(value * cells) + 0.5) / cells for value in point)
    return x, y


def agreement(detector: Detector, labels: Labels, threshold: float) -> dict[str, Any]:
    """Shares of images on which both agree, at one threshold of the detector."""
    detector.threshold = threshold
    found, _ = detector.detect(labels.images)
    counts = np.array([len(detections) for detections in found])
    same = counts == labels.counts
    pairs = [
        (match(detections, points).missing == 0, by_eye)
        for detections, points, by_eye in zip(found, labels.locations, labels.all_found)
        if by_eye is not None
    ]
    return {
        "threshold": threshold,
        "count": {name: _share(same[np.isin(labels.ks, ks)]) for name, ks in GROUPS.items()},
        "count_where_sure": _share(same[labels.sure]),
        "bias": float((counts - labels.counts).mean()),
        "all_found": _share(np.array([ours == eye for ours, eye in pairs], dtype=bool)),
        "all_found_by_detector_alone": sum(ours and not eye for ours, eye in pairs),
        "all_found_by_eye_alone": sum(eye and not ours for ours, eye in pairs),
    }


def _share(right: np.ndarray) -> dict[str, Any]:
    return share_interval(int(right.sum()), len(right)).to_dict()


@dataclass(frozen=True)
class CompareEye:
    """How often the detector agrees with labels by eye, at several thresholds."""

    folder: tyro.conf.Positional[Path]
    """Folder with a sheet of images and labels.json."""
    detector: Path | None = None
    """Folder of another detector than the shipped one."""
    cells: int = 16
    """Cells to each side of the condition; locations are compared with the centers of their cells."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object on stdout."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        device = pick_device(self.device)
        labels = Labels.read(self.folder, self.cells)
        detector = load_detector(self.detector, device)
        rows = [agreement(detector, labels, threshold) for threshold in THRESHOLDS]
        record = {
            "kind": "detector-by-eye",
            "labels": self.folder.name,
            "images": len(labels.ks),
            "threshold": THRESHOLD,
            "thresholds": rows,
            "provenance": provenance(device),
        }
        head = ("threshold", *GROUPS, "sure", "too many", "all found")
        publish(record, self.json, self.out, table_of([head, *map(_cells, rows)]))


def _cells(row: dict[str, Any]) -> list[str]:
    shares = [*row["count"].values(), row["count_where_sure"]]
    counts, found = map(_percent, shares), _percent(row["all_found"])
    return [f"{row['threshold']:g}", *counts, f"{row['bias']:+.2f}", found]


def _percent(share: dict[str, Any]) -> str:
    return "-" if share["value"] is None else f"{share['value']:.0%}"


main = program(CompareEye)

if __name__ == "__main__":
    main()
