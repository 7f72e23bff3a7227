"""The kernel draws the very scenes of the PyTorch code, with the same effort: on a GPU, and interpreted."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tessera.errors import UserError
from tessera.scenes import Scenes, sampling

HELD_OUT = (("cube", "red"), {"shape": "sphere", "material": "metal"})
FAMILIES = {
    "few objects": (Scenes(objects=(1, 3)), 4096),
    "nothing or little, no jitter": (Scenes(objects=(0, 2), jitter=False), 4096),
    "held-out looks": (Scenes(objects=3, held_out=HELD_OUT, sizes="small"), 4096),
    "more objects": (Scenes(objects=(4, 6)), 1024),
    "as many as fit": (Scenes(objects=10), 64),
    "close together": (Scenes(objects=12, spacing="relaxed"), 64),
}

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device")


def differing(drawn, expected) -> int:
    """Scenes in which an object, the stage or the effort is not exactly the same."""
    (scenes, effort), (wanted, spent) = drawn, expected
    pairs = [*zip(vars(scenes).values(), vars(wanted).values()), *zip(effort, spent)]
    unequal = [(a.cpu() != b).reshape(len(wanted), -1).any(1) for a, b in pairs if b.numel()]
    return int(torch.stack(unequal).any(0).sum())


@on_cuda
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_draws_the_same_scenes_with_the_same_effort(family):
    rules, count = FAMILIES[family]
    plain = rules.numbered(torch.arange(count), 2**40 + 7)
    assert differing(rules.numbered(torch.arange(count).cuda(), 2**40 + 7), plain) == 0


@on_cuda
def test_a_gpu_draws_scenes_by_number_in_any_order():
    numbers = torch.tensor([7, 2**35, 3, 7])
    assert differing(Scenes().numbered(numbers.cuda(), 5), Scenes().numbered(numbers, 5)) == 0


@on_cuda
def test_a_gpu_draws_no_scenes_and_scenes_of_nothing():
    assert len(Scenes().draw(0, device="cuda")) == 0
    assert Scenes(objects=0).draw(3, device="cuda").present.shape == (3, 0)


@on_cuda
def test_a_gpu_gives_up_as_the_plain_code_does(monkeypatch):
    monkeypatch.setattr(sampling, "LAST_TURN", 1)
    with pytest.raises(UserError, match="gave up after 1 attempts"):
        Scenes(objects=9).draw(50, device="cuda")


INTERPRETED = """
import torch
from tessera.errors import UserError
from tessera.scenes import sampling
from tessera.scenes.kernel import draw_scenes

def same(rules, seed, index):
    plain, kernel = rules.numbered(index, seed), draw_scenes(rules, seed, index)
    pairs = [*zip(vars(plain[0]).values(), vars(kernel[0]).values()), *zip(plain[1], kernel[1])]
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)

few = sampling.Scenes(objects=3)
hidden = few.numbered(torch.arange(200), 1)[1].unseen.nonzero()[:2, 0]  # scenes that were begun anew
assert len(hidden) == 2
same(few, 1, torch.cat([hidden, torch.tensor([2**35, 5])]))
same(sampling.Scenes(objects=(4, 6), spacing="relaxed", held_out=(("cube", "red"),)), -3, torch.arange(1))
same(sampling.Scenes(objects=0, jitter=False), 0, torch.arange(2))
sampling.LAST_TURN = 1
try:
    draw_scenes(few, 1, hidden)
except UserError as error:
    assert "gave up after 1 attempts" in str(error)
else:
    raise AssertionError("it did not give up")
"""


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="its interpreter needs NumPy < 2.4")
def test_the_interpreted_kernel_draws_the_same_scenes():
    settings = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
