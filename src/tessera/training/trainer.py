"""The training step, and training as a generator of steps: the caller owns logging, snapshots and stopping.

Every random number of a step (scenes, labels, patches, noise levels, noise) is keyed by sample number, so a resumed run
repeats an uninterrupted one, and any number of processes train on the same samples. Dropout is keyed by the step and
by the process and micro-batch within it.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tessera.config import TrainingConfig
from tessera.devices import precision_on
from tessera.errors import UserError
from tessera.models.contract import Views, trained_network, training_views
from tessera.models.ema import Averages
from tessera.models.magnitude import magnitude_layers, normalize_weights, project_gradients, set_weight_norm
from tessera.scenes.random import normal
from tessera.training.distributed import ALONE, ProcessGroup
from tessera.training.loss import edm_loss, training_sigmas
from tessera.training.schedule import learning_rate
from tessera.training.strategies import CompiledNormal, Replay, chosen_strategy, make_update_kernel
from tessera.training.stream import Batch, NumberedSamples

_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


class TrainingStep(NamedTuple):
    """What a caller gets of each step. `loss` stays on the device until its value is needed."""

    images_seen: int  # including this step's
    loss: Tensor  # (), mean over pixels and channels
    lr: float


class Trainer:
    """A network in training: weights, optimizer, running averages, and the number of images it was trained on."""

    def __init__(self, denoiser: nn.Module, settings: TrainingConfig, device=None, group: ProcessGroup = ALONE) -> None:
        self.settings, self.group = settings, group
        self.device = torch.device(device or "cpu")
        self.denoiser = denoiser.to(self.device).train()
        self.denoiser.precision = precision_on(self.device, settings.precision)  # type: ignore[assignment]
        self.network = trained_network(denoiser)  # of a patchwise denoiser: the one for a single patch
        self.sigma_data: float = getattr(self.network, "sigma_data", 0.5)
        self.has_dropout = any(getattr(module, "dropout", 0) for module in denoiser.modules())
        set_weight_norm(denoiser, settings.weight_norm)
        normalize_weights(denoiser)
        betas = (settings.beta1, settings.beta2)
        fused = self.device.type in ("cuda", "cpu")
        self.optimizer = torch.optim.Adam(denoiser.parameters(), lr=settings.lr, betas=betas, fused=fused)
        self.averages = Averages(denoiser, settings.ema)
        self.images_seen = 0

        # How a step is executed is chosen here and nowhere else; every choice computes the same, up to rounding.
        self.strategy = chosen_strategy(settings, self.device, group, self.has_dropout)
        self.loss_fn: Callable[..., Tensor] = self.loss
        self.normal_fn: Callable[..., Tensor] = normal
        self.gradients_fn: Callable[[Batch], Tensor] = self.gradients
        if self.strategy != "eager":
            self.loss_fn, self.normal_fn = torch.compile(self.loss, dynamic=False), CompiledNormal()
        if self.strategy == "graph":
            self.gradients_fn = Replay(self.gradients)
        filters = [layer.weight for layer in magnitude_layers(denoiser)]
        self.update_kernel = make_update_kernel(self.optimizer, self.averages, filters, settings.weight_norm)
        # All steps have the same shapes, so the time for choosing among cuDNN's kernels pays off.
        torch.backends.cudnn.benchmark = True

    # -- one step ------------------------------------------------------------------------------------------

    def step(self, batch: Batch) -> TrainingStep:
        """Train on this process's share of one step: gradients, then weights, then their running averages."""
        settings, images_seen = self.settings, self.images_seen + self.settings.batch
        loss = self.gradients_fn(batch)
        lr = learning_rate(self.images_seen, settings)
        lerp_weights = self.averages.lerp_weights(images_seen, settings.batch)
        if not (self.update_kernel and self.update_kernel(lr, lerp_weights)):
            self.optimizer.param_groups[0]["lr"] = lr
            if settings.weight_norm == "projected":
                project_gradients(self.denoiser)
            self.optimizer.step()
            if settings.weight_norm != "in-forward":
                normalize_weights(self.denoiser)
            self.averages.update(images_seen, settings.batch)
        self.images_seen = images_seen
        return TrainingStep(images_seen, loss, lr)

    def gradients(self, batch: Batch) -> Tensor:
        """Fill `.grad` with the gradient of the whole step. Returns its mean loss per pixel and channel, ()."""
        views = training_views(self.denoiser, batch.images, batch.cond, batch.index, self.settings)
        count = len(views) * self.group.world
        micro_batch = self.settings.micro_batch or len(views)
        total = torch.zeros((), device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        for first in range(0, len(views), micro_batch):
            part = views[first : first + micro_batch]
            sigma, noise = self.noise(part)
            with self._keyed_dropout(first):
                loss = self.loss_fn(part.images, part.cond, sigma, noise, part.inside, part.loss_weight, count)
                loss.backward()
            total = total + loss.detach()
        self.group.sum_([*(p.grad for p in self.denoiser.parameters() if p.grad is not None), total])
        return total / views.images.shape[1:].numel()

    def noise(self, views: Views) -> tuple[Tensor, Tensor]:
        """Noise levels (V,) and unit noise like the images."""
        settings, shape = self.settings, views.images.shape
        level = self.normal_fn(settings.seed, views.index, "noise level", 1)[:, 0]
        noise = self.normal_fn(settings.seed, views.index, "noise", shape[1:].numel()).reshape(shape)
        return training_sigmas(level, settings.p_mean, settings.p_std), noise

    def loss(
        self,
        images: Tensor,
        cond: Tensor,
        sigma: Tensor,
        noise: Tensor,
        inside: Tensor | None,
        loss_weight: Tensor | None,
        count: int,
    ) -> Tensor:
        """The number to differentiate: summed over an image (or patch), averaged over the `count` of the whole step, ()."""
        if inside is not None:  # beyond an image's border there is no noise
            noise = noise * inside
        loss = edm_loss(self.network, images, cond, sigma, noise, sigma_data=self.sigma_data)
        if loss_weight is not None:
            loss = loss * loss_weight
        return loss.sum() / count

    @contextmanager
    def _keyed_dropout(self, first: int) -> Iterator[None]:
        """Seed torch's own generator, from which dropout draws, for the micro-batch that begins at view `first`."""
        if not self.has_dropout:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            key = f"{self.settings.seed} {self.images_seen} {self.group.rank} {first}"
            torch.manual_seed(zlib.crc32(key.encode()))
            yield

    # -- its state -----------------------------------------------------------------------------------------

    def averaged(self, std: float | None = None) -> nn.Module:
        """A copy with averaged weights (by default the shortest average), ready for sampling."""
        copy = deepcopy(self.denoiser).eval().requires_grad_(False)
        copy.load_state_dict(self.averages.state(min(self.settings.ema) if std is None else std))
        return copy

    def finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return all(bool(torch.isfinite(p).all()) for p in self.denoiser.parameters())

    def restart(self, denoiser: nn.Module) -> None:
        """Begin anew with the weights of another network of the same shapes; what was compiled is used again."""
        self.denoiser.load_state_dict(denoiser.state_dict())
        normalize_weights(self.denoiser)
        self.optimizer.state.clear()
        self.averages.restart()
        self.images_seen = 0

    def tensors(self) -> dict[str, Tensor]:
        """Everything that continuing needs, besides `images_seen`."""
        found = {f"model.{name}": value for name, value in self.denoiser.state_dict().items()}
        for name, parameter in self.denoiser.named_parameters():
            for part, value in self.optimizer.state[parameter].items():
                found[f"adam.{part}.{name}"] = value
        for std, means in self.averages.means.items():
            for name, mean in zip(self.averages.names, means, strict=True):
                found[f"ema.{std}.{name}"] = mean
        return found

    def load(self, tensors: Mapping[str, Tensor], images_seen: int) -> None:
        """Continue from `tensors`, exactly as if training had not been interrupted."""
        try:  # everything is found before anything is changed
            weights = {name[6:]: value for name, value in tensors.items() if name.startswith("model.")}
            adam: dict[Tensor, dict[str, Tensor]] = {
                p: self._adam_state(tensors, name, p) for name, p in self.denoiser.named_parameters()
            }
            means = {}
            for std in self.averages.stds:
                means[std] = {name: tensors[f"ema.{std}.{name}"] for name in self.averages.names}
            self.denoiser.load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            raise UserError(f"The saved state does not fit this network: {error}.") from error
        self.optimizer.state.update(adam)
        for std, mean in means.items():
            self.averages.load(std, mean)
        self.images_seen = images_seen

    def _adam_state(self, tensors: Mapping[str, Tensor], name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
        names = {part: f"adam.{part}.{name}" for part in _ADAM_STATE}
        if not tensors.keys() & names.values():  # frozen or unused: Adam never moved it
            return {}
        state = {part: tensors[full].clone().to(parameter.device) for part, full in names.items()}
        if not self.optimizer.param_groups[0]["fused"]:  # only fused kernels count steps on the device
            state["step"] = state["step"].cpu()
        return state


def train(trainer: Trainer, stream: NumberedSamples) -> Iterator[TrainingStep]:
    """Steps from wherever the trainer stands until the total number of images is reached."""
    settings, group = trainer.settings, trainer.group
    group.share(settings.batch)
    batches = stream.steps(
        trainer.images_seen, settings.batch, settings.render_batch, group.rank, group.world, trainer.device
    )
    while trainer.images_seen < settings.total:
        yield trainer.step(next(batches))
