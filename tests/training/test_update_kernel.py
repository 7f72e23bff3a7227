"""The kernel updates weights, Adam's state and averages as the PyTorch code does: on a GPU, and interpreted."""

import importlib.util
import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tessera.models.build import build_denoiser
from tessera.models.ema import Averages
from tessera.models.magnitude import MPConv, magnitude_layers, normalize_weights, project_gradients, set_weight_norm
from tessera.training.run_folder import _stream_for
from tessera.training.trainer import Trainer, train

NORMS = ("projected", "after-update", "in-forward")
BATCH = 8

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device")
with_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


class Assorted(nn.Module):
    """Filters from 1 to 3,456 numbers long, a scalar, and a parameter of more than one piece of the kernel's."""

    def __init__(self):
        super().__init__()
        sizes = ((1, 5, 1), (3, 4, 3), (300, 3, 1), (384, 2, 3))
        self.layers = nn.ModuleList(MPConv(inputs, outputs, kernel) for inputs, outputs, kernel in sizes)
        self.gain = nn.Parameter(torch.tensor(0.3))
        self.free = nn.Parameter(torch.randn(3, 1501))


class Trainee:
    """A model and all that an update moves; `kernel` says which way."""

    def __init__(self, model: nn.Module, weight_norm: str, betas=(0.9, 0.99), kernel: bool = False):
        self.model, self.weight_norm, self.seen = model, weight_norm, 0
        set_weight_norm(model, weight_norm)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=betas, fused=True)
        self.averages = Averages(model, (0.05, 0.10))
        self.kernel = self.made_kernel() if kernel else None

    def made_kernel(self):
        from tessera.training.update_kernel import UpdateKernel

        filters = [layer.weight for layer in magnitude_layers(self.model)]
        return UpdateKernel(self.optimizer, self.averages, filters, self.weight_norm)

    def update(self, grads, lr: float) -> None:
        self.seen += BATCH
        for parameter, grad in zip(self.model.parameters(), grads, strict=True):
            parameter.grad = None if grad is None else grad.clone()
        if self.kernel:
            assert self.kernel(lr, self.averages.lerp_weights(self.seen, BATCH))
            return
        self.optimizer.param_groups[0]["lr"] = lr
        if self.weight_norm == "projected":
            project_gradients(self.model)
        self.optimizer.step()
        if self.weight_norm != "in-forward":
            normalize_weights(self.model)
        self.averages.update(self.seen, BATCH)

    def tensors(self):
        found = {f"weight {name}": p.detach() for name, p in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[parameter]
            found |= {f"{part} {name}": value for part, value in state.items()}
        for std, means in self.averages.means.items():
            found |= {f"mean {std} {name}": mean for name, mean in zip(self.averages.names, means)}
        return found


def twins(weight_norm: str, device: str, **options) -> tuple[Trainee, Trainee]:
    """The same model, updated by PyTorch and by the kernel."""
    torch.manual_seed(0)
    model = Assorted().to(device)
    normalize_weights(model)
    return Trainee(deepcopy(model), weight_norm, **options), Trainee(model, weight_norm, kernel=True, **options)


def drawn_grads(model: nn.Module, missing=()) -> list:
    """Of one sign, so that sums of them do not cancel: there roundings would count for more."""
    return [
        None if number in missing else 0.3 + 0.1 * torch.randn_like(parameter)
        for number, parameter in enumerate(model.parameters())
    ]


def assert_close(kernel: Trainee, plain: Trainee) -> None:
    """To a few roundings; but of the gradient of a filter of one number, projection leaves little else."""
    found, expected = kernel.tensors(), plain.tensors()
    moments = {name for name in expected if name.startswith("exp_avg") and name.endswith("layers.0.weight")}
    assert largest_gap(found, expected, moments) < 2e-6
    assert largest_gap(found, expected, expected.keys() - moments) < 5e-3


def largest_gap(found, expected, without=frozenset()) -> float:
    """Over all tensors, relative to the largest number in each."""
    assert found.keys() == expected.keys()
    gaps = [
        float((found[name] - wanted).abs().max() / wanted.abs().max().clamp_min(1e-20))
        for name, wanted in expected.items()
        if name not in without
    ]
    return max(gaps, default=0.0)


# -- the update by itself ----------------------------------------------------------------------------------


def check_agreement(weight_norm: str, device: str, steps: int, **options) -> None:
    plain, kernel = twins(weight_norm, device, **options)
    before = {name: tensor.clone() for name, tensor in plain.tensors().items()}
    for step in range(steps):
        grads = drawn_grads(plain.model)
        for trainee in (plain, kernel):
            trainee.update(grads, lr=0.02 / (1 + step))
        assert_close(kernel, plain)
    assert largest_gap({name: kernel.tensors()[name] for name in before}, before) > 0.01


def check_missing_gradients(device: str) -> None:
    """A parameter keeps its own count of steps; one that never had a gradient has no state."""
    plain, kernel = twins("projected", device)
    for missing in ((1, 4), (1,), (1, 0, 3), (1,)):
        grads = drawn_grads(plain.model, missing)
        for trainee in (plain, kernel):
            trainee.update(grads, lr=0.02)
    assert_close(kernel, plain)
    parameters = [*kernel.model.parameters()]
    assert not kernel.optimizer.state[parameters[1]]
    assert [int(kernel.optimizer.state[parameters[k]]["step"]) for k in (0, 2, 3, 4)] == [3, 4, 3, 3]


def check_tables_are_sent_only_when_needed(device: str) -> None:
    _, kernel = twins("projected", device)
    parameters = [*kernel.model.parameters()]
    kernel.update(drawn_grads(kernel.model), lr=0.01)
    addresses, grads = kernel.kernel.addresses.table, kernel.kernel.grads.table
    assert kernel.kernel(0.01, (0.5, 0.5))
    assert kernel.kernel.addresses.table is addresses and kernel.kernel.grads.table is grads
    parameters[0].grad = parameters[0].grad.clone()
    assert kernel.kernel(0.01, (0.5, 0.5))
    assert kernel.kernel.addresses.table is addresses and kernel.kernel.grads.table is not grads
    assert kernel.kernel.grads.table.tolist() == [p.grad.data_ptr() for p in parameters]


def check_unsuitable_tensors_are_left_to_pytorch(device: str) -> None:
    _, kernel = twins("projected", device)
    kernel.update(drawn_grads(kernel.model), lr=0.01)
    before = {name: tensor.clone() for name, tensor in kernel.tensors().items()}
    grad = kernel.model.free.grad
    kernel.model.free.grad = torch.zeros(grad.shape[1], grad.shape[0], device=device).T
    assert not kernel.kernel(0.01, (0.5, 0.5))
    kernel.model.free.grad = grad
    weights = kernel.averages.means[0.05]
    weights[0] = weights[0].double()
    assert not kernel.kernel(0.01, (0.5, 0.5))
    weights[0] = weights[0].float()
    assert all(torch.equal(before[name], value) for name, value in kernel.tensors().items())
    assert kernel.kernel(0.01, (0.5, 0.5))


def check_a_graph_kept_over_an_update_is_refused(device: str) -> None:
    _, kernel = twins("projected", device)
    kept = kernel.model.free.square().sum()
    kernel.update(drawn_grads(kernel.model), lr=0.01)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def check_all(device: str, steps: int) -> None:
    for weight_norm in NORMS:
        check_agreement(weight_norm, device, steps)
    check_agreement("projected", device, 2, betas=(0.0, 0.9))
    check_missing_gradients(device)
    check_tables_are_sent_only_when_needed(device)
    check_unsuitable_tensors_are_left_to_pytorch(device)
    check_a_graph_kept_over_an_update_is_refused(device)


@on_cuda
@with_triton
def test_a_gpu_updates_as_pytorch_does():
    check_all("cuda", steps=20)


@with_triton
@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="its interpreter needs NumPy < 2.4")
def test_the_interpreted_kernel_updates_as_pytorch_does():
    settings = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, __file__], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- whole training on both paths --------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
