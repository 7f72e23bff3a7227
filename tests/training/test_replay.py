"""A recorded step computes what the step itself does; where a step cannot be recorded, it is not."""

from dataclasses import replace

import pytest
import torch

from tessera.config import TrainingConfig, settings_for
from tessera.errors import UserError
from tessera.models.build import build_denoiser
from tessera.training.distributed import ProcessGroup
from tessera.training.run_folder import _stream_for
from tessera.training.strategies import chosen_strategy
from tessera.training.trainer import Trainer

CUDA = torch.device("cuda")
STEPS = 4

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="recordings need a CUDA device")


def test_only_a_step_of_one_pass_in_one_process_on_a_gpu_is_recorded():
    settings = TrainingConfig()
    assert chosen_strategy(settings, CUDA) == "graph"
    assert chosen_strategy(settings, torch.device("cpu")) == "eager"
    assert chosen_strategy(replace(settings, micro_batch=64), CUDA) == "compiled"
    assert chosen_strategy(settings, CUDA, dropout=True) == "compiled"
    assert chosen_strategy(replace(settings, strategy="eager"), CUDA) == "eager"
    assert chosen_strategy(settings, CUDA, ProcessGroup(rank=0, world=2)) == "compiled"
    with pytest.raises(UserError, match="one process on a CUDA device"):
        chosen_strategy(replace(settings, strategy="graph"), torch.device("cpu"))


@on_cuda
@pytest.mark.parametrize("experiment", ["exp1", "exp2L"])
def test_a_recording_trains_as_the_step_itself(experiment):
    changes = {"training": {"batch": 64, "render_batch": 64, "lr_warmup": 0, "strategy": "graph"}}
    settings = settings_for(experiment, "tiny", changes)
    recorded, plain = (Trainer(build_denoiser(settings), settings.training, CUDA) for _ in range(2))
    plain.gradients_fn = plain.gradients
    for trainer in (recorded, plain):
        batches = _stream_for(settings).steps(0, 64, 64, device=CUDA)
        trainer.losses = [float(trainer.step(next(batches)).loss) for _ in range(STEPS)]
    assert recorded.gradients_fn.graph is not None  # not the way around a recording that failed
    assert recorded.losses == pytest.approx(plain.losses, rel=2e-2)
    assert len(set(recorded.losses)) == STEPS  # each step saw images of its own
    ours, theirs = (
        torch.cat([p.detach().flatten() for p in trainer.denoiser.parameters()]) for trainer in (recorded, plain)
    )
    assert float((ours - theirs).norm() / theirs.norm()) < 0.05
