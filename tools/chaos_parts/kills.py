"""Kills: a verb is killed again and again at random moments, the same command finishes the work, and nothing differs.

Verbs run in children forked from a process that has imported everything, so that kills fall into the work.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos_parts.world import QUICK, TRAIN, train_words
from tessera.cli.main import main

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_TIMES = ("seconds", "images_per_second")  # of a line of the log


def jobs(root: Path) -> dict[str, list[str]]:
    """What is killed: each writes into its own folder below `root`."""
    small = []
    for name, value in zip(TRAIN[2::2], TRAIN[3::2]):
        small += ["--set", f"{name[2:].replace('-', '_')}={value}"] if name != "--data.objects" else []
    study = ["--preset", "tiny", *small, "--total", "16", "--k", "0-1", "--each", "2", "--steps", "2", "--seeds", "1"]
    kept = ["--root", str(root / "reproduce/runs"), "--results", str(root / "reproduce/results")]
    return {
        "train": train_words(root / "train", total=64),
        "render": ["render", "--count", "24", "--size", "32", "--set", "batch=4", "--out", str(root / "render"), *QUICK],
        "shards": ["render", "--count", "24", "--size", "32", "--shards", "2", "--out", str(root / "shards"), *QUICK],
        "sample": ["sample", "exp1", "--k", "1,2", "--each", "4", "--steps", "4", "--set", "batch=2",
                   "--out", str(root / "sample"), *QUICK],
        "reproduce": ["reproduce", "fig4", *study, *kept, "--device", "cpu"],
    }  # fmt: skip


def start(words: Sequence[str], stderr: Path) -> int:
    """A child that runs the verb; its process number."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        out = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main(list(words))
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def finish(words: Sequence[str], stderr: Path) -> tuple[int, float]:
    """The verb to its end: exit code and seconds."""
    began = time.monotonic()
    _, status = os.waitpid(start(words, stderr), 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - began


def kill_chain(name: str, reference: Path, root: Path, kills: int, seed: int) -> dict[str, Any]:
    """One job killed `kills` times and then finished, compared with `reference`, where it ran undisturbed."""
    chance, words = random.Random(f"{name} {seed}"), jobs(root)[name]
    said = root / f"{name}.txt"
    root.mkdir(parents=True, exist_ok=True)
    whole, seconds = digests(reference / name), json.loads((reference / f"{name}.json").read_text())["seconds"]
    faults: list[str] = []
    lost, done, turns = 0, 0, 0
    while done < kills and turns < 4 * kills:
        before, turns = _finished_files(root / name, whole), turns + 1
        kind = SIGNALS[turns % len(SIGNALS)]
        child = start(words, said)
        time.sleep(chance.uniform(0, 1.05 * seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, kind)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:  # it was done already: begin anew
            lost += _lost(before, root / name)
            _check_end(name, root, whole, faults)
            _remove(root / name)
            continue
        done += 1
        if kind != signal.SIGKILL and code not in (130, 143):
            # before its first words Python itself may end by the signal
            faults += [f"{name}: {kind.name} ended with {code}"] if code not in (-kind,) else []
        lost += _lost(before, root / name)
    code, _ = finish(words, said)
    faults += [f"{name}: the last call ended with {code}: {said.read_text()[-500:]}"] if code else []
    _check_end(name, root, whole, faults)
    if "Traceback" in said.read_text():
        faults.append(f"{name}: {said.read_text()[-1500:]}")
    return {"job": name, "kills": done, "faults": faults, "bytes_lost": lost, "leftovers": _leftovers(root / name)}


def reference_for(name: str, root: Path) -> None:
    """The job undisturbed, and how long it took."""
    root.mkdir(parents=True, exist_ok=True)
    code, seconds = finish(jobs(root)[name], root / f"{name}.txt")
    assert code == 0, (root / f"{name}.txt").read_text()
    (root / f"{name}.json").write_text(json.dumps({"seconds": seconds}))


def _check_end(name: str, root: Path, whole: dict[str, str], faults: list[str]) -> None:
    found = digests(root / name)
    for path in sorted({*whole, *found}):
        if whole.get(path) != found.get(path) and not _is_leftover(path):
            faults.append(f"{name}: {path} {'differs' if path in whole and path in found else 'is missing or new'}")


def digests(folder: Path) -> dict[str, str]:
    """Every file and what it holds, without times, folders and process numbers."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != ".lock" and not path.name.endswith(".html"):
            found[str(path.relative_to(folder))] = hashlib.sha256(_timeless(path, folder)).hexdigest()
    return found


def _timeless(path: Path, folder: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".safetensors":  # the entries of its header come in any order
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        content = json.dumps(header, sort_keys=True).encode() + content[8 + length :]
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in content.splitlines()]
        content = json.dumps([{key: row[key] for key in row if key not in _TIMES} for row in rows]).encode()
    elif path.suffix == ".json":
        content = json.dumps(_without_times(json.loads(content))).encode()
    return content.replace(str(folder.parent).encode(), b"")


def _without_times(content: Any) -> Any:
    if isinstance(content, list):
        return [_without_times(part) for part in content]
    if not isinstance(content, dict):
        return content
    gone = ("provenance", "seconds", "images_per_second", "cost", "training", "training_seconds")
    return {key: _without_times(value) for key, value in content.items() if key not in gone}


def _finished_files(folder: Path, whole: dict[str, str]) -> dict[str, str]:
    """Files that are already what they will be at the end: work that a kill may not undo."""
    return {path: digest for path, digest in digests_now(folder).items() if whole.get(path) == digest}


def digests_now(folder: Path) -> dict[str, str]:
    """`digests` of a folder that may hold half a line of a log."""
    try:
        return digests(folder)
    except ValueError:
        return {}


def _lost(before: dict[str, str], folder: Path) -> int:
    now = digests_now(folder)
    gone = [path for path, digest in before.items() if now and now.get(path) != digest and not path.endswith(".json")]
    return sum(1 for path in gone if not path.endswith(".jsonl"))


def _is_leftover(path: str) -> bool:
    name = Path(path).name
    return name.endswith((".part", ".tmp")) or name.startswith(".probe-")


def _leftovers(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if _is_leftover(str(path))]


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def summary(chains: Sequence[dict[str, Any]]) -> dict[str, Any]:
    faults = [fault for chain in chains for fault in chain["faults"]]
    return {
        "kills": sum(chain["kills"] for chain in chains),
        "end_states_changed": len(faults),
        "files_lost": sum(chain["bytes_lost"] for chain in chains),
        "leftovers": sum(len(chain["leftovers"]) for chain in chains),
        "failures": [*faults, *(path for chain in chains for path in chain["leftovers"])],
    }
