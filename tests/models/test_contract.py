"""Networks of other conventions become denoisers: shown by algebra, and with two outside MNIST models."""

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from tessera.errors import UserError
from tessera.models.adapters import FromNoise, FromPathEnd, FromV, FromVelocity, cosine_alphas, linear_alphas
from tessera.models.contract import Denoiser
from tessera.models.precondition import per_image
from tessera.sampling import noise_levels, sample

MEAN, SPREAD = 0.2, 0.6


def ideal(x, sigma):
    """The best denoiser of images with independent pixels N(MEAN, SPREAD^2)."""
    return MEAN + (x - MEAN) * SPREAD**2 / (SPREAD**2 + sigma**2)


# -- by algebra: the ideal network of each convention becomes the ideal denoiser --------------------------


def mixture(alphas, time):
    a = alphas[time.long()][:, None, None, None].float()
    return a.sqrt(), (1 - a).sqrt()


def ideal_noise(alphas):
    def predict(x, time, cond):
        signal, noise = mixture(alphas, time)
        return (x - signal * ideal(x / signal, noise / signal)) / noise

    return predict


def ideal_v(alphas):
    def predict(x, time, cond):
        signal, noise = mixture(alphas, time)
        clean = ideal(x / signal, noise / signal)
        return signal * (x - signal * clean) / noise - noise * clean

    return predict


def ideal_velocity(data_at):
    def predict(x, time, cond):
        share = (time if data_at == 0 else 1 - time)[:, None, None, None]
        clean = ideal(x / (1 - share), share / (1 - share))
        toward_noise = (x - (1 - share) * clean) / share - clean
        return toward_noise if data_at == 0 else -toward_noise

    return predict


@pytest.mark.parametrize("alphas", [linear_alphas(), cosine_alphas()], ids=["linear", "cosine"])
@pytest.mark.parametrize(("adapter", "network"), [(FromNoise, ideal_noise), (FromV, ideal_v)])
def test_networks_of_discrete_times_become_the_ideal_denoiser(alphas, adapter, network):
    times = torch.tensor([20, 300, 700])
    sigma = ((1 - alphas[times]) / alphas[times]).sqrt().float()
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    denoise = adapter(network(alphas), alphas, whole_times=True)
    assert denoise.time(sigma).tolist() == times.tolist()
    expected = ideal(x, sigma[:, None, None, None])
    torch.testing.assert_close(denoise(x, sigma), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("data_at", [0, 1])
def test_velocities_become_the_ideal_denoiser(data_at):
    sigma = torch.tensor([0.05, 1.0, 30.0])
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    denoise = FromVelocity(ideal_velocity(data_at), data_at=data_at)
    expected = ideal(x, sigma[:, None, None, None])
    torch.testing.assert_close(denoise(x, sigma), expected, rtol=1e-3, atol=1e-3)


def test_a_path_end_is_the_clean_image():
    def predict(x, time, cond):
        share = (1 - time)[:, None, None, None]
        return ideal(x / (1 - share), share / (1 - share))

    sigma = torch.tensor([0.3, 3.0])
    x = torch.randn(2, 1, 4, 4)
    torch.testing.assert_close(FromPathEnd(predict)(x, sigma), ideal(x, sigma[:, None, None, None]))


def test_another_range_of_values_is_translated_there_and_back():
    """A network that knows only images in [0, 1], asked in [-1, 1]."""

    def predict(x, time, cond):
        assert x.shape == (1, 1, 2, 2)
        return x / time[:, None, None, None]  # the path's end if there were no noise

    x = torch.tensor([[[[-1.0, 0.0], [0.5, 1.0]]]])
    seen = []
    denoise = FromPathEnd(lambda *a: seen.append(a) or predict(*a), shift=0.5, scale=0.5)
    torch.testing.assert_close(denoise(x, torch.tensor(2.0)), x)
    at, time, _ = seen[0]
    torch.testing.assert_close(at / time, 0.5 + 0.5 * x)
    assert time.item() == pytest.approx(0.5)  # their noise is half of ours: 1 / (1 + 1)


def test_times_are_interpolated_and_held_inside_what_was_taught():
    alphas = linear_alphas()
    denoise = FromNoise(lambda x, time, cond: x, alphas)
    sigmas = ((1 - alphas) / alphas).sqrt().float()
    between = (sigmas[400] * sigmas[401]).sqrt()
    requested = torch.stack([between, torch.tensor(1e-6), torch.tensor(1e6)])
    expected = torch.tensor([400.5, 0.0, 999.0])
    torch.testing.assert_close(denoise.time(requested), expected, rtol=0, atol=1e-2)


def test_adapters_are_denoisers_and_refuse_nonsense():
    assert isinstance(FromNoise(lambda x, time, cond: x, linear_alphas()), Denoiser)
    with pytest.raises(UserError, match="falling"):
        FromNoise(lambda x, time, cond: x, linear_alphas().flip(0))
    with pytest.raises(UserError, match="two or more"):
        FromNoise(lambda x, time, cond: x, linear_alphas(1))
    with pytest.raises(UserError, match="positive scale"):
        FromPathEnd(lambda x, time, cond: x, scale=0)
    with pytest.raises(UserError, match="time 0 or 1"):
        FromVelocity(lambda x, time, cond: x, data_at=2)


def test_a_plain_number_is_as_exact_a_noise_level_as_the_image():
    assert per_image(0.1, torch.zeros(2, 1, 1, 1).double()).tolist() == [0.1, 0.1]
    assert per_image(0.1, torch.zeros(2, 1, 1, 1).half()).dtype == torch.float32


# -- two outside models ----------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Norm over the whole image, two convolutions, a way around them."""

    def __init__(self, inputs, outputs, side):
        super().__init__()
        self.ln = nn.LayerNorm((inputs, side, side))
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.residual_conv = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(self.ln(x)))) + self.residual_conv(x))


