"""Pixel influence: closed forms, finite differences, patches that end where they say, two outside networks."""

import gc
import itertools
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tessera.analysis.pixel_influence import (
    GradientConfig,
    Pixel,
    ProbeProducts,
    ProbeRequest,
    jacobian,
    pixel_influence,
    pixel_of,
    saved_bytes,
    smallest_square,
    total_energy,
)
from tessera.devices import double_home, in_double
from tessera.errors import UserError
from tessera.models.adapters import FromNoise, FromPathEnd, linear_alphas
from tessera.sampling import noise_levels, sample


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Linear:
    """The best denoiser of a Gaussian N(0, S): x -> S (S + sigma^2)^-1 x, its Jacobian known."""

    def __init__(self, channels=3, side=6):
        self.shape = (channels, side, side)
        n = channels * side * side
        root = torch.randn(n, n, generator=generator(), dtype=torch.float64)
        self.spread = root @ root.T / n

    def matrix(self, sigma):
        return self.spread @ torch.linalg.inv(self.spread + sigma**2 * torch.eye(len(self.spread)).double())

    def __call__(self, x, sigma, cond=None):
        rows = [self.matrix(level) @ row for level, row in zip(sigma, x.flatten(1))]
        return torch.stack(rows).view_as(x)


AT = [(0, 0), (2, 3), (5, 5)]
SIGMA = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)


def noise(*shape, dtype=torch.float32, seed=1):
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


# -- closed form -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "vmap", "rows", "loop"])
def test_a_linear_denoiser_has_the_influence_of_its_matrix(method):
    denoise = Linear()
    x = noise(3, 3, 6, 6, dtype=torch.float64)
    found = pixel_influence(denoise, x, SIGMA, at=AT, how=GradientConfig(method))
    for n, sigma in enumerate(SIGMA):
        table = denoise.matrix(sigma).view(3, 6, 6, 3, 6, 6)
        for p, (row, col) in enumerate(AT):
            known = sum(table[c, row, col, c].abs() for c in range(3))
            assert ((found[n, p] - known).norm() / known.norm()) <= 1e-6


def test_all_channel_pairs_and_the_full_jacobian_are_the_matrix():
    denoise = Linear()
    x = noise(2, 3, 6, 6, dtype=torch.float64)
    every = jacobian(denoise, x, SIGMA[:2], at=list(itertools.product(range(6), range(6))))  # (N, H W, C, C, H, W)
    every = every.transpose(1, 2).unflatten(2, (6, 6))
    known = torch.stack([denoise.matrix(sigma).view(3, 6, 6, 3, 6, 6) for sigma in SIGMA[:2]])
    torch.testing.assert_close(every, known, rtol=1e-6, atol=1e-12)
    pairs = pixel_influence(denoise, x, SIGMA[:2], at=AT, pairs="all")
    for p, (row, col) in enumerate(AT):
        torch.testing.assert_close(pairs[:, p], known[:, :, row, col].abs().sum((1, 2)), rtol=1e-6, atol=1e-12)


def test_finite_differences_agree_on_an_edm2(small_edm2):
    x = noise(2, 3, 8, 8, dtype=torch.float64)
    cond = torch.rand(2, 5, generator=generator(3), dtype=torch.float64)
    sigma = torch.tensor([0.3, 4.0], dtype=torch.float64)
    at = [(1, 2), (7, 0)]
    found = jacobian(small_edm2, x, sigma, cond, at=at)  # (N, P, C out, C in, H, W)
    step = 1e-4
    pushes = step * torch.eye(3 * 8 * 8, dtype=torch.float64).view(-1, 3, 8, 8)

    def probed(n, sign):  # the probes' values for every pushed input value: (3 8 8, P, C)
        with torch.no_grad():
            clean = small_edm2(x[n] + sign * pushes, sigma[n], cond[n].expand(len(pushes), -1))
        return torch.stack([clean[:, :, row, col] for row, col in at], dim=1)

    slopes = torch.stack([(probed(n, 1) - probed(n, -1)) / (2 * step) for n in range(2)])
    slopes = slopes.movedim(1, -1).unflatten(-1, (3, 8, 8))  # (N, P, C out, C in, H, W)
    assert ((found - slopes).norm() / slopes.norm()) <= 1e-6


# -- invariances ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        GradientConfig("vmap"),
        GradientConfig("rows"),
        GradientConfig("loop"),
        GradientConfig("vmap", memory=1 << 14),
        GradientConfig("vmap", checkpoint=True),
    ],
)
def test_every_way_and_every_budget_gives_the_same_numbers(small_edm2, how):
    x, cond = noise(3, 3, 8, 8, dtype=torch.float64), torch.rand(3, 5, generator=generator(3)).double()
    at = [(0, 0), (4, 5), (7, 7)]
    plain = pixel_influence(small_edm2, x, SIGMA, cond, at=at)
    torch.testing.assert_close(pixel_influence(small_edm2, x, SIGMA, cond, at=at, how=how), plain)
    assert small_edm2.checkpointing is False


def live_tensors():
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


