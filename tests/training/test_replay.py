"""A recorded step computes what the step itself does; where a step cannot be recorded, it is not."""

from dataclasses import replace

import pytest
import torch

from tessera.denoiser.build import build_denoiser
from tessera.experiments import TrainingSettings, settings_for
from tessera.training.distributed import ALONE, Group
from tessera.training.loop import Learner, can_be_recorded
from tessera.training.run import stream_for

CUDA = torch.device("cuda")
STEPS = 4

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="recordings need a CUDA device")


def test_only_a_step_of_one_pass_in_one_process_on_a_gpu_is_recorded():
    settings = TrainingSettings()
    assert can_be_recorded(settings, CUDA, ALONE)
    assert not can_be_recorded(settings, torch.device("cpu"), ALONE)
    assert not can_be_recorded(replace(settings, micro=64), CUDA, ALONE)
    assert not can_be_recorded(replace(settings, compile="off"), CUDA, ALONE)
    assert not can_be_recorded(settings, CUDA, Group(rank=0, world=2))


@on_cuda
@pytest.mark.parametrize("experiment", ["exp1", "exp2L"])
def test_a_recording_trains_as_the_step_itself(experiment):
    changes = {"training": {"batch": 64, "stockpile": 64, "rampup": 0, "compile": "on"}}
    settings = settings_for(experiment, "tiny", changes)
    recorded, plain = (Learner(build_denoiser(settings), settings.training, CUDA) for _ in range(2))
    plain.gradients_of = plain._gradients_of
    for learner in (recorded, plain):
        batches = stream_for(settings).steps(0, 64, 64, device=CUDA)
        learner.losses = [float(learner.step(next(batches)).loss) for _ in range(STEPS)]
    assert recorded.gradients_of.graph is not None  # not the way around a recording that failed
    assert recorded.losses == pytest.approx(plain.losses, rel=2e-2)
    assert len(set(recorded.losses)) == STEPS  # each step saw pictures of its own
    ours, theirs = (
        torch.cat([p.detach().flatten() for p in learner.denoiser.parameters()])
        for learner in (recorded, plain)
    )
    assert float((ours - theirs).norm() / theirs.norm()) < 0.05
