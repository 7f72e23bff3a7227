"""What `features` does not take, refused in one sentence; and what it does."""

import json

import pytest

from programs import with_set
from tessera.cli.main import main

QUICK = ("--seeds", 2, "--steps", 2, "--sigmas", 10, "--k", 2, "--nulls", 1, "--device", "cpu")


def run(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(with_set("features", *words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


@pytest.mark.parametrize("memory", [0, -1, "nan"])
def test_a_budget_of_memory_is_a_positive_number(capsys, color_model, memory):
    code, printed, said = run(capsys, color_model, "--memory", memory)
    assert code == 2 and printed == "" and "emory" in said and len(said.strip().splitlines()) == 1


def test_any_whole_number_is_a_seed(capsys, color_model):
    code, printed, _ = run(capsys, color_model, *QUICK, "--at", "output", "--seed", -1, "--json")
    assert code == 0 and json.loads(printed)["seed"] == -1


def test_the_help_names_a_default_once(capsys):
    _, text, _ = run(capsys, "--help")
    assert "all modulation layers" in " ".join(text.split()) and "*.scale" not in text