@pytest.mark.parametrize("method", ["vmap", "rows", "loop"])
def test_repeated_calls_leave_no_tensors_behind(small_edm2, method):
    x, at = noise(1, 3, 8, 8, dtype=torch.float64), [(5, 6)]
    before = live_tensors()
    for _ in range(3):
        pixel_influence(small_edm2, x, 1.0, None, at=at, how=GradientConfig(method))
    assert live_tensors() == before


def test_tensors_counted_as_saved_still_serve_two_backward_passes(small_edm2):
    """The memory of a forward pass can be measured around one that is used: gradients stay the same."""

    def gradients(clean, x):
        once = torch.autograd.grad(clean.square().sum(), x, retain_graph=True)[0]
        return once, torch.autograd.grad(clean.square().sum(), x, create_graph=True)[0]

    prompt = ProbeRequest(
        small_edm2, noise(1, 3, 8, 8, dtype=torch.float64), torch.ones(1).double(), None, torch.tensor([(5, 6)])
    )
    used = []

    def run(some, x):
        used.append((some.clean(x), x))
        return used[-1][0]

    assert saved_bytes(run, prompt, 1) > prompt.x.nbytes
    measured = gradients(*used.pop())
    x = prompt.x.clone().requires_grad_()
    for found, plain in zip(measured, gradients(prompt.clean(x), x)):
        assert torch.equal(found, plain) and found.abs().sum() > 0


def test_rows_do_not_depend_on_each_other(small_edm2):
    x, cond = noise(3, 3, 8, 8, dtype=torch.float64), torch.rand(3, 5, generator=generator(3)).double()
    together = pixel_influence(small_edm2, x, SIGMA, cond, at=[(3, 3)])
    alone = pixel_influence(small_edm2, x[1:2], SIGMA[1], cond[1:2], at=[(3, 3)])
    torch.testing.assert_close(together[1:2], alone)


def test_autocast_comes_near(small_edm2):
    network = small_edm2
    x, cond = noise(1, 3, 8, 8).double(), torch.zeros(1, 5).double()
    plain = pixel_influence(network, x, 1.0, cond, at=[(3, 3)])
    network.float()
    try:
        with torch.autocast("cpu", torch.bfloat16):
            rough = pixel_influence(network, x.float(), 1.0, cond.float(), at=[(3, 3)])
    finally:
        network.double()
    assert 0 < ((rough - plain).norm() / plain.norm()).item() < 0.1


def test_a_network_whose_backward_cannot_be_batched_gets_one_vector_at_a_time():
    class Stubborn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, pull):
            return torch.from_numpy(2 * pull.detach().numpy())  # leaves torch, so vmap cannot follow

    x = noise(1, 1, 4, 4).requires_grad_()
    product = ProbeProducts(Stubborn.apply(x), x, "auto")
    picks = torch.eye(16).reshape(16, 1, 1, 4, 4)
    assert product.batched and torch.equal(product(picks), 2 * picks) and not product.batched
    found = pixel_influence(lambda x, sigma, cond=None: Stubborn.apply(x), x.detach(), 1.0, at=[(1, 2)])
    assert found[0, 0, 1, 2] == 2 and found.sum() == 2


# -- local by construction -----------------------------------------------------------------------------------


