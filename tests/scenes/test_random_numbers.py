"""Counter-based random numbers: the published answers, their statistics, and what they do not depend on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tessera.rng import generator
from tessera.scenes.random import normal, philox, stream_key, uniform, words

# Known answers published with Random123 for philox4x32-10: counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
MANY = torch.arange(20_000)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, answer):
    mixed = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in mixed) == answer


def test_a_word_is_the_word_of_its_counter():
    index, turn, block = 2**40 + 7, 3, 2
    counter = tuple(torch.tensor([w]) for w in (index & 0xFFFFFFFF, index >> 32, turn, block))
    expected = torch.cat(philox(counter, stream_key(5, "some lane")))
    assert torch.equal(words(5, torch.tensor([index]), "some lane", 12, turn)[0, 8:], expected)


@given(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 30), st.integers(1, 30))
def test_numbers_do_not_depend_on_who_else_is_requested(seed, index, first, count):
    alone = uniform(seed, torch.tensor([index]), "stream", count, turn=2, first=first)
    crowd = uniform(seed, torch.tensor([5, index, 9]), "stream", 70, turn=torch.tensor([0, 2, 1]))
    assert torch.equal(alone[0], crowd[1, first : first + count])


@pytest.mark.parametrize("other", ["seed", "stream", "turn", "index"])
def test_streams_that_differ_in_one_coordinate_are_unrelated(other):
    one = uniform(0, MANY, "a", 1)[:, 0]
    two = {
        "seed": lambda: uniform(1, MANY, "a", 1),
        "stream": lambda: uniform(0, MANY, "b", 1),
        "turn": lambda: uniform(0, MANY, "a", 1, turn=1),
        "index": lambda: uniform(0, MANY + 1, "a", 1),
    }[other]()[:, 0]
    assert abs(stats.pearsonr(one, two).statistic) < 4 / len(MANY) ** 0.5
    assert (one == two).sum() < 5


def test_uniform_numbers_are_uniform():
    numbers = uniform(3, MANY, "flat", 8).double()
    assert numbers.min() >= 0 and numbers.max() < 1
    assert stats.kstest(numbers.flatten(), "uniform").pvalue > 1e-3
    pairs = torch.stack([numbers[:, 0] * 16, numbers[:, 5] * 16], -1).long()
    cells = torch.bincount(pairs[:, 0] * 16 + pairs[:, 1], minlength=256)
    assert stats.chisquare(cells).pvalue > 1e-3


def test_every_bit_of_a_word_is_fair():
    bits = words(1, MANY, "bits", 4).flatten()[:, None] >> torch.arange(32) & 1
    share = bits.double().mean(0)
    assert (share - 0.5).abs().max() < 4.5 * 0.5 / (4 * len(MANY)) ** 0.5


def test_normal_numbers_are_normal():
    numbers = normal(2, MANY, "bell", 5)
    assert numbers.dtype == torch.float32
    assert stats.kstest(numbers.double().flatten(), "norm").pvalue > 1e-3
    for other in (1, 2):  # of the same pair, and of the next
        for power in (1, 2):
            related = stats.pearsonr(numbers[:, 0] ** power, numbers[:, other] ** power).statistic
            assert abs(related) < 4 / len(MANY) ** 0.5


def test_normal_numbers_are_the_same_bits_in_any_batch():
    together = normal(2, torch.arange(101), "bell", 37)
    apart = torch.cat([normal(2, torch.tensor([i]), "bell", 38)[:, :37] for i in range(101)])
    assert torch.equal(together, apart)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_changes_nothing():
    index = torch.arange(10_000)
    assert torch.equal(uniform(1, index, "a", 9), uniform(1, index.cuda(), "a", 9).cpu())
    assert torch.allclose(normal(1, index, "a", 9), normal(1, index.cuda(), "a", 9).cpu(), atol=1e-6)


def test_any_whole_number_is_a_seed_of_numpy_s_generator_too():
    drawn = {key: generator(*key).integers(2**60) for key in [(5,), (-5,), (5, 1), (-1, 1), (2**63,)]}
    assert len(set(drawn.values())) == 5
    assert drawn[5,] == np.random.default_rng(5).integers(2**60)
    assert drawn[5, 1] == np.random.default_rng([5, 1]).integers(2**60)