class DigitUNet(nn.Module):
    """Predicts the noise of a 28 x 28 digit at one of 1000 times; tensor names as in the checkpoint."""

    def __init__(self, widths=(10, 20, 40), bottom=80, sides=(28, 14, 7, 3), time_width=128):
        super().__init__()

        def pair(inputs, outputs, side):
            return nn.Sequential(Residual(inputs, outputs, side), Residual(outputs, outputs, side))

        befores = (1, *widths[:-1])
        self.pe = nn.Module()
        self.pe.embedding = nn.Embedding(1000, time_width)
        self.encoders = nn.ModuleList(pair(*three) for three in zip(befores, widths, sides, strict=False))
        self.pe_linears_en = nn.ModuleList(
            nn.Sequential(nn.Linear(time_width, w), nn.ReLU(), nn.Linear(w, w)) for w in befores
        )
        self.downs = nn.ModuleList(nn.Conv2d(w, w, 2, 2) for w in widths)
        self.pe_mid = nn.Linear(time_width, widths[-1])
        self.mid = pair(widths[-1], bottom, sides[-1])
        rising, highs = widths[::-1], (bottom, *widths[:0:-1])
        self.pe_linears_de = nn.ModuleList(nn.Linear(time_width, 2 * w) for w in rising)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(h, w, 2, 2) for h, w in zip(highs, rising, strict=True))
        self.decoders = nn.ModuleList(pair(2 * w, w, s) for w, s in zip(rising, sides[2::-1], strict=True))
        self.conv_out = nn.Conv2d(widths[0], 1, 3, padding=1)

    def forward(self, x, time, cond=None):
        given = self.pe.embedding(time)
        kept = []
        for conditioner, encode, down in zip(self.pe_linears_en, self.encoders, self.downs, strict=True):
            x = encode(x + conditioner(given)[:, :, None, None])
            kept.append(x)
            x = down(x)
        x = self.mid(x + self.pe_mid(given)[:, :, None, None])
        for conditioner, up, decode in zip(self.pe_linears_de, self.ups, self.decoders, strict=True):
            beside, x = kept.pop(), up(x)
            short = beside.shape[-1] - x.shape[-1]  # 3 doubled is 6, one short of 7
            x = F.pad(x, (short // 2, short - short // 2) * 2)
            x = decode(torch.cat([beside, x], dim=1) + conditioner(given)[:, :, None, None])
        return self.conv_out(x)


class DigitViT(nn.Module):
    """Predicts the clean digit on a straight path; time and class come as two tokens each. 10 is no class."""

    def __init__(self, width=64, layers=4, patch=7):
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, patch, patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, 16, width))
        self.transformer = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, activation="gelu")
                for _ in range(layers)
            )
        )
        self.unpatch = nn.ConvTranspose2d(width, 1, patch, patch)
        self.y_encoder = nn.Embedding(11, 2 * width)

    def forward(self, x, time, cond=None):
        digit = torch.full((len(x),), 10) if cond is None else cond
        pixels = self.patch_embed(x)  # (B, width, 4, 4)
        tokens = pixels.flatten(2).mT + self.pos_embed
        pace = torch.exp(torch.arange(64) * (-math.log(10_000) / 63))
        waves = torch.cat([(time[:, None] * pace).sin(), (time[:, None] * pace).cos()], dim=1)
        given = torch.cat([waves, self.y_encoder(digit)], dim=1).unflatten(1, (4, -1))
        tokens = self.transformer(torch.cat([tokens, given], dim=1))[:, :16]
        return self.unpatch(tokens.mT.reshape(pixels.shape))


