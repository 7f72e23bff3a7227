"""Random numbers as a pure function of seed, scene index, stream name and attempt.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in torch integer
operations, so a stream is the same on every device and can be entered anywhere.
"""

import math
import zlib

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]  # four 32-bit words, each held in an int64 tensor


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Four well-mixed 32-bit words for each counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product of two 32-bit words wraps in int64, and its 64 bits are still the right ones.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (right >> 32 & _MASK) ^ c1 ^ k0, right & _MASK
        c2, c3 = (left >> 32 & _MASK) ^ c3 ^ k1, left & _MASK
        k0, k1 = k0 + _KEY_STEPS[0] & _MASK, k1 + _KEY_STEPS[1] & _MASK
    return c0, c1, c2, c3


def words(seed: int, index: Tensor, stream: str, count: int, turn: int | Tensor = 0, first: int = 0) -> Tensor:
    """Words first .. first + count - 1 of (seed, index, stream, turn): (B, count) int64 in [0, 2^32)."""
    low_block, high_block = first // 4, -(-(first + count) // 4)
    block = torch.arange(low_block, high_block, device=index.device)  # (K,)
    scene = index[:, None].expand(-1, len(block))  # (B, K)
    turns = turn if isinstance(turn, Tensor) else torch.full((), turn, device=index.device)
    repeat = turns.to(index.device).expand(len(index))[:, None].expand_as(scene)
    counter = (scene & _MASK, scene >> 32 & _MASK, repeat, block.expand_as(scene))
    mixed = torch.stack(philox(counter, stream_key(seed, stream)), dim=-1)  # (B, K, 4)
    skipped = first - 4 * low_block
    return mixed.flatten(1)[:, skipped : skipped + count]


def stream_key(seed: int, stream: str) -> tuple[int, int]:
    """Streams of one seed are independent: the name goes into the key."""
    return seed & _MASK, (seed >> 32 & _MASK) ^ zlib.crc32(stream.encode())


def uniform(seed: int, index: Tensor, stream: str, count: int, turn: int | Tensor = 0, first: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) for scenes `index` (B,): (B, count) float32, multiples of 2^-24."""
    return (words(seed, index, stream, count, turn, first) >> 8).to(torch.float32) * 2.0**-24


def normal(seed: int, index: Tensor, stream: str, count: int, turn: int | Tensor = 0) -> Tensor:
    """Standard normal numbers (B, count) float32, by Box and Muller.

    Logarithm and cosine differ in their last bit between devices; working in float64 and rounding once hides
    that (Apple silicon has no float64 and may differ by one float32 step).
    """
    wide = torch.float32 if index.device.type == "mps" else torch.float64
    even = count + count % 2
    pairs = words(seed, index, stream, even, turn).to(wide).reshape(len(index), even // 2, 2)
    radius = (-2 * torch.log((pairs[..., 0] + 1) * 2.0**-32)).sqrt()
    angle = 2 * math.pi * 2.0**-32 * pairs[..., 1]
    both = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)  # (B, even / 2, 2)
    return both.flatten(1)[:, :count].to(torch.float32)


def seeded_generator(seed: int) -> torch.Generator:
    """A torch generator on the CPU for any whole number; torch itself uses only the lowest 32 bits of a seed."""
    return torch.Generator().manual_seed((seed ^ (seed >> 32) * _KEY_STEPS[0]) & _MASK)
