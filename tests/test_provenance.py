"""Where a number comes from, and where tensors live."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tessera
from tessera.devices import pick_device
from tessera.errors import UserError


def test_the_commit_of_another_project_is_not_taken_for_ours(tmp_path):
    """The package copied into an ignored folder of someone else's checkout, as an installation is."""
    copy = tmp_path / "site-packages" / "tessera"
    copy.mkdir(parents=True)
    for name in ("provenance.py", "version.py"):
        shutil.copy(Path(tessera.__file__).parent / name, copy)
    (copy / "__init__.py").touch()
    (tmp_path / ".gitignore").write_text("site-packages\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], check=True)
    prompt = "from tessera.provenance import commit; print(commit())"
    where = {"PYTHONPATH": str(copy.parent), "PATH": "/usr/bin:/bin"}
    found = subprocess.run([sys.executable, "-c", prompt], env=where, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "None"


def test_one_of_several_devices_can_be_named():
    assert pick_device("cpu").type == "cpu"
    for name in ("cuda:7", "abacus"):
        with pytest.raises(UserError, match=f"no {name} device"):
            pick_device(name)
