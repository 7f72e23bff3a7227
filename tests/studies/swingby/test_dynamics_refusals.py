"""Bad arguments of the `dynamics` verbs are refused in one sentence before any computation."""

import json

import numpy as np
import pytest

from programs import with_set
from tessera.cli.main import main
from tessera.errors import UserError
from tessera.studies.swingby.analysis import check_threshold
from tessera.studies.swingby.integrate import step_count
from tessera.studies.swingby.starts import gaussian_factors


def leave(*words) -> int | None:
    with pytest.raises(SystemExit) as leaving:
        main(with_set("dynamics", *words))
    return leaving.value.code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--threshold", "-1"], "share of the first error"),
        (["run", "--threshold", "nan"], "threshold"),
        (["run", "--width", "0"], "The width must be at least 1, not 0"),
        (["run", "--model", "deep", "--start", "default", "--width", "0"], "The width must be at least 1"),
        (["run", "--time", "0"], "The time to run must be positive"),
        (["run", "--time", "inf"], "time"),
        (["run", "--time", "1e308"], "The time to run must be positive and finite"),
        (["run", "--model", "mlp", "--time", "-1"], "The time to run must be positive"),
        (["run", "--model", "mlp", "--samples", "0"], "samples"),
        (["run", "--model", "mlp", "--batch", "0"], "batch size"),
        (["sweep", "--threshold", "-1"], "share of the first error"),
        (["sweep", "--width", "0"], "The width must be at least 1, not 0"),
        (["sweep", "--x-range", "nan,1"], "--x-range takes a finite number"),
        (["sweep", "--y-range", "low,1"], "`low,1` is no list of numbers"),
    ],
)
def test_bad_numbers_are_refused_in_one_sentence(capsys, words, sentence):
    assert leave(*words) == 2
    said = capsys.readouterr()
    assert said.out == "" and sentence in said.err and len(said.err.strip().splitlines()) == 1


def test_python_is_refused_what_the_command_line_is():
    with pytest.raises(UserError, match="threshold"):
        check_threshold(float("nan"))
    with pytest.raises(UserError, match="time to run"):
        step_count(float("inf"), 0.1)


def test_any_whole_number_is_a_seed(capsys):
    quick = ("--model", "mlp", "--samples", "8", "--time", "0.2", "--json")
    assert leave("run", "--seed", "-1", *quick) in (0, None)
    assert json.loads(capsys.readouterr().out)["seed"] == -1
    assert leave("run", "--start", "gaussian", "--seed", str(-(10**30)), "--time", "1", "--json") in (0, None)


def test_seeds_that_were_always_taken_give_the_same_starts():
    drawn = gaussian_factors([0, 7, 2**40], 1.0, (2, 3))
    known = [np.random.default_rng(seed).standard_normal((2, 3)) for seed in (0, 7, 2**40)]
    assert (drawn == np.stack(known)).all()
