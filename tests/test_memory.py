"""Memory that tensors freed is used again instead of being returned to the system."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from tessera.devices import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(3):
    torch.zeros(5_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    torch.zeros(5_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the system gives to 50 tensors of 20 MB, one after another."""
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_freed_memory_is_used_again():
    returned = faults("return")
    if returned < 10_000:
        pytest.skip("this C library keeps freed memory by itself")
    assert faults("keep") < returned / 10
