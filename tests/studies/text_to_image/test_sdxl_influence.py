"""Eq. 9 and Eq. 10 on a latent network, against finite differences and closed forms."""

import pytest
import torch

from tessera.analysis.pixel_influence import GradientConfig, Pixel, jacobian, pixel_influence
from tessera.errors import UserError
from tessera.studies.text_to_image.influence import (
    WordInfluence,
    dominant,
    parse_probes,
    pixel_study,
    predicted_noise,
    sameness,
    word_paths,
    word_study,
)
from tessera.studies.text_to_image.pipeline import Sdxl
from tiny_pipeline import TINY, make_pipeline

PROMPT = "a photograph of a horse and a dog"
LOOP = GradientConfig(method="loop")


@pytest.fixture(scope="module")
def double():
    """The tiny network in double precision, on a small latent."""
    pipe = make_pipeline(TINY, ["a", "photograph", "of", "horse", "and", "dog"], seed=1)
    for part in (pipe.unet, pipe.vae, pipe.text_encoder, pipe.text_encoder_2):
        part.double()
    return Sdxl(pipe, "double", (64, 64))


@pytest.fixture(scope="module")
def trajectory(sdxl):
    return sdxl.trajectory(sdxl.conditioner(PROMPT), steps=4, keep=(0, 3), seeds=(0, 1), guidance=3.0)


def test_the_jacobian_is_that_of_finite_differences(double):
    x, sigma, cond = double.start([0], 15), torch.tensor(2.0, dtype=torch.float64), double.conditioner(PROMPT)
    at = (3, 4)
    found = jacobian(double.plain, x, sigma, cond, at=[at], how=LOOP)[0, 0]  # (C out, C in, H, W)
    step = 1e-5
    for channel, row, col in ((0, 3, 4), (2, 3, 4), (1, 0, 7), (3, 6, 2)):
        nudge = torch.zeros_like(x)
        nudge[0, channel, row, col] = step
        with torch.no_grad():
            change = (double.plain(x + nudge, sigma, cond) - double.plain(x - nudge, sigma, cond)) / (2 * step)
        assert (found[:, channel, row, col] - change[0, :, at[0], at[1]]).abs().max() < 1e-8


def test_the_denoiser_is_the_identity_less_its_noise(double):
    """dD/dx = I - sigma d eps/dx."""
    x, sigma, cond = double.start([1], 15), 3.0, double.conditioner(PROMPT)
    at = [(2, 5)]
    of_clean = jacobian(double.plain, x, sigma, cond, at=at, how=LOOP)[0, 0]
    of_noise = jacobian(predicted_noise(double.plain), x, sigma, cond, at=at, how=LOOP)[0, 0]
    identity = torch.zeros_like(of_clean)
    identity[range(4), range(4), 2, 5] = 1
    assert (of_clean - (identity - sigma * of_noise)).abs().max() < 1e-10


def test_recomputing_blocks_changes_no_gradient(double):
    x, cond = double.start([0], 15), double.conditioner(PROMPT)
    options = {"at": [(3, 4)], "pairs": "all"}
    plain = pixel_influence(double.plain, x, 2.0, cond, how=LOOP, **options)
    sparing = pixel_influence(double.plain, x, 2.0, cond, how=GradientConfig(method="loop", checkpoint=True), **options)
    assert (plain - sparing).abs().max() < 1e-12 and not double.net.checkpointing


def test_a_study_averages_seeds_and_finds_squares(sdxl, trajectory):
    probes = [(8, 8), (4, 12)]
    found = pixel_study(sdxl, PROMPT, trajectory, probes, of="eps")
    assert found.maps.shape == (2, 2, 16, 16) and found.sides_each.shape == (2, 2, 2)
    x = trajectory.x[1]
    each = pixel_influence(
        predicted_noise(sdxl.plain),
        x,
        trajectory.sigmas[1],
        sdxl.conditioner(PROMPT).expand(2, -1),
        at=probes,
        how=LOOP,
    )
    assert torch.allclose(found.maps[1], each.mean(0), atol=1e-6)
    rows = found.record()
    assert len(rows) == 4 and rows[0]["side90"] % 2 == 1 and 0 < rows[0]["share_at_probe"] <= 1


