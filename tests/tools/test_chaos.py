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


@pytest.mark.parametrize("part", ["corruptions"])
def test_a_share_of_the_attacks_is_counted(part, tmp_path, capfd):
    call_program("chaos", "--parts", part, "--scale", "0.02", "--workers", 1, "--out", tmp_path / "c.json", "--json")
    record = json.loads(capfd.readouterr().out)
    assert record == json.loads((tmp_path / "c.json").read_text())
    assert record[part]["cases"] == record[part]["refused_or_recovered"] + len(record[part]["failures"])
