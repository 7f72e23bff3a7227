"""The training loop, as a generator: the caller owns logging, snapshots and stopping.

All chance of a step (scenes, labels, patches, noise levels, noise) is keyed by sample number, so a resumed
run repeats an uninterrupted one, and any number of processes see the same samples. (What dropout drops is keyed
by the step, and by the share of it that a process has.)
"""

import importlib.util
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tessera.config import Strategy, TrainingConfig
from tessera.devices import precision_on
from tessera.errors import UserError
from tessera.models.ema import Averages
from tessera.models.magnitude import magnitude_layers, normalize_weights, project_gradients, set_weight_norm
from tessera.models.views import Views, trained_network, training_views
from tessera.scenes.random import normal, stream_key
from tessera.training.distributed import ALONE, ProcessGroup
from tessera.training.loss import NoiseLevels, loss_at, objective
from tessera.training.schedule import learning_rate
from tessera.training.stream import Batch, Stream


class TrainingStep(NamedTuple):
    """What the caller sees of each step. `loss` stays on the device until it is looked at."""

    images_seen: int  # this step's included
    loss: Tensor  # (), mean over pixels and channels
    lr: float


class Trainer:
    """A network in training: weights, optimizer, running averages, and how many images it has seen."""

    def __init__(
        self, denoiser: nn.Module, settings: TrainingConfig, device=None, group: ProcessGroup = ALONE
    ) -> None:
        self.settings, self.group = settings, group
        self.device = torch.device(device or "cpu")
        self.denoiser = denoiser.to(self.device).train()
        self.denoiser.precision = chosen_precision(settings, self.device)  # type: ignore[assignment]
        self.network = trained_network(denoiser)
        self.drops = drops_activations(denoiser)
        self.strategy = chosen_strategy(settings, self.device, group, self.drops)
        self.sigma_data: float = getattr(self.network, "sigma_data", 0.5)
        set_weight_norm(denoiser, settings.weight_norm)
        normalize_weights(denoiser)
        self.optimizer = torch.optim.Adam(
            denoiser.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            fused=self.device.type in ("cuda", "cpu"),
        )
        self.averages = Averages(denoiser, settings.ema)
        self.update_in_one = update_kernel(self)
        self.images_seen = 0
        torch.backends.cudnn.benchmark = (
            True  # every step has the same shapes, so detection fast kernels pays
        )
        self.loss_of: Callable[..., Tensor] = self._loss_of
        self.normal: Callable[..., Tensor] = normal
        if self.strategy != "eager":
            self.loss_of = torch.compile(self._loss_of, dynamic=False)
            self.normal = CompiledNormal()
        self.gradients_of: Callable[[Batch], Tensor] = self._gradients_of
        if self.strategy == "graph":
            from tessera.training.cuda_graph import Replay

            self.gradients_of = Replay(self._gradients_of)

    # -- one step ------------------------------------------------------------------------------------------

    def step(self, batch: Batch) -> TrainingStep:
        """Learn from this process's share of one step."""
        loss = self.gradients_of(batch)
        lr = self.update()
        return TrainingStep(self.images_seen, loss, lr)

    def _gradients_of(self, batch: Batch) -> Tensor:
        shown = batch.images, batch.cond, batch.index
        return self.gradients(training_views(self.denoiser, *shown, self.settings))

    def gradients(self, views: Views) -> Tensor:
        """Fill `.grad` with the gradient of the whole step. Returns the mean loss per element, ()."""
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        count = len(views) * self.group.world
        micro_batch = self.settings.micro_batch or len(views)
        for first in range(0, len(views), micro_batch):
            part = views[first : first + micro_batch]
            with self.keyed_dropout(first):
                loss = self.loss_of(
                    part.images, part.cond, *self.chance(part), part.inside, part.counted, count
                )
                loss.backward()
            losses.append(loss.detach())
        total = sum(losses[1:], start=losses[0])
        grads = [p.grad for p in self.denoiser.parameters() if p.grad is not None]
        self.group.sum_([*grads, total])
        return total / views.images.shape[1:].numel()

    @contextmanager
    def keyed_dropout(self, first: int) -> Iterator[None]:
        """Dropout draws from torch's own generator, so that one starts anew in every pass, by where the pass begins."""
        if not self.drops:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            where = f"{self.settings.seed} {self.images_seen} {self.group.rank} {first}"
            torch.manual_seed(zlib.crc32(where.encode()))
            yield

    def chance(self, views: Views) -> tuple[Tensor, Tensor]:
        """Noise levels (V,) and unit noise like the images."""
        seed, shape = self.settings.seed, views.images.shape
        levels = NoiseLevels(self.settings.p_mean, self.settings.p_std)
        sigma = levels(self.normal(seed, views.index, "noise level", 1)[:, 0])
        return sigma, self.normal(seed, views.index, "noise", shape[1:].numel()).reshape(shape)

    def _loss_of(
        self,
        images: Tensor,
        cond: Tensor,
        sigma: Tensor,
        noise: Tensor,
        inside: Tensor | None,
        counted: Tensor | None,
        count: int,
    ) -> Tensor:
        """The number to differentiate. Beyond an image's border there is neither noise nor loss."""
        if inside is not None:
            noise = noise * inside
        loss = loss_at(self.network, images, cond, sigma, noise, sigma_data=self.sigma_data)
        return objective(loss if counted is None else loss * counted, count)

    def update(self) -> float:
        """Move the weights along the gradient and the averages after them. Returns the learning rate."""
        settings = self.settings
        lr = learning_rate(
            self.images_seen,
            batch=settings.batch,
            reference=settings.lr,
            decay_batches=settings.lr_decay_start,
            rampup_images=settings.lr_warmup,
            cooldown_images=settings.cooldown,
            total_images=settings.total,
        )
        self.optimizer.param_groups[0]["lr"] = lr
        seen = self.images_seen + settings.batch
        if not self.update_in_one(lr, self.averages.shares(seen, settings.batch)):
            self._update_part_by_part(seen)
        self.images_seen = seen
        return lr

    def _update_part_by_part(self, images_seen: int) -> None:
        if self.settings.weight_norm == "projected":
            project_gradients(self.denoiser)
        self.optimizer.step()
        if self.settings.weight_norm != "in-forward":
            normalize_weights(self.denoiser)
        self.averages.update(images_seen, self.settings.batch)

    def restart(self, denoiser: nn.Module) -> None:
        """Begin anew with the weights of another network of the same make: what was compiled stays good."""
        self.denoiser.load_state_dict(denoiser.state_dict())
        normalize_weights(self.denoiser)
        self.optimizer.state.clear()
        self.averages.restart()
        self.images_seen = 0

    # -- looking at it, keeping it -------------------------------------------------------------------------

    def averaged(self, std: float | None = None) -> nn.Module:
        """A copy with averaged weights (the shortest average if not said), ready to sample."""
        copy = deepcopy(self.denoiser).eval().requires_grad_(False)
        copy.load_state_dict(self.averages.state(min(self.settings.ema) if std is None else std))
        return copy

    def finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return all(bool(torch.isfinite(p).all()) for p in self.denoiser.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """Everything needed to carry on, but for `images_seen`."""
        held = {f"model.{name}": value for name, value in self.denoiser.state_dict().items()}
        for name, parameter in self.denoiser.named_parameters():
            for part, value in self.optimizer.state[parameter].items():
                held[f"adam.{part}.{name}"] = value
        for std, means in self.averages.means.items():
            held |= {f"ema.{std}.{name}": mean for name, mean in zip(self.averages.names, means)}
        return held

    def load(self, tensors: Mapping[str, Tensor], images_seen: int) -> None:
        """Carry on from `tensors`, as if never interrupted."""
        groups = split_names(tensors)
        try:  # all is found before anything is changed
            adam = {p: self._adam_state(groups, name, p) for name, p in self.denoiser.named_parameters()}
            means = {
                std: {name: tensors[f"ema.{std}.{name}"] for name in self.averages.names}
                for std in self.averages.stds
            }
            self.denoiser.load_state_dict(groups["model"])
        except (KeyError, RuntimeError) as error:
            raise UserError(f"The saved state does not fit this network: {error}.") from error
        for parameter, state in adam.items():
            self.optimizer.state[parameter] = state
        for std, mean in means.items():
            self.averages.load(std, mean)
        self.images_seen = images_seen

    def _adam_state(self, groups: Mapping[str, Any], name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Adam counts its steps where its kernel wants them: fused ones on the device."""
        fused = self.optimizer.param_groups[0]["fused"]
        home = {"step": self.device if fused else torch.device("cpu")}
        parts = {part: f"{part}.{name}" for part in ("step", "exp_avg", "exp_avg_sq")}
        held = groups.get("adam", {})
        if not held.keys() & parts.values():  # frozen or unused: Adam never moved it
            return {}
        return {part: held[full].clone().to(home.get(part, parameter.device)) for part, full in parts.items()}


def update_kernel(trainer: Trainer) -> Callable[[float, Sequence[float]], bool]:
    """The update as one kernel where Triton runs. It returns False when it leaves the work to PyTorch."""
    if trainer.device.type == "cuda" and importlib.util.find_spec("triton"):
        from tessera.training.update_kernel import UpdateKernel

        filters = [layer.weight for layer in magnitude_layers(trainer.denoiser)]
        return UpdateKernel(trainer.optimizer, trainer.averages, filters, trainer.settings.weight_norm)
    return lambda lr, shares: False


class CompiledNormal:
    """`normal` as one kernel, wherever that leaves its numbers as they are.

    Compilers have been seen to spoil 64-bit integer arithmetic, so each shape is checked on its first use.
    """

    def __init__(self) -> None:
        torch.compiler.assume_constant_result(stream_key)  # else the checksum in it splits the graph
        self.compiled = torch.compile(normal, dynamic=False)
        self.trusted: dict[tuple[int, int], bool] = {}

    def __call__(self, seed: int, index: Tensor, stream: str, count: int) -> Tensor:
        shape = (len(index), count)
        if shape not in self.trusted:
            fast, true = (draw(seed, index, stream, count) for draw in (self.compiled, normal))
            self.trusted[shape] = torch.allclose(fast, true, atol=1e-5)
        return (self.compiled if self.trusted[shape] else normal)(seed, index, stream, count)


def split_names(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by the first word of their names."""
    groups: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        group, name = full.split(".", 1)
        groups.setdefault(group, {})[name] = tensor
    return groups


def train(trainer: Trainer, stream: Stream) -> Iterator[TrainingStep]:
    """Steps until the total is reached, from wherever the trainer stands."""
    settings, group = trainer.settings, trainer.group
    group.share(settings.batch)
    batches = stream.steps(
        trainer.images_seen, settings.batch, settings.render_batch, group.rank, group.world, trainer.device
    )
    while trainer.images_seen < settings.total:
        yield trainer.step(next(batches))


def forget_compiled() -> None:
    """Each network is compiled for itself: beyond a few under one name the compiler would give up on it.

    What was compiled stays in the compiler's cache of kernels, so that the next network like it starts soon.
    """
    torch.compiler.reset()


def chosen_strategy(
    settings: TrainingConfig, device: torch.device, group: ProcessGroup = ALONE, drops: bool = False
) -> Strategy:
    """What `auto` stands for here: the fastest way of executing a step that computes the same."""
    # A CUDA graph repeats the same kernels, so a step must be one pass of one process, without random masks.
    replayable = device.type == "cuda" and group.world == 1 and not settings.micro_batch and not drops
    if settings.strategy == "graph" and not replayable:
        raise UserError(
            "--training.strategy graph needs one process on a CUDA device, no micro-batches and no dropout; "
            "use compiled."
        )
    if settings.strategy != "auto":
        return settings.strategy
    if device.type != "cuda":
        return "eager"
    return "graph" if replayable else "compiled"


def drops_activations(denoiser: nn.Module) -> bool:
    """Whether any block has dropout."""
    return any(getattr(module, "dropout", 0) for module in denoiser.modules())


def chosen_precision(settings: TrainingConfig, device: torch.device) -> str:
    return precision_on(device, settings.precision)
