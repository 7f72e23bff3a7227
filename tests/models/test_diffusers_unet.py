"""Networks and schedulers of diffusers as models: conventions, ways in for conditions, folders."""

import pytest
import torch

import tessera
from tessera.conditioning import ColorCounts, Conditioner, LocationGrid, LocationList
from tessera.conditioning.unconditional import Unconditional
from tessera.errors import UserError

diffusers = pytest.importorskip("diffusers")
SMALL = {"block_out_channels": (8,), "norm_num_groups": 4, "layers_per_block": 1}
PLAIN = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
CROSS = {
    "down_block_types": ("CrossAttnDownBlock2D",),
    "up_block_types": ("CrossAttnUpBlock2D",),
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "attention_head_dim": 4,
}


def small_unet(channels=3, **options):
    torch.manual_seed(0)
    return diffusers.UNet2DModel(16, in_channels=channels, out_channels=3, **SMALL, **PLAIN, **options).eval()


def small_cross_unet(**options):
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(16, in_channels=3, out_channels=3, **SMALL, **CROSS, **options).eval()


SCHEDULES = ["linear", "scaled_linear", "squaredcos_cap_v2"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_the_clean_image_is_that_of_the_scheduler(schedule, kind):
    """Our denoiser at the sigma of time t gives the `pred_original_sample` of DDIM there."""
    unet = small_unet()
    scheduler = diffusers.DDIMScheduler(beta_schedule=schedule, prediction_type=kind, clip_sample=False)
    scheduler.set_timesteps(1000)
    model = tessera.from_diffusers(unet, scheduler, Unconditional())
    for time in (20, 300, 900):
        alpha = scheduler.alphas_cumprod[time].double()
        mixed = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(time))
        with torch.no_grad():
            expected = scheduler.step(unet(mixed, time).sample, time, mixed).pred_original_sample
            clean = model(mixed / alpha.sqrt().float(), ((1 - alpha) / alpha).sqrt().float())
        assert torch.allclose(clean, expected, atol=1e-3 * expected.abs().max())


def test_a_flow_matching_scheduler_means_velocity_from_image_to_noise():
    unet = small_unet()
    model = tessera.from_diffusers(unet, diffusers.FlowMatchEulerDiscreteScheduler(), Unconditional())
    mixed, share = torch.randn(1, 3, 16, 16), 0.4  # x_t = (1 - t) clean + t noise
    with torch.no_grad():
        expected = mixed - share * unet(mixed, torch.tensor([400.0])).sample
        clean = model(mixed / (1 - share), share / (1 - share))
    assert torch.allclose(clean, expected, atol=1e-5)


def test_a_schedule_without_signal_at_its_end_is_understood():
    scheduler = diffusers.DDIMScheduler(rescale_betas_zero_snr=True, prediction_type="v_prediction")
    model = tessera.from_diffusers(small_unet(), scheduler, Unconditional())
    assert model.sample([], steps=3).isfinite().all()


