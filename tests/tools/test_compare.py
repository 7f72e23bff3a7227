import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from compare_renders import (
    BEST_PSNR,
    Likeness,
    center_errors,
    compare,
    mask_centers,
    mask_ious,
    mean_with_interval,
    psnr,
    report,
    resize_mask,
    ssim,
)
from programs import call_program
from tessera.errors import UserError
from tessera.render.image_io import load_png, save_mask, save_png


def as_image(array):
    return torch.from_numpy(array.astype(np.uint8)).permute(2, 0, 1)


def noisy_pair():
    rng = np.random.default_rng(7)
    a = rng.integers(0, 256, (40, 56, 3))
    return as_image(a), as_image(np.clip(a + rng.integers(-30, 31, a.shape), 0, 255))


def pattern():
    y, x = np.mgrid[:40, :56]
    return as_image(np.stack([x * 4 % 256, y * 6 % 256, x * y % 256], -1))


def flat(level, height=16, width=16):
    return torch.full((3, height, width), level, dtype=torch.uint8)


def test_psnr_of_a_constant_offset_is_known():
    assert psnr(flat(100), flat(110)) == pytest.approx(20 * math.log10(255 / 10))


def test_identical_images_get_the_best_of_everything():
    a, _ = noisy_pair()
    assert psnr(a, a) == BEST_PSNR
    assert ssim(a, a) == pytest.approx(1, abs=1e-12)


def test_ssim_of_flat_images_compares_only_their_means():
    c1 = (0.01 * 255) ** 2
    expected = (2 * 100 * 140 + c1) / (100**2 + 140**2 + c1)
    assert ssim(flat(100), flat(140)) == pytest.approx(expected, abs=1e-9)


def test_ssim_of_one_window_equals_the_formula_written_out():
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 256, (2, 11, 11))
    steps = np.arange(11) - 5
    weight = np.exp(-(steps[:, None] ** 2 + steps[None] ** 2) / (2 * 1.5**2))
    weight /= weight.sum()
    ma, mb = (weight * a).sum(), (weight * b).sum()
    va, vb = (weight * (a - ma) ** 2).sum(), (weight * (b - mb) ** 2).sum()
    cov = (weight * (a - ma) * (b - mb)).sum()
    c1, c2 = 6.5025, 58.5225
    expected = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    gray = [as_image(np.repeat(x[..., None], 3, -1)) for x in (a, b)]
    assert ssim(*gray) == pytest.approx(expected, abs=1e-10)


def test_numbers_agree_with_scikit_image():
    """Recorded from skimage.metrics (gaussian_weights, sigma 1.5, population covariance, range 255)."""
    a, b = noisy_pair()
    assert psnr(a, b) == pytest.approx(23.440685827279687, abs=1e-9)
    assert ssim(a, b) == pytest.approx(0.9718100395091631, abs=1e-9)
    assert ssim(a, pattern()) == pytest.approx(0.006014615077266403, abs=1e-9)


def test_iou_and_center_of_a_shifted_square_are_known():
    a, b = torch.zeros(2, 20, 40, dtype=torch.long)
    a[5:9, 10:14] = 1
    b[5:9, 12:16] = 1
    assert mask_ious(a, b, 2) == [8 / 24, None]
    assert mask_centers(a, 2) == [(12 / 40, 7 / 20), None]
    assert center_errors(mask_centers(a, 1), mask_centers(b, 1), (40, 20)) == [pytest.approx(2)]
    assert center_errors([None], [(0.5, 0.5)], (40, 20)) == [None]


def test_an_object_seen_in_one_mask_only_has_no_overlap():
    a = torch.zeros(8, 8, dtype=torch.long)
    b = a.clone()
    b[2, 2] = 1
    assert mask_ious(a, b, 1) == [0]


def test_the_interval_covers_the_true_mean_about_95_times_in_100():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        found = mean_with_interval([[value] for value in rng.normal(3.0, 1.0, 40)], seed=trial)
        hits += found["low"] <= 3.0 <= found["high"]
    assert 180 <= hits <= 199  # 0.975 quantile of a binomial(200, 0.95) is 196; the bootstrap is a little narrow


def test_objects_of_one_image_are_resampled_together():
    """Ten copies of every value add no knowledge, so the interval must not shrink."""
    values = list(np.random.default_rng(1).normal(size=30))
    single = mean_with_interval([[v] for v in values], seed=0)
    tenfold = mean_with_interval([[v] * 10 for v in values], seed=0)
    assert tenfold["low"] == pytest.approx(single["low"]) and tenfold["high"] == pytest.approx(single["high"])
    assert tenfold["n"] == 300


