"""From seeds to images: what an image may depend on, and what not."""

import pytest
import torch
from torch import nn

from programs import with_set
from tessera.cli.main import main
from tessera.conditioning import LocationGrid
from tessera.config import settings_for
from tessera.errors import UserError
from tessera.files import read_json, write_json
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.edm2 import EDM2
from tessera.models.model_folder import load_model, save_model
from tessera.render.image_io import load_png, to_uint8
from tessera.sampling import euler, noise_levels, sample, sample_batches, seeded_noise
from tessera.sampling import sample_folder as verbs
from tessera.sampling.compose import compose_by_name
from tessera.sampling.prompts import parse_ks, study_prompts
from tessera.sampling.sample import home
from tessera.sampling.schedule import churn_noise


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = EDM2(8, cond_dim=3, width=8, mult=(1, 2), blocks=1, attention=(4,), head_width=8).eval()
    net.out_gain.data.fill_(0.5)
    return net


def test_an_image_does_not_depend_on_its_batch(net):
    cond = torch.eye(3)[torch.tensor([0, 1, 2, 0, 1])]
    together = sample(net, cond, 8, [5, 6, 7, 8, 9], sigmas=noise_levels(4))
    in_pairs = sample(net, cond, 8, [5, 6, 7, 8, 9], sigmas=noise_levels(4), batch=2)
    alone = sample(net, cond[3:4], 8, [8], sigmas=noise_levels(4))
    torch.testing.assert_close(together, in_pairs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together[3:4], alone, rtol=1e-4, atol=1e-5)
    assert together.shape == (5, 3, 8, 8)


def test_seeds_make_images():
    noise = seeded_noise([3, 4, 3], (2, 5, 5))
    assert torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], noise[1])
    assert torch.equal(seeded_noise(torch.tensor([4]), (2, 5, 5))[0], noise[1])


def test_seeded_noise_is_standard_normal():
    noise = seeded_noise(range(200), (3, 16, 16))
    assert abs(noise.mean().item()) < 0.01
    assert noise.std().item() == pytest.approx(1, abs=0.01)


def test_one_condition_serves_all_seeds(net):
    cond = torch.tensor([[1.0, 0.0, 2.0]])
    one = sample(net, cond, 8, [1, 2], sigmas=noise_levels(3))
    each = sample(net, cond.expand(2, -1), 8, [1, 2], sigmas=noise_levels(3))
    assert torch.equal(one, each)


def test_batches_are_solved_one_after_another(net):
    options = {"batch": 2, "sigmas": noise_levels(3), "solver": euler}
    batches = [list(steps) for steps in sample_batches(net, None, 8, [1, 2, 3], **options)]
    assert [len(steps) for steps in batches] == [4, 4]
    out = sample(net, None, 8, [1, 2, 3], **options)
    assert torch.equal(out, torch.cat([steps[-1].x for steps in batches]))


def test_any_denoiser_will_do():
    images = sample(lambda x, sigma, cond=None: torch.full_like(x, 0.25), None, 4, [1], channels=1)
    torch.testing.assert_close(images, torch.full((1, 1, 4, 4), 0.25), rtol=0, atol=1e-3)


def test_no_seeds_make_no_images(net):
    assert sample(net, None, 8, []).shape == (0, 3, 8, 8)


def test_sampling_leaves_no_graph_behind(net):
    assert not sample(net, None, 8, [1], sigmas=noise_levels(2)).requires_grad


def test_a_network_decides_where_images_are_made():
    class Far(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros((), device="meta"))

        def forward(self, x, sigma, cond=None):
            return x

    assert sample(Far(), None, 4, [1], sigmas=noise_levels(1)).device.type == "meta"


def test_conditions_and_seeds_must_fit(net):
    with pytest.raises(UserError, match="2 conditions for 3 seeds"):
        sample(net, torch.zeros(2, 3), 8, [1, 2, 3])


# -- the verb ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def location_model(tmp_path_factory):
    """A model folder whose network is awake and sees everything."""
    settings = settings_for("exp1", "tiny", {"data": {"size": 16}, "denoiser": {"width": 8}})
    network = build_denoiser(settings).requires_grad_(False)
    for name, parameter in network.named_parameters():
        if name.endswith("gain"):
            parameter.fill_(0.7)
    config = {"settings": settings.plain()}
    return save_model(tmp_path_factory.mktemp("models") / "exp1", network, conditioner_for(settings), config)


LOCATIONS = ((0.1, 0.1), (0.8, 0.7))


@pytest.fixture
def by_verb(location_model, tmp_path):
    """`by_verb("--s-churn", 20)`: the image that `tessera sample` makes, and its record."""

    def run(*words):
        given = ["--locations", "0.1,0.1 0.8,0.7", "--each", "1", "--steps", "2", "--device", "cpu"]
        with pytest.raises(SystemExit) as left:
            main(with_set("sample", location_model, *given, "--out", tmp_path, *words))
        assert left.value.code == 0
        return load_png(tmp_path / "k02" / "0000.png"), read_json(tmp_path / "samples.json")

    return run


@pytest.mark.parametrize("name", ["../victim.txt", "{tmp}/victim.txt", "linked/victim.txt", "link.txt"])
def test_a_record_that_names_files_outside_its_folder_deletes_nothing(location_model, tmp_path, capfd, name):
    out, victim = tmp_path / "out", tmp_path / "victim.txt"
    out.mkdir()
    victim.write_text("precious")
    (out / "linked").symlink_to(tmp_path)
    (out / "link.txt").symlink_to(victim)
    (out / "mine.png").touch()
    names = ["mine.png", name.replace("{tmp}", str(tmp_path))]
    write_json(out / "samples.json", {"images": [{"file": name} for name in names]})
    with pytest.raises(SystemExit) as left:
        main(
            ["sample", str(location_model), "--locations", "0.1,0.1", "--each", "1", "--steps", "2", "--out", str(out)]
        )
    said = capfd.readouterr().err
    assert left.value.code == 2 and "not a file inside that folder" in said and said.count("\n") == 1
    assert victim.read_text() == "precious" and (out / "mine.png").exists() and (out / "link.txt").is_symlink()


