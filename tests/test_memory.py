"""Memory of deleted tensors is used again instead of being returned to the system."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from tessera.devices import keep_memory
from tessera.render.render import render
from tessera.scenes import Scenes
if sys.argv[1] == "keep":
    keep_memory()
torch.set_num_threads(1)
scenes = Scenes(objects=(1, 6)).draw(8, seed=0)
render(scenes, size=64, quality="true")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    render(scenes, size=64, quality="true")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the system gives to three renderings."""
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_memory_is_used_again():
    returned = faults("return")
    if returned < 5_000:
        pytest.skip("this C library keeps memory by itself")
    assert faults("keep") < returned / 10
