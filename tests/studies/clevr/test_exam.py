"""The evaluation: what an image is held against."""

from tessera.conditioning import LocationGrid, LocationList
from tessera.evaluation.detection import Detection
from tessera.evaluation.matching import CELL
from tessera.sampling.prompts import prompt_for
from tessera.studies.clevr.evaluate import verdict_on


def test_a_object_is_held_against_the_middle_of_the_cell_its_model_was_told():
    wanted, found = ((0.501, 0.501),), [Detection((0.58, 0.58), "red", "cube", "large", "metal", 1, 1)]
    # the told cell's middle is (0.531, 0.531)
    assert found[0].location[0] - wanted[0][0] > CELL
    told = {
        conditioner: verdict_on(found, prompt_for(conditioner, wanted, 0, 0), conditioner)
        for conditioner in (LocationGrid(), LocationList())
    }
    assert [verdict.found for verdict in told.values()] == [1, 0]  # a list tells the very location
