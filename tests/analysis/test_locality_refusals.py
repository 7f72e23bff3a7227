"""What `locality` and its neighbors do not take, refused in one sentence before anything is loaded."""

import json
import math

import pytest

from programs import with_set
from tessera.analysis.pixel_influence import memory_bytes
from tessera.cli.main import main
from tessera.conditioning import LocationGrid
from tessera.errors import UserError
from tessera.models.model_folder import save_model


def run(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


def test_a_budget_of_memory_is_positive_and_finite():
    assert memory_bytes(1.5) == 3 * 2**29 and memory_bytes(1e-12) == 1
    for gib in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="positive number of GiB"):
            memory_bytes(gib)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("locality", "nowhere", "--memory", 0), "positive number of GiB, not 0"),
        (("locality", "nowhere", "--memory", -1), "positive number of GiB, not -1"),
        (("locality", "nowhere", "--memory", "nan"), "memory"),
        (("locality", "nowhere", "--rows", 0), "At least one image is denoised at a time, not 0"),
        (("reproduce", "fig12", "--cifar", "nowhere", "--memory", -1), "positive number of GiB, not -1"),
    ],
)
def test_bad_numbers_are_refused_in_one_sentence(capsys, words, sentence):
    code, printed, said = run(capsys, *words)
    assert code == 2 and printed == "" and sentence in said and len(said.strip().splitlines()) == 1


def test_any_whole_number_is_a_seed(capsys, tiny_edm2, tmp_path):
    model = save_model(tmp_path / "untrained", tiny_edm2, LocationGrid(), {})
    quick = ("--k", 2, "--images", 2, "--levels", 2, "--steps", 2, "--scenes", 2, "--device", "cpu")
    code, printed, _ = run(capsys, "locality", model, *quick, "--residual", "--seed", -1, "--json")
    assert code == 0 and json.loads(printed)["studies"][1]["seed"] == -1