@pytest.fixture(scope="module")
def unet(checkpoints):
    net = DigitUNet().eval()
    net.load_state_dict(load_file(checkpoints / "franfee_unet_ddpm_mnist.safetensors"))
    return FromNoise(net, linear_alphas(), whole_times=True, shift=0.5, scale=0.5)


@pytest.fixture(scope="module")
def vit(checkpoints):
    net = DigitViT().eval()
    net.load_state_dict(load_file(checkpoints / "sofia_vit_flow_mnist.safetensors"))
    return FromPathEnd(net, data_at=1, shift=0.5, scale=0.5)


@pytest.fixture(scope="module")
def digits(vit):
    """Two of each digit, drawn by the outside transformer through our sampler: (20, 1, 28, 28) in [-1, 1]."""
    requested = torch.arange(20) % 10
    return sample(vit, requested, 28, range(20), channels=1, sigmas=noise_levels(24)).clamp(-1, 1)


def test_outside_samples_are_dark_images_with_bright_strokes(digits):
    assert digits[:, :, :2].mean() < -0.95 and digits[:, :, :, :2].mean() < -0.95  # an empty rim
    ink = (digits > 0).float().mean((1, 2, 3))
    assert ((ink > 0.03) & (ink < 0.3)).all()


def error(denoise, images, sigma, cond=None, seed=0):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return (denoise(images + sigma * noise, torch.tensor(sigma), cond) - images).square().mean().sqrt().item()


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.6, 1.0])
def test_an_outside_network_removes_noise_from_digits_of_another(unet, digits, sigma):
    """The U-Net never saw these images; it knows digits, so it takes most of the noise away."""
    assert error(unet, digits, sigma) < 0.6 * sigma


def test_an_outside_network_takes_no_other_images_for_digits(unet, digits):
    """The same pixels in shuffled locations are no digits."""
    order = torch.randperm(28 * 28, generator=torch.Generator().manual_seed(0))
    shuffled = digits.flatten(2)[..., order].view_as(digits)
    assert error(unet, digits, 0.6) < 0.6 * error(unet, shuffled, 0.6)


def test_a_digit_is_denoised_best_when_its_own_class_is_given(vit, digits):
    own = torch.arange(20) % 10
    right = error(vit, digits, 2.0, own)
    wrong = [error(vit, digits, 2.0, (own + shift) % 10) for shift in range(1, 10)]
    assert right < 0.8 * min(wrong)
    assert right < error(vit, digits, 2.0, None)
