"""Fitting the renderer: which folders of real renders it takes."""

import pytest
import torch

from fit_renderer import fit
from programs import call_program
from tessera.errors import UserError
from tessera.render.image_io import save_png
from tessera.scenes.clevr import write_scenes
from tessera.scenes.scene import Scene


def folder_of(folder, *sizes):
    """Gray images of these sizes (width, height), and empty scenes."""
    names = [f"{n}.png" for n in range(len(sizes))]
    (folder / "images").mkdir()
    for name, (width, height) in zip(names, sizes):
        save_png(folder / "images" / name, torch.zeros(3, height, width))
    write_scenes(folder / "scenes.json", [Scene()] * len(sizes), image_names=names)
    return folder


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ([(8, 6)], "at least two"),
        ([(8, 6), (6, 6)], "several sizes"),
        ([(8, 5), (8, 5)], "8x5 will not do: both must be even"),
    ],
)
def test_images_that_cannot_be_compared_are_refused_before_any_work(tmp_path, sizes, sentence):
    with pytest.raises(UserError, match=sentence):
        fit(folder_of(tmp_path, *sizes), tmp_path / "look.json", rounds=1)
    assert not (tmp_path / "look.json").exists()


@pytest.mark.parametrize("rounds", [0, -1])
def test_fitting_takes_at_least_one_round(capsys, tmp_path, rounds):
    assert call_program("fit_renderer", tmp_path, "--rounds", rounds) == 2
    assert "At least one round" in capsys.readouterr().err