def test_an_image_is_not_written_through_a_link_that_leads_away(by_verb, tmp_path):
    by_verb()
    (tmp_path / "k02" / "0000.png").unlink()
    victim = tmp_path.parent / f"{tmp_path.name}-victim.png"
    (tmp_path / "k02" / "0000.png").symlink_to(victim)
    with pytest.raises(AssertionError):  # of the exit code
        by_verb()
    assert not victim.exists()


@pytest.mark.parametrize("record", [[], {"images": [3]}, {"images": 3}, {"images": [{}]}])
def test_a_broken_record_is_refused_in_one_sentence(record, location_model, tmp_path, capfd):
    write_json(tmp_path / "samples.json", record)
    with pytest.raises(SystemExit) as left:
        main(["sample", str(location_model), "--locations", "0.1,0.1", "--out", str(tmp_path)])
    assert left.value.code == 2 and "is not what `tessera sample` writes" in capfd.readouterr().err


@pytest.fixture
def by_hand(location_model):
    """The same by the library; `denoise` may stand in for the model's network."""
    model = load_model(location_model)

    def run(seed, denoise=model.denoiser, **more):
        return to_uint8(sample(denoise, model.conditioner.at(LOCATIONS), 16, [seed], sigmas=noise_levels(2), **more))[0]

    return run


@pytest.mark.parametrize("how", ["sum", "project", "localize"])
def test_the_verb_composes_as_the_library_does(location_model, by_verb, by_hand, how):
    model = load_model(location_model)
    (plain, _), (composed, record) = by_verb(), by_verb("--compose", how, "--radius", "1")
    seed = record["images"][0]["seed"]
    assert torch.equal(plain, by_hand(seed))
    assert torch.equal(composed, by_hand(seed, compose_by_name(model.denoiser, model.conditioner, how, radius=1)))
    assert not torch.equal(plain, composed) and record["compose"] == how


def test_the_verb_adds_noise_as_the_library_does(by_verb, by_hand):
    (plain, _), (noisy, record) = by_verb(), by_verb("--s-churn", 20)
    assert torch.equal(noisy, by_hand(record["images"][0]["seed"], s_churn=20))
    assert not torch.equal(plain, noisy) and record["s_churn"] == 20


def test_the_record_has_the_precision_and_the_batch_its_size(by_verb, monkeypatch):
    sizes = []
    real = verbs.sample

    def spy(denoise, cond, size, seeds, **options):
        def counted(x, *rest, **more):
            sizes.append(len(x))
            return denoise(x, *rest, **more)

        return real(counted, cond, size, seeds, **options)

    monkeypatch.setattr(verbs, "sample", spy)
    _, record = by_verb("--each", 70, "--batch", 70)
    assert record["precision"] == "float32" and set(sizes) == {70}


@pytest.mark.parametrize(
    ("words", "sentence"), [(["--batch", "0"], "At least one image"), (["--k", "1"], "leave it out")]
)
def test_prompts_that_cannot_be_met_are_refused(location_model, capfd, tmp_path, words, sentence):
    with pytest.raises(SystemExit) as left:
        main(with_set("sample", location_model, "--locations", "0.5,0.5", "--out", tmp_path / "o", *words))
    assert left.value.code == 2 and sentence in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "o").exists()


def test_a_repeated_k_counts_once():
    assert parse_ks("3,1-3,2") == [3, 1, 2]


def test_images_are_made_where_a_loaded_model_lives(location_model):
    model = load_model(location_model)
    model.denoiser.to("meta")
    assert home(model, model.conditioner.at(LOCATIONS)) == torch.device("meta")


def test_a_number_of_threads_is_not_negative(location_model, capfd, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["sample", str(location_model), "--threads", "-1", "--out", str(tmp_path)])
    assert left.value.code == 2 and "not negative" in capfd.readouterr().err


def test_fresh_noise_belongs_to_the_image_and_not_to_its_batch():
    def toward_zero(x, sigma, cond=None):
        return x * 0.25 / (0.25 + sigma**2)

    ways = {"size": 8, "cond": None, "sigmas": noise_levels(6)}
    together = sample(toward_zero, seeds=[1, 2, 3], s_churn=20, **ways)
    alone = sample(toward_zero, seeds=[3], s_churn=20, **ways)
    calm = sample(toward_zero, seeds=[3], **ways)
    assert torch.equal(together[2:], alone) and not torch.allclose(alone, calm, atol=0.1)
    assert not torch.allclose(together[0], together[1], atol=0.1)
    far = [sample(toward_zero, seeds=[seed], s_churn=20, **ways) for seed in (2**70, 2**70 + 2**65, -1)]
    assert len({image.sum().item() for image in far}) == 3  # any whole number is a seed
    with pytest.raises(UserError, match="cannot be negative"):
        sample(toward_zero, seeds=[1], s_churn=-1, **ways)


def test_every_step_has_fresh_noise_of_its_own():
    x = torch.zeros(1, 3, 16, 16)
    first, second, again = (churn_noise([5])(step, x) for step in (0, 1, 0))
    assert torch.equal(first, again)
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.2


def test_every_image_of_a_study_has_a_seed_of_its_own():
    prompts = [one for seed in (0, 1) for one in study_prompts(LocationGrid(), list(range(13)), 4, seed)]
    assert len({one.seed for one in prompts}) == len(prompts) == 2 * 13 * 4
