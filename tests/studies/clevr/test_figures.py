import pytest
import torch

from tessera.evaluation.detection import Detection
from tessera.evaluation.explain import BAD, GOOD, ODD
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.matching import match
from tessera.evaluation.pipeline import ScoredSamples, _even_batch
from tessera.sampling.prompts import Prompt
from tessera.scenes.vocabulary import LOCATIONS
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.figures import FIGURES, Panel, drawn
from tessera.studies.clevr.image_grids import ShownImages, load_image_grid, save_image_grid, shown_record


def obj(location):
    return Detection(*location, "red", "cube", "large", "metal", 0.9, 0.9)


def samples(ks=(0, 1, 2), each=10):
    """Images of one gray level each; the detector saw the first prompted location filled, and no other."""
    prompts = [Prompt(LOCATIONS[:k], n) for k in ks for n in range(each)]
    levels = 8 * torch.arange(len(prompts), dtype=torch.uint8)
    images = levels[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    scores = [match([obj(LOCATIONS[0])], prompt.wanted) for prompt in prompts]
    return ScoredSamples(prompts, images, scores, {})


def test_an_image_grid_gives_back_the_first_images_of_every_k_with_their_scores(tmp_path):
    given = samples()
    save_image_grid(tmp_path / "grid.webp", given)
    record = {"shown": shown_record(given, TrainingRange(1, "all"))}
    rows = load_image_grid(tmp_path / "grid.webp", record, {k: LOCATIONS[:k] for k in (0, 1, 2)})
    assert {k: len(row) for k, row in rows.items()} == {0: 8, 1: 8, 2: 8}
    grays = [float(shown.image.float().mean()) for shown in rows[1]]
    assert grays == pytest.approx(range(80, 144, 8), abs=3)  # the file is a little lossy
    assert [(rows[k][0].found, rows[k][0].extra, rows[k][0].ok) for k in (0, 1, 2)] == [
        (0, 1, False),
        (1, 0, True),
        (1, 0, False),
    ]


def test_extras_that_training_may_add_are_no_failure():
    one_of_two = shown_record(samples(), TrainingRange(2, "one"))
    assert one_of_two["0"][0] == [0, 1, 1, 0] and one_of_two["2"][0] == [1, 0, 0, 0]


def colors_of(grid):
    return {tuple(pixel) for pixel in grid.flatten(1).T.tolist()}


@pytest.mark.parametrize(("ok", "there", "absent"), [(True, GOOD, BAD), (False, BAD, GOOD)])
def test_a_figure_shows_red_dots_and_scores(ok, there, absent):
    shown = ShownImages(torch.zeros(3, 8, 8, dtype=torch.uint8), LOCATIONS[:2], 2, 0, ok)
    grid = drawn([Panel("exp1", "K_max 9", {2: [shown]})], ks=(2,), columns=1)
    assert there in colors_of(grid) and absent not in colors_of(grid)
    red = (grid[0] > 180) & (grid[1] < 60) & (grid[2] < 60)
    assert red.sum() > 10


def test_an_image_the_detector_does_not_know_is_neither_right_nor_wrong():
    shown = ShownImages(torch.zeros(3, 8, 8, dtype=torch.uint8), (), 0, 0, True, ood=True)
    grid = drawn([Panel("exp1", "K_max 9", {0: [shown]})], ks=(0,), columns=1)
    assert ODD in colors_of(grid) and not {GOOD, BAD} & colors_of(grid)


def test_every_figure_has_a_target_with_its_cells():
    from tessera.studies.clevr.entries import TARGETS

    assert all(set(figure.cells) == set(TARGETS[name]) for name, figure in FIGURES.items())
    assert all(set(figure.ks) <= set(CELLS[cell].ks) for figure in FIGURES.values() for cell in figure.cells)


@pytest.mark.parametrize(("count", "most", "batch"), [(832, 1024, 832), (832, 512, 416), (7, 4, 4), (1, 64, 1)])
def test_batches_are_even(count, most, batch):
    assert _even_batch(count, most) == batch
