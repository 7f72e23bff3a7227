"""Every statement of the theory comes out as documented; deviations are reported."""

import json
from dataclasses import replace

import pytest
import torch

from programs import with_set
from tessera.cli.main import main
from tessera.conditioning import LocationGrid
from tessera.evaluation import Detection
from tessera.models.edm2 import EDM2
from tessera.models.model_folder import save_model
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import study_prompts
from tessera.studies.theory import checks, closed_form, noise_checks
from tessera.studies.theory.check import Trial
from tessera.studies.theory.likeness import SIGMAS, likeness, pearson_r, r_squared

QUICK = Trial(instances=8, conditions=2)


@pytest.fixture(scope="module")
def found():
    return checks.run_checks(QUICK)


def test_every_statement_comes_out_as_documented(found):
    assert [result.check.name for result in found if not result.as_expected] == []


def test_names_are_unique_and_refuted_statements_have_witnesses(found):
    assert len({result.check.name for result in found}) == len(found)
    assert all(result.outcome.witness for result in found if not result.check.expected)


def test_the_published_statements_we_refute_are_these(found):
    assert [result.check.name for result in found if result.check.published and not result.check.expected] == [
        "lemma 1 from definition 2 alone",
        "lemma 2's proof: the local score is that of C*_J[p]",
        "lemma 3's proof: Claim 1 at the maximizing y",
        "lemma 3's proof: sup at t1 := KL at t2",
        "lemma 3 speaks of definition 3's errors",
        "lemma 3, strictly",
        "claim 2",
        "claim 2's proof: heat equation for A#N_t[p]",
    ]


def test_lemma_1_and_corollary_1_are_exact(found):
    exact = {
        result.check.name: result.outcome.error
        for result in found
        if result.check.name.startswith(("lemma 1", "corollary 1"))
    }
    for name in ("lemma 1", "lemma 1, converse", "lemma 1 repaired by wider N", "corollary 1, orthogonal map"):
        assert exact[name] <= 1e-10


def test_as_many_instances_are_tried_as_the_record_says(found):
    named = {result.check.name: result.outcome for result in found}
    for name in ("lemma 1 needs p(x|nothing) to factorize", "lemma 2 with means instead of suprema"):
        assert named[name].instances == QUICK.instances
    bound = named["lemma 2, bound of the relaxation"]
    assert bound.witness["sets J"] == bound.instances * 2**3  # all sets of three conditions


@pytest.mark.parametrize("conditional_first", [False, True])
@pytest.mark.parametrize("noise_on_y", [False, True])
def test_lemma_3_is_refuted_where_noise_is_taken_away(conditional_first, noise_on_y, monkeypatch):
    monkeypatch.setattr(noise_checks, "LEVELS", noise_checks.LEVELS[::-1])
    lemma3 = [check for check in checks.CHECKS if check.measure.startswith("largest rise from one noise level to")]
    outcome = lemma3[2 * conditional_first + noise_on_y].run(Trial(instances=2)).outcome
    assert outcome.holds is False and outcome.error > 1e-3


@pytest.mark.slow
def test_the_full_study_of_six_conditions_and_200_instances():
    assert all(result.as_expected for result in checks.run_checks())


def run(words, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words))
    return leaving.value.code, capsys.readouterr().out


def test_the_record_is_one_json_object(capsys, monkeypatch):
    monkeypatch.setattr(checks, "run_checks", lambda trial, after: [checks.CHECKS[1].run(QUICK)])
    code, out = run(["reproduce", "theory", "--json"], capsys)
    (entry,) = json.loads(out)["checks"]
    assert code == 0 and {"name", "holds", "expected", "error", "instances", "witness"} <= set(entry)
    assert entry["holds"] is False and entry["expected"] is False


def test_a_surprise_leaves_with_one(capsys, monkeypatch):
    result = checks.CHECKS[1].run(QUICK)
    surprising = replace(result, check=replace(result.check, expected=True))
    monkeypatch.setattr(checks, "run_checks", lambda trial, after: [surprising])
    code, out = run(["reproduce", "theory"], capsys)
    assert code == 1 and out.splitlines()[-1] == f"Not as expected: {surprising.check.name}."


def test_bad_numbers_exit_with_code_2(capsys):
    assert run(["reproduce", "theory", "--set", "conditions=0"], capsys)[0] == 2
    assert run(["reproduce", "closed-form", "--set", "scenes=0"], capsys)[0] == 2