def test_kinds_are_reported_apart():
    rows = [Likeness("a", "jitter", 30.0, 0.9), Likeness("b", "nojitter", 40.0, 0.99), Likeness("c", None, 35.0, 0.95)]
    record = report(rows)
    assert record["all"]["psnr"]["value"] == pytest.approx(35)
    assert record["kinds"]["jitter"]["psnr"]["value"] == 30 and record["kinds"]["nojitter"]["psnr"]["n"] == 1
    assert "mask_iou" not in record["all"]


def write_folder(path, images, masks=None, scenes=None, info=None):
    for name in ("images", "masks"):
        (path / name).mkdir(parents=True)
    for name, image in images.items():
        save_png(path / "images" / name, image)
    for name, mask in (masks or {}).items():
        save_mask(path / "masks" / name, mask)
    if scenes is not None:
        (path / "scenes.json").write_text(json.dumps({"info": info or {}, "scenes": scenes}))
    return path


def one_object_scene(name, x, y, **more):
    return {"image_filename": name, "objects": [{"pixel_coords": [x, y, 9.0]}], **more}


@pytest.fixture
def two_folders(tmp_path):
    a, b = noisy_pair()
    mask = torch.zeros(40, 56, dtype=torch.long)
    mask[10:20, 10:20] = 1
    shifted = mask.roll(3, dims=1)
    here = write_folder(tmp_path / "a", {"x.png": a}, {"x.png": mask}, [one_object_scene("x.png", 15, 15)])
    scene = one_object_scene("x.png", 36, 30, kind="jitter")  # in pixels of a frame twice as wide and high
    info = {"width": 112, "height": 80}
    there = write_folder(tmp_path / "b", {"x.png": b}, {"x.png": shifted}, [scene], info)
    return here, there


def test_the_verb_prints_one_json_object_with_every_measure(two_folders, capsys):
    code = call_program("compare_renders", *two_folders, "--json")
    assert code == 0
    record = json.loads(capsys.readouterr().out)
    row = record["per_image"][0]
    assert row["kind"] == "jitter" and record["kinds"]["jitter"]["psnr"]["n"] == 1
    assert row["psnr"] == pytest.approx(23.4407, abs=1e-3)
    assert row["center_error"] == [pytest.approx(3)]  # 36/112 - 15/56 of 56 pixels
    assert row["mask_center_error"] == [pytest.approx(3)]
    assert row["mask_iou"] == [pytest.approx(70 / 130)]
    assert record["provenance"]["tessera"]


def test_reducing_both_the_same_way_changes_the_numbers_and_is_recorded(two_folders, capsys):
    assert call_program("compare_renders", *two_folders, "--json", "--size", "28x20") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["size"] == [28, 20] and "bicubic" in record["resize"]
    assert record["per_image"][0]["psnr"] > 24  # the noise averages out
    assert record["per_image"][0]["mask_iou"] == [pytest.approx(70 / 130)]  # masks keep their own size


def complaint(capsys, *words):
    code = call_program("compare_renders", *words)
    said = capsys.readouterr()
    assert code == 2 and said.out == "" and len(said.err.strip().splitlines()) == 1
    return said.err


def test_a_missing_image_is_named_unless_a_subset_is_wanted(two_folders, capsys):
    here, there = two_folders
    save_png(here / "images" / "extra.png", flat(3, 40, 56))
    assert "lacks extra.png" in complaint(capsys, here, there)
    assert "lacks extra.png" in complaint(capsys, there, here)
    assert [row.name for row in compare(here, there, subset=True)] == ["x.png"]


def test_mixed_sizes_are_named(two_folders, capsys):
    here, there = two_folders
    save_png(here / "images" / "x.png", flat(3, 20, 28))
    said = complaint(capsys, here, there)
    assert "x.png" in said and "28x20" in said and "56x40" in said


def test_different_numbers_of_objects_are_named(two_folders):
    here, there = two_folders
    (here / "scenes.json").write_text(json.dumps({"scenes": [{"image_filename": "x.png", "objects": []}]}))
    with pytest.raises(UserError, match=r"x\.png has 0 objects in one folder and 1"):
        compare(here, there)