def test_a_words_influence_is_the_change_it_makes(sdxl, trajectory):
    found = word_study(sdxl, PROMPT, trajectory, [(8, 8), (0, 15)], words=["photograph", "Horse", "dog"])
    assert found.words == ["photograph", "horse", "dog"] and found.maps.shape == (2, 3, 16, 16)
    x, sigma = trajectory.x[0], trajectory.sigmas[0]
    with torch.no_grad():
        with_horse = sdxl.plain(x, sigma, sdxl.conditioner([PROMPT] * 2))
        less = sdxl.plain(x, sigma, sdxl.conditioner(["a photograph of a and a dog"] * 2))
    change = (with_horse - less).norm(dim=1)  # (B, H, W)
    assert torch.allclose(found.maps[0, 1], change.mean(0), rtol=1e-3, atol=1e-5)
    assert torch.allclose(found.each[:, 0, :, 1], change[:, [8, 0], [8, 15]], rtol=1e-3, atol=1e-5)


def test_guidance_multiplies_a_words_influence_exactly(sdxl, trajectory):
    """I_k under guidance w is w times the unguided one when only the conditional prompt is changed."""
    x, sigma = trajectory.x[0], trajectory.sigmas[0]
    cond, less = sdxl.conditioner([PROMPT] * 2), sdxl.conditioner(["a photograph of a and a dog"] * 2)
    with torch.no_grad():
        raw, guided = (
            (denoise(x, sigma, cond) - denoise(x, sigma, less)).norm(dim=1)
            for denoise in (sdxl.denoiser(1.0), sdxl.denoiser(5.0))
        )
    assert float((guided / raw).mean()) == pytest.approx(5.0, abs=1e-3)


def test_paths_of_a_word_are_all_measured(sdxl, trajectory):
    found = word_paths(sdxl, PROMPT, trajectory.at([0]), [(8, 8), (2, 2)], words=["horse"])
    strength = {how: float(words.maps.mean()) for how, words in found.items()}
    assert strength.keys() == {"remove", "sequence", "pooled", "mask"}
    assert all(value > 0 for value in strength.values()) and strength["mask"] < strength["remove"]


def influence(values) -> WordInfluence:
    """One level, one seed, probes x words."""
    each = torch.tensor(values)[None, None]  # (1, 1, P, K)
    words = list("abcdefgh"[: each.shape[-1]])
    probes = [Pixel(0, p) for p in range(each.shape[2])]
    return WordInfluence(words, "remove", [2.0], probes, torch.zeros(1, len(words), 1, 1), each)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([8.0, 1.0, 2.0], ["a"]),
        ([1.0, 5.0, 4.0, 2.0], ["b", "c"]),
        ([1.0, 1.1, 1.2], []),
        ([4.0, 2.0, 1.0], ["a"]),
        ([0.0, 0.0], []),
        ([3.0], []),
    ],
)
def test_dominant_words_are_twice_as_strong_as_the_next(values, named):
    assert dominant("abcdefgh", torch.tensor(values)) == named
    assert influence([values]).dominant(0, 0) == named


def test_sameness_is_one_for_proportional_words_and_minus_one_for_opposite_ones():
    same = sameness(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
    assert float(same["pearson_r"]) == pytest.approx(1) and float(same["cosine"]) == pytest.approx(1)
    opposite = sameness(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    assert float(opposite["pearson_r"]) == pytest.approx(-1)
    assert float(opposite["cosine"]) == pytest.approx(10 / 14)  # high anyway, which is why r is reported
    with pytest.raises(UserError, match="at least two probes"):
        sameness(torch.ones(1, 3))


def test_units_differ_by_powers_of_sigma():
    found = influence([[1.0, 2.0]])
    assert found.at("clean").flatten().tolist() == [1, 2]
    assert found.at("eps").flatten().tolist() == [0.5, 1]
    assert found.at("score").flatten().tolist() == [0.25, 0.5]


def test_probes_are_cells_of_the_latent(sdxl):
    assert parse_probes("3,4 15,0", sdxl.latent) == [(3, 4), (15, 0)]
    assert parse_probes(None, sdxl.latent) == [(8, 8), (8, 2), (8, 13), (2, 8)]
    for outside in ("16,0", "0,-1"):
        with pytest.raises(UserError, match="lies outside a latent of 16 x 16 cells"):
            parse_probes(outside, sdxl.latent)
    for text in ("middle", "1", "1,2,3"):
        with pytest.raises(UserError, match=f"`{text}` are no cells"):
            parse_probes(text, sdxl.latent)
    with pytest.raises(UserError, match="At least one cell must be probed"):
        parse_probes(" ", sdxl.latent)
