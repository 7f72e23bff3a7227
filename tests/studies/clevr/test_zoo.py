import pytest

import tessera
from tessera.config import first_difference, settings_from
from tessera.models.model_folder import shipped
from tessera.studies.clevr import zoo
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.runs import _HARMLESS


def test_the_list_has_both_rules_beside_the_papers_number():
    found = {"paper": {"value": 0, "low": 0, "high": 9}, "strict": {"value": 7, "low": 6, "high": 7}}
    model = {"name": "exp2L", "about": "", "objects": [1, 3], "size": 64, "bytes": 1, "k_max": found}
    table = zoo.zoo_table([{**model, "paper": {"text": "9 +(0-2)"}}, {**model, "k_max": None, "paper": None}])
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["paper"] == ["9 +(0-2)", ""]
    assert columns["ours, paper rule"] == ["0 [0, 9]", "not evaluated"]
    assert columns["strict rule"] == ["7 [6, 7]", "not evaluated"]


def test_the_zoo_is_made_of_cells_of_the_study():
    assert set(zoo.ZOO.values()) <= set(CELLS) and {"exp1", "exp2", "exp3", "exp2L", "color"} <= set(zoo.ZOO)


def test_importing_the_package_does_not_import_torch():
    import subprocess
    import sys

    words = "import sys, tessera; print('torch' in sys.modules, tessera.__version__)"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, text=True).stdout.startswith("False")
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        tessera.lode  # noqa: B018


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_model_was_trained_as_its_cell_says(name):
    config = tessera.load(name).config
    wanted = CELLS[config["cell"]].settings("small")
    assert first_difference(settings_from(config["settings"]), wanted, _HARMLESS) is None
