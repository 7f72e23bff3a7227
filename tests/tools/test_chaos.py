"""The attacks of `make chaos`, a few of each: what a full run must show, these must show too."""

import json
import random

import pytest

from chaos_parts.mutate import damage
from programs import call_program


def test_damages_are_the_same_for_the_same_number(tmp_path):
    file = tmp_path / "record.json"
    seen = []
    for _ in range(2):
        file.write_text(json.dumps({"kind": "points", "points": [{"k_max": n} for n in range(5)]}))
        damage(file, "json", random.Random(3))
        seen.append(file.read_bytes())
    assert seen[0] == seen[1]


def found_by(capfd, *words):
    left = call_program("chaos", *words, "--workers", 1, "--json")
    record = json.loads(capfd.readouterr().out)
    assert [one for part in record.values() for one in part["failures"]] == [] and left == 0
    return record


def test_a_share_of_the_attacks_finds_nothing(tmp_path, capfd):
    out = tmp_path / "chaos.json"
    record = found_by(capfd, "--parts", "corruptions", "fuzz", "--scale", "0.01", "--out", out)
    assert record == json.loads(out.read_text())
    assert record["corruptions"]["refused_or_recovered"] and record["fuzz"]["inputs"] == 50


@pytest.mark.slow
def test_hostile_names_and_kills_change_nothing(capfd):
    record = found_by(capfd, "--parts", "hostile", "kills", "--scale", "0.04")
    assert record["kills"]["kills"] == 5 and record["hostile"]["note"]["names"] == 24
