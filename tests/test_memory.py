"""Memory of deleted tensors is used again instead of being returned to the system."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from tessera.devices import keep_memory
from tessera.render.render import render
from tessera.scenes import Scenes
keep_memory()
torch.set_num_threads(1)
scenes = Scenes(objects=(1, 6)).draw(8, seed=0)
render(scenes, size=64, quality="true")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    render(scenes, size=64, quality="true")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults() -> int:
    """Pages that the system gives to three renderings."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_is_used_again():
    assert faults() < 3_000
