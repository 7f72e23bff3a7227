"""Pieces of work on workers that are killed, that fail, and that are not there."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tessera.cluster import pool
from tessera.cluster.pool import Piece, connected, last_line, run_pieces
from tessera.errors import UserError

distributed = pytest.importorskip("distributed")
RENDER = ("render", "--count", "2", "--size", "16", "--quality", "fast", "--device", "cpu")


def render_piece(out: Path) -> Piece:
    return Piece(out.name, (*RENDER, "--out", str(out)))


@pytest.fixture(scope="module")
def client():
    with connected(None, 2) as client:
        yield client


def test_every_piece_runs_and_a_bad_one_says_why(client, tmp_path):
    pieces = [render_piece(tmp_path / "a"), Piece("bad", ("render", "--count", "0", "--out", str(tmp_path / "b")))]
    reported = []
    outcomes = run_pieces(client, pieces, tmp_path / "logs", on_outcome=reported.append)
    assert outcomes["a"].code == 0 and len(list((tmp_path / "a").rglob("*.png"))) >= 2
    assert outcomes["bad"].code == 2 and outcomes["bad"].message.startswith("tessera: ")
    assert {outcome.name for outcome in reported} == {"a", "bad"}


def test_a_killed_worker_costs_no_piece(client, tmp_path):
    """Its piece begins anew on another worker, and the first attempt does not live on."""
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import os, time\nfrom tessera.cluster.child import end_with_parent\nend_with_parent()\n"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'x').close()\ntime.sleep(3)\n"
    )

    def attempts() -> set[int]:
        return {int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()}

    def kill_one(stop: threading.Event) -> None:
        while len(attempts()) < 2 and not stop.wait(0.05):
            pass
        first.update(attempts())
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    first: set[int] = set()
    stop = threading.Event()
    killer = threading.Thread(target=kill_one, args=(stop,))
    killer.start()
    outcomes = run_pieces(client, [Piece(f"sleep{n}", (), (str(script),)) for n in range(3)], tmp_path / "logs")
    stop.set()
    killer.join()
    assert [outcome.code for outcome in outcomes.values()] == [0, 0, 0]
    assert len(attempts()) == 4 and first < attempts()
    assert not any(is_alive(process) for process in attempts())


def test_a_piece_whose_process_is_killed_is_tried_again(client, tmp_path):
    script = tmp_path / "once.py"
    script.write_text(
        f"import os, pathlib\nmark = pathlib.Path({str(tmp_path)!r}) / 'tried'\n"
        "if not mark.exists():\n    mark.touch()\n    os.kill(os.getpid(), 9)\n"
    )
    outcomes = run_pieces(client, [Piece("once", (), (str(script),))], tmp_path / "logs")
    assert outcomes["once"].code == 0 and (tmp_path / "tried").exists()


def test_a_piece_that_is_killed_every_time_is_reported(client, tmp_path):
    script = tmp_path / "never.py"
    script.write_text(f"import os\nopen({str(tmp_path / 'tries')!r}, 'a').write('x')\nos.kill(os.getpid(), 9)\n")
    outcome = run_pieces(client, [Piece("never", (), (str(script),))], tmp_path / "logs")["never"]
    assert outcome.code == 1 and "ended by signal 9" in outcome.message
    assert (tmp_path / "tries").read_text() == "x" * (1 + pool.RETRIES)


@pytest.mark.parametrize(("gpus", "chosen", "own"), [(4, None, "1"), (1, None, None), (4, "2", None)])
def test_workers_of_one_machine_take_turns_with_its_gpus(monkeypatch, gpus, chosen, own):
    """Worker 5 of a machine; whoever sets CUDA_VISIBLE_DEVICES has chosen already."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("distributed.get_worker", lambda: SimpleNamespace(name=5))
    assert pool._own_gpu() == own


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


def test_the_time_limit_reaches_every_piece(client, tmp_path):
    outcome = run_pieces(client, [render_piece(tmp_path / "late")], tmp_path / "logs", minutes=-1.0)["late"]
    assert outcome.code == 130 and not (tmp_path / "late").exists()


def test_a_child_ends_with_its_parent(tmp_path):
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tessera.cluster.child import end_with_parent as e; import time; e(); time.sleep(60)",
        ],
        stdin=subprocess.PIPE,
    )
    time.sleep(0.5)
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(timeout=20) == 1


def test_the_last_line_of_a_log(tmp_path):
    log = tmp_path / "a.log"
    assert last_line(log) == ""
    log.write_text("first\n" + "x" * 5000 + "\nlast one\n\n")
    assert last_line(log) == "last one"


def test_an_address_where_nobody_answers(monkeypatch):
    monkeypatch.setattr(pool, "_CONNECTING", 1)
    with pytest.raises(UserError, match="No dask scheduler answers"), connected("tcp://127.0.0.1:1"):
        pass
    with pytest.raises(UserError, match="No dask scheduler answers"), connected("no-such-file.json"):
        pass
