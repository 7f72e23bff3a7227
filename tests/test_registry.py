"""Parts by name: built in, added by a program, and from entry points of installed distributions."""

import sys

import pytest
import torch

import tessera
from tessera.cli.main import main
from tessera.conditioning.registry import CONDITIONERS, conditioner_from, open_conditioner
from tessera.errors import UserError
from tessera.models.build import NETWORKS, denoiser_from
from tessera.registry import Registry, import_object, names_object

THIRD_PARTY = '''
"""A distribution of somebody else's."""
import dataclasses

from torch import nn

from tessera.conditioning import LocationGrid


@dataclasses.dataclass(frozen=True)
class CoarseGrid(LocationGrid):
    cells: int = 4


class Constant(nn.Module):
    def __init__(self, size, value=0.5):
        super().__init__()
        self.size, self.value = size, value
        self.scale = nn.Linear(1, 1)

    def forward(self, x, sigma, cond=None):
        return 0 * x + self.value


@dataclasses.dataclass(frozen=True)
class Double:
    k: str = "1"

    def run(self):
        print(2 * int(self.k))


class NothingThere:
    def __init__(self, device):
        self.device = device

    def detect(self, images):
        return [[] for _ in images], images.new_zeros(len(images))


def make_model():
    return Constant(32), CoarseGrid(), 32
'''
ENTRY_POINTS = """
[tessera.conditioners]
coarse = third_party:CoarseGrid

[tessera.models]
constant = third_party:Constant
ready-made = third_party:make_model

[tessera.detectors]
nothing-there = third_party:NothingThere

[tessera.tasks]
double = third_party:Double
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution as pip would have installed it."""
    (tmp_path / "third_party.py").write_text(THIRD_PARTY)
    facts = tmp_path / "third_party-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("third_party", None)


def test_an_entry_point_registers_a_conditioner_without_editing_ours(installed):
    assert "coarse" in CONDITIONERS and "coarse" in list(CONDITIONERS)
    conditioner = conditioner_from({"kind": "coarse", "label": "one"})
    assert conditioner.dim == 16 and conditioner.label == "one"
    assert open_conditioner("coarse").cells == 4


def test_an_entry_point_registers_a_network(installed):
    network = denoiser_from({"kind": "constant", "size": 32, "value": 0.25})
    assert network(torch.ones(1, 3, 32, 32), 1.0).unique().tolist() == [0.25]


def test_an_entry_point_that_makes_a_model_is_loaded_by_its_name(installed):
    model = tessera.load("ready-made")
    assert model.size == 32 and model.conditioner.dim == 16
    assert model.sample([(0.5, 0.5)], steps=2).shape == (1, 3, 32, 32)


def test_an_entry_point_registers_a_detector(installed):
    image = torch.zeros(1, 3, 32, 32)
    for name in ("nothing-there", "third_party:NothingThere"):
        result = tessera.evaluate(image, [(0.5, 0.5)], detector=name)
        assert result.images[0].found == [False] and result.images[0].detections == []
    with pytest.raises(UserError, match="no readable detector"):
        tessera.evaluate(image, [(0.5, 0.5)], detector="nothing-anywhere")


def test_an_entry_point_registers_a_study_that_reproduce_runs(installed, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["reproduce", "double", "--k", "21"])
    assert leaving.value.code == 0 and capsys.readouterr().out == "42\n"


def test_without_the_distribution_its_parts_are_unknown():
    assert "coarse" not in CONDITIONERS and "constant" not in NETWORKS
    with pytest.raises(UserError, match="There is no conditioner `coarse`"):
        conditioner_from({"kind": "coarse"})


def test_a_program_registers_parts_of_its_own_and_a_misspelled_one_gets_a_hint():
    registry = Registry("tessera.nothing", "part", {"one": 1})
    registry.add("three", 3)
    assert list(registry) == ["one", "three"] and registry["three"] == 3 and len(registry) == 2
    with pytest.raises(UserError, match="did you mean `three`"):
        registry["thre"]


@pytest.mark.parametrize("text", ["my.py:Grid", "folder/my.py:make", "package.module:make", "module:a.b"])
def test_a_module_or_a_file_with_a_name_in_it_names_an_object(text):
    assert names_object(text)


@pytest.mark.parametrize("text", ["exp1", "someone/model", "runs/exp1", "someone/model@v1", "a b:c", 3])
def test_a_model_name_a_folder_or_a_hub_id_names_no_object(text):
    assert not names_object(text)


def test_objects_are_imported_from_modules_of_the_working_folder_and_from_files(tmp_path, monkeypatch):
    (tmp_path / "mine_here.py").write_text("class A:\n    b = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert import_object("mine_here:A.b") == 7
    assert import_object(f"{tmp_path}/mine_here.py:A").b == 7


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no_such_module:make", "no module `no_such_module`"),
        ("tessera.config:make_nothing", "`tessera.config` has no `make_nothing`"),
        ("absent.py:make", "no file absent.py"),
        ("exp1", "does not name an object"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(text, sentence):
    with pytest.raises(UserError, match=sentence):
        import_object(text)
