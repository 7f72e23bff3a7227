"""Every statement of the theory comes out as the documentation says; surprises are noticed."""

import json
from dataclasses import replace

import pytest
import torch

from tessera.cli import closed_form as ideal_verb
from tessera.cli import theory as verbs
from tessera.cli.main import main
from tessera.conditioning import LocationGrid
from tessera.models.edm2 import EDM2
from tessera.models.model_folder import save_model
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import study_prompts
from tessera.studies.theory import checks, noise_checks
from tessera.studies.theory.check import Trial
from tessera.studies.theory.likeness import SIGMAS, likeness, pearson_r, r_squared

QUICK = Trial(instances=8, conditions=2)


@pytest.fixture(scope="module")
def found():
    return checks.run_checks(QUICK)


def test_every_statement_comes_out_as_we_say(found):
    assert [check.name for check in found if not check.as_expected] == []


def test_names_are_unique_and_refuted_statements_have_witnesses(found):
    assert len({check.name for check in found}) == len(found)
    assert all(check.witness for check in found if not check.expected)


def test_the_published_statements_we_refute_are_these(found):
    assert [check.name for check in found if check.published and not check.expected] == [
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
    exact = {check.name: check.error for check in found if check.name.startswith(("lemma 1", "corollary 1"))}
    for name in (
        "lemma 1",
        "lemma 1, converse",
        "lemma 1 repaired by wider N",
        "corollary 1, orthogonal map",
    ):
        assert exact[name] <= 1e-10


def test_as_many_instances_are_tried_as_the_record_says(found):
    named = {check.name: check for check in found}
    for name in ("lemma 1 needs p(x|nothing) to factorize", "lemma 2 with means instead of suprema"):
        assert named[name].instances == QUICK.instances
    bound = named["lemma 2, bound of the relaxation"]
    assert bound.witness["sets J"] == bound.instances * 2**3  # all sets of three conditions


@pytest.mark.parametrize("conditional_first", [False, True])
@pytest.mark.parametrize("noise_on_y", [False, True])
def test_lemma_3_is_refuted_where_noise_is_taken_away(conditional_first, noise_on_y, monkeypatch):
    monkeypatch.setattr(noise_checks, "LEVELS", noise_checks.LEVELS[::-1])
    check = noise_checks.lemma3(Trial(instances=2), conditional_first, noise_on_y)
    assert check.holds is False and check.error > 1e-3


@pytest.mark.slow
def test_the_full_study_of_six_conditions_and_200_instances():
    assert all(check.as_expected for check in checks.run_checks(Trial()))


def run(words, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(words)
    return leaving.value.code, capsys.readouterr().out


def test_the_record_is_one_json_object(capsys, monkeypatch):
    monkeypatch.setattr(verbs, "run_checks", lambda trial, after: [checks.RUNNERS[1](QUICK)])
    code, out = run(["theory", "check", "--json"], capsys)
    (entry,) = json.loads(out)["checks"]
    assert code == 0 and {"name", "holds", "expected", "error", "instances", "witness"} <= set(entry)
    assert entry["holds"] is False and entry["expected"] is False


def test_a_surprise_leaves_with_one(capsys, monkeypatch):
    surprising = replace(checks.RUNNERS[1](QUICK), expected=True)
    monkeypatch.setattr(verbs, "run_checks", lambda trial, after: [surprising])
    code, out = run(["theory", "check"], capsys)
    assert code == 1 and out.splitlines()[-1] == f"Not as expected: {surprising.name}."


def test_nonsense_is_told_in_a_sentence(capsys):
    assert run(["theory", "check", "--conditions", "0"], capsys)[0] == 2
    assert run(["theory", "ideal", "--scenes", "0"], capsys)[0] == 2


def test_correlation_forgives_scale_and_r_squared_does_not():
    truth = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(pearson_r(2 * truth + 1, truth), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(r_squared(truth, truth), torch.ones(3, dtype=torch.float64))
    middle = truth.mean((1, 2, 3), keepdim=True).expand_as(truth)
    assert r_squared(middle, truth).abs().max() < 1e-6 and r_squared(2 * truth, truth).max() < 0.5


def test_a_denoiser_is_like_itself():
    rows = likeness(halved, halved, torch.randn(4, 3, 4, 4), torch.zeros(4, 1), sigmas=(0.5, 2.0))
    assert [row["pearson_r"]["mean"] for row in rows] == pytest.approx([1, 1])
    assert [row["r_squared"]["low"] for row in rows] == pytest.approx([1, 1])


def halved(x, sigma, cond=None):
    return x / 2


@pytest.mark.parametrize("kind", ["local-conditional", "local"])
def test_a_formula_is_sampled_and_evaluated(kind, capsys, tmp_path):
    words = (
        f"theory ideal --kind {kind} --scenes 40 --k 1-2 --each 2 --steps 2 --radius 1 --device cpu --json"
    )
    code, out = run([*words.split(), "--out", str(tmp_path)], capsys)
    record = json.loads(out)
    assert code == 0 and [row["n"] for row in record["evaluated"]["rows"]] == [2, 2]
    assert (tmp_path / "ideal.png").exists()
    assert bool(record["agreement"]) == (kind == "local-conditional")


def test_the_detector_sees_images_as_a_file_holds_them_in_batches_as_asked(monkeypatch):
    """As in every other evaluation: 8 bits a channel."""
    seen, made = [], []

    class Looker:
        def find(self, images):
            seen.append(images)
            return [[] for _ in images]

        def match(self, detections, targets):
            return None

    monkeypatch.setattr(ideal_verb.Counts, "of", lambda k, found: (k, len(found)))
    images, prompts = torch.rand(2, 3, 4, 4), study_prompts(LocationGrid(cells=8), [1], 2, 0)
    assert ideal_verb.counted(Looker(), images, prompts) == [(1, 2)]
    assert torch.equal(seen[0], to_float(to_uint8(images)))

    monkeypatch.setattr(
        ideal_verb, "sample", lambda *given, batch=64, **_: made.append(batch) or torch.zeros(0)
    )
    verb = ideal_verb.TheoryIdeal(batch=70)
    prompts = study_prompts(LocationGrid(cells=8), [1], 70, 0)
    list(verb.images(halved, prompts, LocationGrid(cells=8), 4, torch.device("cpu")))
    assert made == [70]


def test_objects_are_looked_for_where_the_model_was_told_to_put_them(monkeypatch):
    """A grid tells the center of a cell, not where in the cell one points."""
    sought = []

    class Seeker:
        def find(self, images):
            return [[] for _ in images]

        def match(self, detections, locations):
            sought.append(locations)

    monkeypatch.setattr(ideal_verb.Counts, "of", lambda k, found: None)
    ideal_verb.counted(Seeker(), torch.zeros(1, 3, 4, 4), study_prompts(LocationGrid(cells=8), [1], 1, 0))
    assert sought == [((0.6875, 0.6875),)]  # of cell 5, for the location (0.65, 0.65)


@pytest.fixture
def network(tmp_path):
    """The folder of a small untrained model."""
    conditioner = LocationGrid(cells=8)
    network = EDM2(16, cond_dim=conditioner.dim, width=16, mult=(1, 2), blocks=1, attention=(), head_width=16)
    save_model(tmp_path / "net", network, conditioner, {})
    return tmp_path / "net"


def test_images_the_two_are_compared_on_are_not_those_the_formula_knows(network, capsys, monkeypatch):
    given = []
    monkeypatch.setattr(ideal_verb, "likeness", lambda *told, **_: given.extend(told) or [])
    words = f"theory ideal --model {network} --kind empirical --scenes 30 --each 0 --compared 4 --device cpu"
    assert run(words.split(), capsys)[0] == 0
    ideal, _, images, _ = given
    apart = torch.cdist(images.flatten(1), ideal.images.flatten(1))  # (compared, known)
    assert apart.shape == (4, 30) and apart.min() > 0.5


def test_a_formula_is_set_beside_a_network(network, capsys):
    words = f"theory ideal --model {network} --scenes 30 --each 0 --compared 2 --radius 1"
    code, out = run([*words.split(), "--device", "cpu", "--json"], capsys)
    rows = json.loads(out)["likeness"]
    assert code == 0 and [row["sigma"] for row in rows] == list(SIGMAS)
    assert all(-1 <= row["pearson_r"]["mean"] <= 1 and row["r_squared"]["mean"] <= 1 for row in rows)
