"""The exam: what a picture is held against."""

from tessera.conditioners import LocationGrid, LocationList
from tessera.judge.finding import Finding
from tessera.judge.matching import CELL
from tessera.sampler.asking import ask
from tessera.study.exam import verdict_on


def test_a_thing_is_held_against_the_middle_of_the_cell_its_model_was_told():
    wanted, found = ((0.501, 0.501),), [Finding((0.58, 0.58), "red", "cube", "large", "metal", 1, 1)]
    # the told cell's middle is (0.531, 0.531)
    assert found[0].place[0] - wanted[0][0] > CELL
    told = {
        tell: verdict_on(found, ask(tell, wanted, 0, 0), tell) for tell in (LocationGrid(), LocationList())
    }
    assert [verdict.found for verdict in told.values()] == [1, 0]  # a list tells the very place
