"""What the verbs for SDXL refuse, in one sentence before anything is loaded."""

import json

import pytest

from programs import call_program, with_set
from tessera.cli.main import main
from tessera.cli.t2i import parse_steps, spread_steps


def run(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(with_set("t2i", *words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


@pytest.mark.parametrize("verb", ["locality", "features"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--dry-run", "--tflops", 0), "--set tflops is a speed above 0, not 0"),
        (("--dry-run", "--tflops", -2), "--set tflops is a speed above 0, not -2"),
        (("--dry-run", "--tflops", "nan"), "tflops"),
        (("--memory", 0), "positive number of GiB, not 0"),
        (("--memory", -1), "positive number of GiB, not -1"),
        (("--memory", "nan"), "memory"),
    ],
)
def test_bad_numbers_are_refused_before_the_model_is_looked_for(capsys, verb, words, sentence):
    code, printed, said = run(capsys, verb, "nowhere", *words)
    assert code == 2 and printed == "" and sentence in said and len(said.strip().splitlines()) == 1


def test_a_pipeline_is_not_written_over_a_file(capsys, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text("{}")
    assert call_program("tiny_pipeline", file) == 2
    assert "is a file" in capsys.readouterr().err and file.read_text() == "{}"


def test_gradients_are_taken_at_the_first_the_middle_and_the_last_step():
    assert spread_steps(50) == "1,25,50"
    assert [parse_steps(spread_steps(steps), steps) for steps in (1, 2, 4)] == [(0,), (0, 1), (0, 1, 3)]


def test_few_steps_and_a_negative_seed_need_no_other_option(capsys, folder):
    quick = ("--steps", 2, "--seeds", 2, "--levels", 1, "--probe", "8,8", "--words", "horse", "--device", "cpu")
    code, printed, _ = run(capsys, "locality", folder, *quick, "--seed", -1, "--json")
    assert code == 0 and json.loads(printed)["seeds"] == [-1, 0]