def test_a_patch_does_not_depend_on_pixels_beyond_its_edge_and_one_patch_gives_the_same_numbers_as_all(patchwise):
    x, cond = noise(1, 3, 32, 32), torch.zeros(1, patchwise.cond_dim)
    at = [(5, 9), (31, 0)]
    found = pixel_influence(patchwise, x, 0.7, cond, at=at)
    for p, (row, col) in enumerate(at):
        rows, cols = (torch.arange(32) // patchwise.cell - spot // patchwise.cell for spot in (row, col))
        inside = (rows.abs()[:, None] <= 1) & (cols.abs()[None] <= 1)
        assert (found[0, p][~inside] == 0).all()
        assert (found[0, p][inside] > 0).all()
    whole = pixel_influence(patchwise, x, 0.7, cond, at=at[:1], how=GradientConfig("loop"))
    torch.testing.assert_close(found[:, :1], whole, rtol=1e-4, atol=1e-6)


# -- squares -------------------------------------------------------------------------------------------------


def slow_square(influence, at, share):
    energy = influence.double().square()
    for r in range(max(influence.shape)):
        box = energy[max(at[0] - r, 0) : at[0] + r + 1, max(at[1] - r, 0) : at[1] + r + 1]
        if box.sum() >= share * energy.sum():
            return 2 * r + 1
    raise AssertionError


def test_a_denoiser_around_another_is_measured_itself():
    class Twice(torch.nn.Module):
        def __init__(self, denoiser):
            super().__init__()
            self.denoiser = denoiser

        def forward(self, x, sigma, cond=None):
            return 2 * self.denoiser(x, sigma, cond)

    def plain(x, sigma, cond=None):
        return 0.5 * x

    x = noise(1, 3, 8, 8)
    inner, outer = (pixel_influence(net, x, 1.0, at=[(2, 3)]) for net in (plain, Twice(plain)))
    torch.testing.assert_close(outer, 2 * inner)


def test_the_smallest_square_is_the_one_found_by_trying():
    maps = torch.rand(4, 3, 9, 12, generator=generator()) ** 8
    at = [(0, 0), (4, 11), (5, 6)]
    for share in (0.3, 0.9, 0.999):
        found = smallest_square(maps, at, share)
        assert found.tolist() == [[slow_square(m, p, share) for m, p in zip(row, at)] for row in maps]
    assert smallest_square(torch.zeros(1, 5, 5), [(2, 2)]).tolist() == [1]
    assert smallest_square(torch.ones(1, 5, 5), [(2, 2)], 1.0).tolist() == [5]
    assert total_energy(torch.full((2, 3, 4), 2.0)).tolist() == [48.0, 48.0]


def test_locations_become_pixels():
    assert pixel_of((0.0, 0.999), 10, 20) == Pixel(9, 0)
    assert pixel_of((1.0, 1.0), 10, 20) == Pixel(9, 19)
    assert pixel_of((0.25, 0.65), 32, 32) == Pixel(20, 8)


# -- bad input -----------------------------------------------------------------------------------------------


def identity(x, sigma, cond=None):
    return x * 1


@pytest.mark.parametrize("at", [[(4, 0)], [(0, -1)], [(0, 0), (0, 9)]])
def test_a_probe_outside_the_image_is_refused(at):
    with pytest.raises(UserError, match="lies outside an image of 4 x 4"):
        pixel_influence(identity, noise(1, 1, 4, 4), 1.0, at=at)
    with pytest.raises(UserError, match="lies outside"):
        smallest_square(torch.ones(len(at), 4, 4), at)


@pytest.mark.parametrize("how", [GradientConfig("vmap"), GradientConfig("rows"), GradientConfig("loop")])
def test_a_denoiser_that_detaches_its_input_is_named(how):
    weight = torch.ones((), requires_grad=True)
    for broken in (
        lambda x, sigma, cond=None: x.detach() * 1,
        lambda x, sigma, cond=None: x.detach() * weight,
        torch.no_grad()(identity),
    ):
        with pytest.raises(UserError, match=r"[Gg]radients do not reach the input"):
            pixel_influence(broken, noise(1, 1, 4, 4), 1.0, at=[(0, 0)], how=how)


def test_values_that_are_not_finite_are_refused():
    x = noise(2, 1, 4, 4)
    with pytest.raises(UserError, match="not finite at noise level 2"):
        pixel_influence(
            lambda x, sigma, cond=None: x * (1 / (2 - sigma))[:, None, None, None],
            x,
            torch.tensor([1.0, 2.0]),
            at=[(0, 0)],
        )
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        pixel_influence(identity, x, 1.0, at=[(0, 0)])


def test_doubles_of_a_device_that_has_none_live_on_the_cpu():
    assert double_home(torch.device("mps")) == torch.device("cpu")
    assert double_home(torch.device("cuda:1")) == torch.device("cuda:1")
    assert in_double(torch.ones(2)).dtype == torch.float64


def test_other_nonsense_is_refused():
    with pytest.raises(UserError, match="At least one pixel"):
        pixel_influence(identity, noise(1, 1, 4, 4), 1.0, at=[])
    with pytest.raises(UserError, match="share of the energy"):
        smallest_square(torch.ones(1, 4, 4), [(0, 0)], 1.5)
    with pytest.raises(UserError, match="outside the image"):
        pixel_of((0.5, 1.2), 4, 4)


# -- two outside networks --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outside():
    return runpy.run_path(str(Path(__file__).parents[1] / "models" / "test_contract.py"))


@pytest.fixture(scope="module")
def vit(checkpoints, outside):
    net = outside["DigitViT"]().eval().requires_grad_(False)
    net.load_state_dict(load_file(checkpoints / "sofia_vit_flow_mnist.safetensors"))
    return FromPathEnd(net, data_at=1, shift=0.5, scale=0.5)


@pytest.fixture(scope="module")
def unet(checkpoints, outside):
    net = outside["DigitUNet"]().eval().requires_grad_(False)
    net.load_state_dict(load_file(checkpoints / "franfee_unet_ddpm_mnist.safetensors"))
    return FromNoise(net, linear_alphas(), whole_times=True, shift=0.5, scale=0.5)


@pytest.mark.parametrize("name", ["unet", "vit"])
def test_outside_networks_look_near_at_low_noise_and_far_at_high_noise(name, vit, request):
    denoise = request.getfixturevalue(name)
    digits = sample(vit, torch.arange(6), 28, range(6), channels=1, sigmas=noise_levels(16)).clamp(-1, 1)
    at = [(14, 14), (10, 16), (18, 12)]
    sides = []
    for sigma in (0.05, 5.0):
        x = digits + sigma * noise(*digits.shape)
        influence = pixel_influence(denoise, x, sigma, at=at).mean(0)
        sides.append(smallest_square(influence, at).double().mean().item())
    assert sides[0] <= 7 and sides[1] >= 2 * sides[0], sides