def test_folders_that_cannot_be_compared_are_refused(two_folders, tmp_path, capsys):
    here, there = two_folders
    (tmp_path / "empty").mkdir()
    assert "no images" in complaint(capsys, here, tmp_path / "empty")
    assert "no folder" in complaint(capsys, here, tmp_path / "nowhere")
    (there / "scenes.json").write_text('{"scenes": [{')
    assert "not valid JSON" in complaint(capsys, here, there)
    (there / "scenes.json").write_text('{"scenes": [{"objects": []}]}')
    assert "no CLEVR scene file" in complaint(capsys, here, there)


def test_images_smaller_than_the_window_are_refused(tmp_path, capsys):
    a = write_folder(tmp_path / "a", {"x.png": flat(1, 8, 8)})
    assert "at least 11" in complaint(capsys, a, a)


def test_a_plain_folder_of_images_is_enough(tmp_path):
    save_png(tmp_path / "x.png", flat(1))
    found = compare(tmp_path, tmp_path)[0]
    assert found.psnr == BEST_PSNR and found.mask_iou == [] and found.center_error == []


def test_images_are_numbered_as_in_the_scene_file_and_can_be_picked(tmp_path):
    scenes = [{"image_filename": name, "objects": []} for name in ("c.png", "a.png", "b.png")]
    folder = write_folder(tmp_path / "a", {name: flat(1) for name in ("a.png", "b.png", "c.png")}, None, scenes)
    assert [row.name for row in compare(folder, folder, pick="1::2")] == ["a.png"]
    assert [row.name for row in compare(folder, folder, pick="2,0")] == ["b.png", "c.png"]


@pytest.mark.parametrize("pick", ["one", "7", "5::2", "1::0", "1:2:3:4"])
def test_a_pick_of_nothing_is_refused(two_folders, capsys, pick):
    assert "pick" in complaint(capsys, *two_folders, "--pick", pick)


def test_side_by_side_shows_theirs_then_ours_then_the_magnified_difference(tmp_path):
    a = write_folder(tmp_path / "a", {"x.png": flat(10), "y.png": flat(20)})
    b = write_folder(tmp_path / "b", {"x.png": flat(13), "y.png": flat(120)})
    code = call_program("compare_renders", str(a), str(b), "--side-by-side", str(tmp_path / "new" / "sheet.png"))
    sheet = load_png(tmp_path / "new" / "sheet.png")
    assert code == 0
    width = flat(10).shape[-1]
    row, column = (sheet.shape[-2] - 4) // 3, width + 4
    corners = [[int(sheet[0, 6 + r * row, 6 + c * column]) for c in range(2)] for r in range(3)]
    assert corners == [[13, 120], [10, 20], [12, 255]]  # 4 x 3, and 4 x 100 cut off at white


def test_a_name_that_ends_in_webp_gets_a_small_file(two_folders, tmp_path):
    for name in ("sheet.png", "sheet.webp"):
        assert call_program("compare_renders", *two_folders, "--side-by-side", tmp_path / name) == 0
    with Image.open(tmp_path / "sheet.png") as exact, Image.open(tmp_path / "sheet.webp") as small:
        assert (exact.format, small.format) == ("PNG", "WEBP") and exact.size == small.size


def test_the_record_keeps_names_and_no_paths_of_this_machine(two_folders, tmp_path):
    assert call_program("compare_renders", *two_folders, "--out", tmp_path / "r.json") == 0
    assert str(tmp_path) not in (tmp_path / "r.json").read_text()
    assert json.loads((tmp_path / "r.json").read_text())["a"] == "a"


def test_a_format_that_is_not_written_and_an_empty_pick_are_refused(two_folders, tmp_path, capsys):
    side = tmp_path / "side.bmp"
    assert ".png or .webp" in complaint(capsys, *two_folders, "--side-by-side", side)
    assert not side.exists()
    assert "picks none" in complaint(capsys, *two_folders, "--pick", "1:")


def test_any_whole_number_is_a_seed(two_folders, capsys):
    assert call_program("compare_renders", *two_folders, "--seed", -1, "--json") == 0


def test_a_resized_mask_shows_what_lies_under_each_new_center():
    mask = torch.arange(36).view(6, 6)
    assert torch.equal(resize_mask(mask, (2, 3)), mask[1::2][:, 1::3])
    assert torch.equal(resize_mask(mask, (6, 6)), mask)
