"""How much arithmetic one image costs: multiply-adds of convolutions, linear layers and attention."""

from torch import nn

from tessera.models.edm2 import EDM2, Block
from tessera.models.magnitude import MPConv, is_box


def flops_per_image(model: EDM2, *, training: bool = True, folded: bool = False) -> int:
    """Floating-point operations of one image, two per multiply-add; a backward counts as two forwards.

    By default the network as it is defined, so that utilisations compare across implementations. `folded`
    counts what is computed here, where the first convolution after upsampling meets the small image.
    """
    return 2 * (3 if training else 1) * _multiply_adds(model, folded)


def _multiply_adds(model: EDM2, folded: bool = False) -> int:
    """One forward pass of one image."""
    embedding = weights(model.noise) + weights(model.cond)
    total = embedding + weights(model.out) * model.size**2
    for location, entry in [*model.encoder.named_modules(), *model.decoder.named_modules()]:
        if isinstance(entry, Block) or location.endswith(".conv"):
            total += _entry_cost(entry, int(location.split(".")[0]), folded)
    return total


def _entry_cost(entry: nn.Module, side: int, folded: bool) -> int:
    """A block, or the first convolution, whose output has `side` x `side` pixels."""
    pixels = side * side
    if isinstance(entry, MPConv):
        return weights(entry) * pixels
    assert isinstance(entry, Block)
    spatial = [entry.res0, entry.res1, entry.skip, entry.qkv, entry.proj]
    total = weights(entry.emb) + pixels * sum(map(weights, spatial))
    if entry.heads:
        total += 2 * pixels * pixels * entry.outputs  # queries meet keys, then shares meet values
    if folded and entry.resample == "up" and is_box(entry.resample_filter):
        total -= pixels * weights(entry.res0) * 5 // 9
    return total


def weights(layer: MPConv | None) -> int:
    return 0 if layer is None else layer.weight.numel()
