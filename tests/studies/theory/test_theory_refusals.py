"""Bad arguments of `reproduce closed-form` are refused in one sentence before any scene is rendered."""

import json

import pytest

from programs import with_set
from tessera.cli.main import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(with_set("reproduce", *words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--most", -1), "most must be at least 0, not -1"),
        (("--most", 3), "most must be 0 or at least 8, which is least, not 3"),
        (("--least", 0), "least must be at least 1, not 0"),
        (("--batch", 0), "batch must be at least 1, not 0"),
        (("--reach", -2), "reach must be at least -1, not -2"),
        (("--radius", -1), "radius must be at least 0, not -1"),
        (("--scenes", 0), "scenes must be at least 1, not 0"),
        (("--each", -1), "each must be at least 0, not -1"),
        (("--each", 0), "there is nothing to do"),
        (("--compared", 1), "compared must be at least 2, not 1"),
        (("--steps", 0), "at least one step, not 0"),
        (("--sigma-min", -1), "sigma_min"),
    ],
)
def test_bad_numbers_are_refused_in_one_sentence(capsys, words, sentence):
    code, printed, said = run(capsys, "closed-form", *words)
    assert code == 2 and printed == "" and sentence in said and len(said.strip().splitlines()) == 1


def test_any_whole_number_is_a_seed(capsys):
    quick = ("--scenes", 12, "--each", 1, "--k", 1, "--size", 16, "--steps", 2, "--least", 1, "--device", "cpu")
    code, printed, _ = run(capsys, "closed-form", *quick, "--seed", -1, "--json")
    assert code == 0 and json.loads(printed)["seed"] == -1
    code, _, _ = run(capsys, "theory", "--instances", 2, "--conditions", 1, "--seed", -1)
    assert code == 0
