"""`Model`: a denoiser with its conditioner, image size and the record of its training."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from tessera.conditioning import Conditioner
from tessera.errors import UserError


class Model:
    """A denoiser with its conditioner; itself a denoiser, `model(x, sigma, cond) -> clean`.

    Args:
        denoiser: `denoise(x, sigma, cond=None) -> clean` for x = clean + sigma * noise, (B, C, S, S) in [-1, 1];
            a module or a function.
        conditioner: turns prompts into `cond`; see `tessera.conditioning.Conditioner`.
        size: side S of its images in pixels; by default what `config` or the denoiser says.
        config: plain data about network and training, as `config.json` of a model folder has it.
        max_train_objects: most objects in a training scene; the paper's rule for K_max depends on it.

    Example:
        >>> import tessera
        >>> from tessera.conditioning import LocationGrid
        >>> model = tessera.Model(lambda x, sigma, cond=None: 0 * x, LocationGrid(), size=32)
        >>> model.sample([(0.65, 0.65)], seeds=range(2), steps=2).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        denoiser: nn.Module | Callable[..., Tensor],
        conditioner: Conditioner,
        size: int | None = None,
        config: dict[str, Any] | None = None,
        max_train_objects: int | None = None,
    ):
        _check_conditioner(conditioner)
        self.denoiser = denoiser if isinstance(denoiser, nn.Module) else _FunctionDenoiser(denoiser)
        self.conditioner = conditioner
        self.config: dict[str, Any] = dict(config or {})
        self.config.setdefault("denoiser", {"kind": type(self.denoiser).__name__})
        if size is None:
            size = self.config["denoiser"].get("size", getattr(denoiser, "size", None))
        elif not isinstance(size, int) or size < 1:
            raise UserError(f"The size of a model is the side of its images in pixels, not {size!r}.")
        if size is not None:
            self.config["denoiser"] = {**self.config["denoiser"], "size": size}
        if max_train_objects is not None:
            settings = self.config.get("settings") or {}
            data = {**settings.get("data", {}), "objects": [1, max_train_objects]}
            self.config["settings"] = {**settings, "data": data}

    def __call__(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        return self.denoiser(x, sigma, cond)

    def __repr__(self) -> str:
        weights = sum(parameter.numel() for parameter in self.denoiser.parameters())
        kind, size = self.config["denoiser"].get("kind"), self.config["denoiser"].get("size", "?")
        return f"Model({kind}, {size}x{size}, {weights:,} weights, {self.conditioner!r})"

    @property
    def size(self) -> int:
        """Side of its images in pixels."""
        try:
            return self.config["denoiser"]["size"]
        except KeyError:
            raise UserError("The size of this model's images is not known: Model(..., size=64).") from None

    @property
    def max_train_objects(self) -> int | None:
        """Most objects in one training scene, where that is recorded."""
        objects = (self.config.get("settings") or {}).get("data", {}).get("objects")
        return objects[1] if objects else None

    def copy_with(self, denoiser: nn.Module | None = None, config: dict[str, Any] | None = None) -> "Model":
        """This model with another denoiser or another record; nothing is copied but the references."""
        return Model(denoiser or self.denoiser, self.conditioner, config=config or self.config)

    def to(self, device) -> "Model":
        """This model, its weights moved to `device`; None leaves them."""
        if device is not None:
            self.denoiser.to(device)
        return self

    def sample(
        self,
        prompt: Sequence[Any] | Tensor,
        seeds: Sequence[int] = range(1),
        *,
        steps: int = 32,
        compose: str | None = None,
        **options: Any,
    ) -> Tensor:
        """Images (len(seeds), C, S, S), about [-1, 1] (not clipped); image i depends on seed i alone.

        Args:
            prompt: locations (x, y) in [0, 1] or color names, the same for all images; or the conditions
                themselves, (1, dim) or (len(seeds), dim).
            seeds: one per image.
            steps: noise levels of the sampler.
            compose: compose conditions at inference time: `sum`, `project` or `localize`.
            options: passed on to `tessera.sample`, such as `s_churn` or `batch`.
        """
        import tessera  # the method is a shorthand of public functions, which stand below this package

        device = next((parameter.device for parameter in self.denoiser.parameters()), None)
        cond = prompt if isinstance(prompt, Tensor) else self.conditioner.at(prompt, device=device)
        model = tessera.compose(self, compose) if compose else self
        return tessera.sample(model.denoiser, cond, self.size, seeds, steps=steps, device=device, **options)


class _FunctionDenoiser(nn.Module):
    """A denoiser that is a plain function, as a module without weights."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Any = None) -> Tensor:
        return self.function(x, sigma, cond)


def _check_conditioner(conditioner: Any) -> None:
    """One sentence that names the methods a conditioner lacks."""
    needed = ("dim", "at", "conditions", "without", "capacity", "config")
    missing = [name for name in needed if not hasattr(conditioner, name)]
    if missing:
        lacks = f"it lacks {', '.join(missing)} (subclass tessera.conditioning.Conditioner)"
        raise UserError(f"A {type(conditioner).__name__} is no conditioner: {lacks}.")
