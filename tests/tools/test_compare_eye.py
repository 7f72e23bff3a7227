"""The detector and the eye on generated images that are labeled."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import compare_eye
from compare_eye import Labels, agreement
from programs import call_program
from tessera.evaluation.detection import Detection

LABELED = Path(__file__).parents[1] / "data" / "by-eye-128"


class OneObject:
    """Finds one object in the middle of images that are not black."""

    def detect(self, images):
        one = Detection(0.5, 0.5, "red", "cube", "large", "metal", 0.9, 0.9)
        return [[one] if image.max() > 0 else [] for image in images], torch.zeros(len(images))


def labeled(folder: Path) -> Path:
    """Three images: empty and labeled so, one object found, one object that the eye counts as two."""
    sheet = np.zeros((8, 24, 3), np.uint8)
    sheet[:, 8:] = 255
    Image.fromarray(sheet).save(folder / "images.png")
    rows = [
        {"row": 0, "col": 0, "k": 0, "locations": [], "count": 0},
        {"row": 0, "col": 1, "k": 1, "locations": [[0.5, 0.5]], "count": [1, 2], "empty": [[], []], "sure": ["high"]},
        {"row": 0, "col": 2, "k": 8, "locations": [[0.1, 0.1]], "count": 2, "empty": [[]], "sure": "low"},
    ]
    (folder / "labels.json").write_text(json.dumps({"side": 8, "columns": 3, "images": rows}))
    return folder


def test_counts_and_filled_locations_are_compared(tmp_path):
    record = agreement(OneObject(), Labels.read(labeled(tmp_path), cells=16), 0.5)
    assert [record["count"][name]["value"] for name in compare_eye.GROUPS] == [1.0, None, 0.0, 2 / 3]
    assert record["count_where_sure"] | {"low": 0, "high": 0} == {"value": 1.0, "low": 0, "high": 0, "n": 2}
    assert record["bias"] == -1 / 3
    assert record["all_found"]["n"] == 2 and record["all_found_by_eye_alone"] == 1


def test_the_labels_of_128_px_are_whole_and_the_detector_mostly_agrees():
    labels = Labels.read(LABELED, cells=16)
    assert labels.images.shape == (110, 3, 128, 128) and sorted(set(labels.ks)) == list(range(11))
    few = np.flatnonzero(labels.ks <= 3)
    part = Labels(
        labels.images[few], labels.ks[few], labels.counts[few], labels.sure[few], labels.locations, [None] * 0
    )
    record = agreement(compare_eye.load_detector(), part, 0.5)
    assert record["count"]["K = 0-3"]["value"] > 0.9


def test_a_folder_without_a_sheet_is_one_sentence(tmp_path, capsys):
    labeled(tmp_path)
    (tmp_path / "images.png").unlink()
    assert call_program("compare_eye", tmp_path, "--device", "cpu") == 2
    assert "has neither images.png nor images.webp" in capsys.readouterr().err