def test_correlation_forgives_scale_and_r_squared_does_not():
    truth = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(pearson_r(2 * truth + 1, truth), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(r_squared(truth, truth), torch.ones(3, dtype=torch.float64))
    middle = truth.mean((1, 2, 3), keepdim=True).expand_as(truth)
    assert r_squared(middle, truth).abs().max() < 1e-6 and r_squared(2 * truth, truth).max() < 0.5


def test_a_denoiser_is_like_itself():
    rows = likeness(to_half, to_half, torch.randn(4, 3, 4, 4), torch.zeros(4, 1), torch.zeros(3, 4, 4), (0.5, 2.0))
    assert [row["pearson_r"]["value"] for row in rows] == pytest.approx([1, 1])
    assert [row["r_squared"]["low"] for row in rows] == pytest.approx([1, 1])
    assert [row["beyond_mean"]["r_squared"]["value"] for row in rows] == pytest.approx([1, 1])


def to_half(x, sigma, cond=None):
    return x / 2


@pytest.mark.parametrize("kind", ["local-conditional", "local"])
def test_a_closed_form_is_sampled_and_evaluated(kind, capsys, tmp_path):
    words = f"reproduce closed-form --kind {kind} --scenes 40 --k 1-2 --each 2 --steps 2 --radius 1 --device cpu --json"
    code, out = run([*words.split(), "--out", str(tmp_path)], capsys)
    record = json.loads(out)
    assert code == 0 and [row["n"] for row in record["evaluated"]["rows"]] == [2, 2]
    assert (tmp_path / "ideal.png").exists()
    assert bool(record["agreement"]) == (kind == "local-conditional")


class FixedDetector:
    """Detects one object at a given point of every image, and keeps the images."""

    def __init__(self, x: float, y: float):
        self.detection = Detection(x, y, "red", "cube", "rubber", "large", 1.0, 1.0)
        self.images: list[torch.Tensor] = []

    def detect(self, images):
        self.images.append(images)
        return [[self.detection] for _ in images], torch.zeros(len(images))


def test_images_are_evaluated_with_8_bits_a_channel():
    images, prompts = torch.rand(2, 3, 4, 4), study_prompts(LocationGrid(cells=8), [1], 2, 0)
    detector = FixedDetector(0.6875, 0.6875)
    (counts,) = closed_form.counted(detector, images, prompts)
    assert (counts.k, len(counts.filled)) == (1, 2)
    assert torch.equal(detector.images[0], to_float(to_uint8(images)))


def test_images_are_sampled_in_batches_of_the_given_size():
    made = []
    study = closed_form.ClosedForm(batch=70, steps=1)
    prompts = study_prompts(LocationGrid(cells=8), [1], 75, 0)

    def denoise(x, sigma, cond):
        made.append(len(x))
        return x / 2

    images = study.images(denoise, prompts, LocationGrid(cells=8), 4, torch.device("cpu"))
    assert made == [70, 5] and images.shape == (75, 3, 4, 4)


@pytest.mark.parametrize(("x", "found"), [(0.7375, True), (0.6, False)])
def test_locations_are_compared_with_the_centers_of_their_cells(x, found):
    """The cell of (0.65, 0.65) has its center at 0.6875; a detection counts within 1/16 of it."""
    prompts = study_prompts(LocationGrid(cells=8), [1], 1, 0)
    (counts,) = closed_form.counted(FixedDetector(x, 0.6875), torch.zeros(1, 3, 4, 4), prompts)
    assert bool(counts.filled[0]) == found


@pytest.fixture
def network(tmp_path):
    """The folder of a small untrained model."""
    conditioner = LocationGrid(cells=8)
    network = EDM2(16, cond_dim=conditioner.dim, width=16, mult=(1, 2), blocks=1, attention=(), head_width=16)
    save_model(tmp_path / "net", network, conditioner, {})
    return tmp_path / "net"


def test_the_compared_images_are_not_in_the_data_of_the_closed_form(network, capsys, monkeypatch):
    given = []
    monkeypatch.setattr(closed_form, "likeness", lambda *compared, **_: given.extend(compared) or [])
    words = f"reproduce closed-form {network} --kind empirical --scenes 30 --each 0 --compared 4 --device cpu"
    assert run(words.split(), capsys)[0] == 0
    ideal, _, images, *_ = given
    apart = torch.cdist(images.flatten(1), ideal.data.flatten(1))  # (compared, known)
    assert apart.shape == (4, 30) and apart.min() > 0.5


def test_a_closed_form_is_compared_with_a_network(network, capsys):
    words = f"reproduce closed-form {network} --scenes 30 --each 0 --compared 2 --radius 1"
    code, out = run([*words.split(), "--device", "cpu", "--json"], capsys)
    rows = json.loads(out)["likeness"]
    assert code == 0 and [row["sigma"] for row in rows] == list(SIGMAS)
    assert all(-1 <= row["pearson_r"]["value"] <= 1 and row["r_squared"]["value"] <= 1 for row in rows)
