import numpy as np
import pytest
import torch
from PIL import Image

from tessera.errors import UserError
from tessera.plots.image_grid import GAP, image_grid
from tessera.render.image_io import (
    _DEPTH_STEP,
    load_depth,
    load_mask,
    load_png,
    parse_size,
    resize,
    save_depth,
    save_mask,
    save_png,
    to_float,
    to_uint8,
)


def random_image(height=24, width=32, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, height, width)).astype(np.uint8))


def test_all_256_levels_survive_the_way_to_float_and_back():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    assert to_float(levels).min() == -1 and to_float(levels).max() == 1
    assert torch.equal(to_uint8(to_float(levels)), levels)


def test_values_outside_the_range_are_clipped_not_wrapped():
    assert to_uint8(torch.tensor([-1.5, -1.0, 0.0, 1.0, 1.5])).tolist() == [0, 0, 128, 255, 255]


def test_a_saved_image_comes_back_bit_for_bit(tmp_path):
    sample_image = random_image()
    save_png(tmp_path / "a.png", sample_image)
    assert torch.equal(load_png(tmp_path / "a.png"), sample_image)
    save_png(tmp_path / "b.png", to_float(sample_image))
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()


def test_a_saved_mask_comes_back_with_its_numbers(tmp_path):
    mask = torch.arange(12).view(3, 4)
    save_mask(tmp_path / "m.png", mask)
    assert torch.equal(load_mask(tmp_path / "m.png"), mask)


def test_saved_depth_is_good_to_half_a_level_and_keeps_nothing_as_nothing(tmp_path):
    depth = torch.rand(5, 7) * 25
    depth[2, 3] = torch.inf
    save_depth(tmp_path / "d.png", depth)
    back = load_depth(tmp_path / "d.png")
    assert torch.equal(back.isinf(), depth.isinf())
    assert (back - depth)[depth.isfinite()].abs().max() <= _DEPTH_STEP / 2 + 1e-5


def test_resizing_agrees_with_pillow():
    sample_image = random_image(240, 320)
    ours = resize(sample_image, (128, 96)).permute(1, 2, 0).numpy().astype(int)
    image = Image.fromarray(sample_image.permute(1, 2, 0).numpy()).resize((128, 96), Image.Resampling.BICUBIC)
    assert np.abs(ours - np.asarray(image).astype(int)).max() <= 1  # Pillow rounds between its two passes


def test_resizing_keeps_flat_color_flat_and_batches_alike():
    flat = torch.tensor([10, 128, 250], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 30, 40)
    small = resize(flat, (16, 16))
    assert small.shape == (2, 3, 16, 16)
    assert torch.equal(small, flat[:, :, :16, :16])
    pair = torch.stack([random_image(seed=1), random_image(seed=2)])
    assert torch.equal(resize(pair, (8, 8))[1], resize(pair[1], (8, 8)))


@pytest.mark.parametrize(("words", "size"), [("128", 128), ("320x240", (320, 240)), ("64X48", (64, 48))])
def test_sizes_are_read_as_people_write_them(words, size):
    assert parse_size(words) == size


@pytest.mark.parametrize("words", ["0", "-3", "128x0", "axb", "1x2x3", ""])
def test_what_is_no_size_is_refused(words):
    with pytest.raises(UserError):
        parse_size(words)


def test_a_damaged_image_is_named(tmp_path):
    save_png(tmp_path / "a.png", random_image())
    whole = (tmp_path / "a.png").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"not an image", b""):
        (tmp_path / "a.png").write_bytes(damaged)
        with pytest.raises(UserError, match=r"a\.png"):
            load_png(tmp_path / "a.png")


def test_a_contact_sheet_shows_every_image_unchanged():
    images = [random_image(20, 30, seed) for seed in range(5)]
    sheet = image_grid(images, columns=3)
    assert sheet.shape == (3, 2 * (20 + GAP) + GAP, 3 * (30 + GAP) + GAP)
    row, column = 1, 1  # the fifth
    top, left = GAP + row * (20 + GAP), GAP + column * (30 + GAP)
    assert torch.equal(sheet[:, top : top + 20, left : left + 30], images[4])
    assert (sheet[:, top : top + 20, left + 30 + GAP :] == 255).all()  # no sixth


def test_a_label_that_is_too_long_does_not_reach_the_neighbor():
    sample_image = torch.zeros(3, 20, 30, dtype=torch.uint8)
    labeled = image_grid([sample_image, sample_image], ["a label far too long for this", ""], columns=2)
    assert (labeled[:, 24:, 34:] == 255).all()
    assert (labeled[:, 24:, :34] < 255).any()