WAYS_IN = {
    "extra channels": (lambda: small_unet(channels=4), LocationGrid(cells=8)),
    "three extra channels": (lambda: small_unet(channels=6), LocationList(cells=8)),
    "cross-attention, one token": (lambda: small_cross_unet(cross_attention_dim=64), LocationGrid(cells=8)),
    "cross-attention, one token per slot": (lambda: small_cross_unet(cross_attention_dim=3), LocationList(slots=4)),
    "class vector": (
        lambda: small_cross_unet(
            cross_attention_dim=8, class_embed_type="simple_projection", projection_class_embeddings_input_dim=8
        ),
        ColorCounts(),
    ),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_the_condition_enters_where_the_config_has_room_for_it(way):
    make, conditioner = WAYS_IN[way]
    model = tessera.from_diffusers(make(), diffusers.DDPMScheduler(), conditioner)
    x = torch.randn(2, 3, 16, 16)
    prompts = ["red"] if isinstance(conditioner, ColorCounts) else [(0.3, 0.3)]
    empty, one = (model(x, 1.0, conditioner.at(wanted).expand(2, -1)) for wanted in ([], prompts))
    assert not torch.allclose(empty, one)
    assert torch.equal(empty, model(x, 1.0))  # no condition is the empty prompt


class Digit(Conditioner):
    """One number per image: the class."""

    dim = 1

    def at(self, wanted, device=None):
        return torch.tensor([[float(wanted[0]) if len(wanted) else 0.0]], device=device)

    def conditions(self, cond):
        return [[int(number)] for number in cond[:, 0]]


def test_a_condition_of_one_number_is_the_class():
    unet = small_unet(num_class_embeds=5)
    model = tessera.from_diffusers(unet, diffusers.DDPMScheduler(), Digit())
    x, time = torch.randn(1, 3, 16, 16), 500
    alpha = diffusers.DDPMScheduler().alphas_cumprod[time]
    with torch.no_grad():
        noise = unet(x * alpha.sqrt(), time, class_labels=torch.tensor([3])).sample
    sigma = ((1 - alpha) / alpha).sqrt()
    assert torch.allclose(model(x, sigma, torch.tensor([[3.0]])), x - sigma * noise, atol=1e-3 * sigma)


def test_a_conditioner_may_decide_itself_how_it_enters():
    class Tokens(Digit):
        def unet_inputs(self, cond):
            return {"encoder_hidden_states": cond[:, None].expand(-1, 2, 8)}

    model = tessera.from_diffusers(small_cross_unet(cross_attention_dim=8), diffusers.DDPMScheduler(), Tokens())
    x = torch.randn(1, 3, 16, 16)
    assert not torch.allclose(model(x, 1.0, torch.tensor([[1.0]])), model(x, 1.0, torch.tensor([[9.0]])))


@pytest.mark.parametrize(
    ("make", "conditioner", "sentence"),
    [
        (lambda: small_unet(channels=5), LocationGrid(), "2 extra channels"),
        (lambda: small_unet(), LocationGrid(), "no way into this network"),
        (lambda: small_unet(num_class_embeds=4), LocationGrid(), "one class per image"),
        (lambda: small_cross_unet(cross_attention_dim=7), LocationGrid(), "no way into this network"),
    ],
)
def test_a_conditioner_that_does_not_fit_is_one_sentence(make, conditioner, sentence):
    with pytest.raises(UserError, match=sentence):
        tessera.from_diffusers(make(), diffusers.DDPMScheduler(), conditioner)


def test_latent_networks_and_other_schedulers_are_refused():
    latent = diffusers.UNet2DModel(16, in_channels=4, out_channels=4, **SMALL, **PLAIN)
    with pytest.raises(UserError, match="use the verbs `tessera t2i`"):
        tessera.from_diffusers(latent, diffusers.DDPMScheduler(), Unconditional())
    with pytest.raises(UserError, match="none of flow matching"):
        tessera.from_diffusers(small_unet(), object(), Unconditional())


@pytest.mark.parametrize("layout", ["pipeline", "flat"])
def test_a_folder_of_diffusers_is_loaded_with_a_conditioner(tmp_path, layout):
    unet, scheduler = small_unet(channels=4), diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2")
    unet.save_pretrained(tmp_path / "unet" if layout == "pipeline" else tmp_path)
    scheduler.save_pretrained(tmp_path / "scheduler" if layout == "pipeline" else tmp_path)
    direct = tessera.from_diffusers(unet, scheduler, LocationGrid())
    for conditioner in ("grid", LocationGrid(), LocationGrid, "tessera.conditioning:LocationGrid"):
        model = tessera.load(tmp_path, conditioner=conditioner)
        assert torch.allclose(model.sample([(0.5, 0.5)], steps=2), direct.sample([(0.5, 0.5)], steps=2), atol=1e-5)
    with pytest.raises(UserError, match="name a conditioner, such as --conditioner grid"):
        tessera.load(tmp_path)


def test_a_folder_without_a_scheduler_or_with_pickled_weights_is_refused(tmp_path):
    unet = small_unet()
    unet.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no scheduler_config"):
        tessera.load(tmp_path, conditioner="nothing")
    diffusers.DDPMScheduler().save_pretrained(tmp_path)
    (tmp_path / "diffusion_pytorch_model.safetensors").unlink()
    torch.save(unet.state_dict(), tmp_path / "diffusion_pytorch_model.bin")
    with pytest.raises(UserError, match="could not be read"):
        tessera.load(tmp_path, conditioner="nothing")


def test_a_diffusers_model_on_the_hub_is_fetched_and_loaded(tmp_path, monkeypatch):
    small_unet(channels=4).save_pretrained(tmp_path)
    diffusers.DDPMScheduler().save_pretrained(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **options: str(tmp_path))
    assert tessera.load("someone/ddpm", conditioner="grid").size == 16