def test_a_trainer_updates_part_by_part_only_what_the_kernel_does_not_take(minute, taken):
    settings = minute(training={"lr_warmup": 0})
    trainer = Trainer(build_denoiser(settings), settings.training)
    requested = []
    trainer.update_kernel = lambda lr, lerp_weights: requested.append((lr, lerp_weights)) or taken
    step = next(train(trainer, _stream_for(settings)))
    assert requested == [(step.lr, [1.0, 1.0])] and trainer.images_seen == step.images_seen == 4
    assert bool(trainer.optimizer.state) is not taken  # Adam begins its state with its first step


PLAIN = {"precision": "float32", "strategy": "eager", "total": 80}


@pytest.fixture
def repeatable(monkeypatch):
    """Convolutions whose gradients do not depend on the order in which threads finish."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


class Watched:
    """Remembers whether the kernel took each update."""

    def __init__(self, update):
        self.update, self.answers = update, []

    def __call__(self, lr, lerp_weights):
        self.answers.append(self.update(lr, lerp_weights))
        return self.answers[-1]


def trainer_on_gpu(settings, kernel: bool, **changes) -> Trainer:
    settings = replace(settings, training=replace(settings.training, **changes))
    trainer = Trainer(build_denoiser(settings), settings.training, "cuda")
    assert type(trainer.update_kernel).__name__ == "UpdateKernel"
    trainer.update_kernel = Watched(trainer.update_kernel if kernel else lambda lr, lerp_weights: False)
    return trainer


def trained(trainer: Trainer, settings) -> torch.Tensor:
    return torch.stack([step.loss for step in train(trainer, _stream_for(settings))])


def disagreement(one: Trainer, other: Trainer) -> float:
    """How far the averaged networks are apart in what they draw, relative to it, where they must draw by themselves.

    Weights are not compared: Adam takes whole steps along gradients that are nothing but rounding, so that single
    weights, and gains that begin at 0, wander apart though the networks do the same.
    """
    size, device = one.denoiser.size, one.device
    noisy = 5 * torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        drawn, expected = (trainer.averaged(0.05)(noisy, 5.0) for trainer in (one, other))
    return float((drawn - expected).norm() / expected.norm())


@on_cuda
@with_triton
@pytest.mark.parametrize("weight_norm", NORMS)
def test_twenty_steps_of_training_agree(minute, repeatable, weight_norm):
    settings = minute()
    plain, kernel = (trainer_on_gpu(settings, way, weight_norm=weight_norm, **PLAIN) for way in (False, True))
    losses, expected = trained(kernel, settings), trained(plain, settings)
    assert kernel.update_kernel.answers == [True] * 20
    assert torch.allclose(losses, expected, atol=2e-3)
    assert disagreement(kernel, plain) < 5e-3
    assert disagreement(kernel, trainer_on_gpu(settings, True, **PLAIN)) > 0.5


@on_cuda
@with_triton
@pytest.mark.parametrize("begun_with_kernel", [True, False])
def test_a_run_begun_on_one_path_carries_on_on_the_other(minute, repeatable, begun_with_kernel):
    settings = minute()
    whole = trainer_on_gpu(settings, begun_with_kernel, **PLAIN)
    losses = trained(whole, settings)
    half = trainer_on_gpu(settings, begun_with_kernel, **{**PLAIN, "total": 40})
    trained(half, settings)
    other = trainer_on_gpu(settings, not begun_with_kernel, **PLAIN)
    other.load({name: tensor.cpu().clone() for name, tensor in half.tensors().items()}, 40)
    assert torch.allclose(trained(other, settings), losses[10:], atol=2e-3)
    assert other.update_kernel.answers == [not begun_with_kernel] * 10
    assert disagreement(other, whole) < 5e-3
    steps = [float(value) for name, value in other.tensors().items() if name.startswith("adam.step.")]
    assert set(steps) == {20.0}


@on_cuda
@with_triton
@pytest.mark.slow
def test_the_kernel_takes_the_gradients_of_compiled_training(minute):
    trainer = trainer_on_gpu(minute(), True, total=24, micro_batch=2)
    assert torch.isfinite(trained(trainer, minute())).all()
    assert trainer.update_kernel.answers == [True] * 6 and trainer.finite()


if __name__ == "__main__":  # in a process of its own, with Triton's interpreter
    check_all("cpu", steps=3)
