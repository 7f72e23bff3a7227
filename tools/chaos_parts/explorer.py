"""The explorer under attack: bodies without end, connections that never come to the point, and many people at once."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chaos_parts.fuzz import TOOLS

_HUGE = 1 << 30  # bytes of a body
_HALF_OPEN = 1200


class Served:
    """An explorer in a process of its own."""

    def __init__(self, model: str, folder: Path, host: str = "127.0.0.1"):
        paths = os.pathsep.join([str(TOOLS), *sys.path])
        env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        words = [
            "-m",
            "tessera",
            "explore",
            model,
            "--port",
            "0",
            "--set",
            f"host={host}",
            "--device",
            "cpu",
            "--threads",
            "1",
        ]
        self.said, self.host = folder / f"explorer-{host.replace(':', '_')}.txt", host
        with open(self.said, "w") as stderr:
            self.process = subprocess.Popen([sys.executable, *words], stderr=stderr, env=env)
        self.port = self._port()

    def _port(self) -> int:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            for word in self.said.read_text().split():
                if word.startswith("http://"):
                    return int(word.rstrip("/").rsplit(":", 1)[1])
            time.sleep(0.1)
        raise RuntimeError(self.said.read_text())

    def memory(self) -> float:
        """MiB in use now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("there is no memory to read")

    def ask(self, path: str, body: Any = None, seconds: float = 30, **headers: str) -> tuple[int, bytes]:
        wire = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            given = json.dumps(body) if body is not None else None
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            wire.request("POST" if given else "GET", path, given, {"Content-Type": "application/json", **names})
            answer = wire.getresponse()
            return answer.status, answer.read()
        finally:
            wire.close()

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        return self.said.read_text()


def attack(model: str, folder: Path, users: int, seconds: float) -> dict[str, Any]:
    """The numbers of the table."""
    served, failures = Served(model, folder), []
    try:
        draw = {"models": [Path(model).name], "locations": [[0.3, 0.4]], "steps": 4}
        served.ask("/api/hello")
        served.ask("/api/sample", draw, 120)
        before = served.memory()
        failures += _huge_bodies(served)
        failures += _half_open(served)
        under_attack = served.memory() - before
        failures += _other_pages(served, draw)
        before = served.memory()
        waits, errors = _crowd(served, draw, users, seconds)
        growth = served.memory() - before
    finally:
        said = served.stop()
    failures += [f"the server wrote a traceback: {said[-1500:]}"] if "Traceback" in said else []
    failures += _other_addresses(model, folder)
    failures += [f"an error of a user: {error}" for error in errors[:5]]
    failures += [f"memory grew by {growth:.0f} MiB"] if growth > 50 else []
    failures += [f"memory grew by {under_attack:.0f} MiB under attack"] if under_attack > 50 else []
    longest = sorted(waits)[max(0, int(len(waits) * 0.99) - 1)] if waits else 0.0
    return {
        "failed_measures": len(failures),
        "errors_of_users": len(errors),
        "note": {
            "users": users,
            "draws": len(waits),
            "seconds_of_a_draw_p99": round(longest, 2),
            "mib_more_after_users": round(growth, 1),
            "mib_more_under_attack": round(under_attack, 1),
        },
        "failures": failures,
    }


def _huge_bodies(served: Served) -> list[str]:
    """A gigabyte announced, and one in pieces of unknown number."""
    failures = []
    for head in (f"Content-Length: {_HUGE}", "Transfer-Encoding: chunked"):
        with socket.create_connection((served.host, served.port), timeout=30) as wire:
            request = (
                f"POST /api/sample HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}\r\n\r\n"
            )
            wire.sendall(request.encode())
            piece = b"a" * (1 << 20)
            piece = b"100000\r\n" + piece + b"\r\n" if "chunked" in head else piece
            sent = 0
            try:
                while sent < _HUGE:
                    sent += wire.send(piece)
            except OSError:  # it was cut off, as it should be
                pass
            failures += [f"a body of {sent >> 20} MiB was taken ({head})"] if sent > _HUGE // 8 else []
    return failures


def _half_open(served: Served) -> list[str]:
    """Connections that send half a request and wait."""
    held, failures = [], []
    try:
        for _ in range(_HALF_OPEN):
            try:
                wire = socket.create_connection((served.host, served.port), timeout=5)
                wire.sendall(b"GET / HTTP/1.1\r\nHost: loc")
                held.append(wire)
            except OSError:
                continue
        for path in ("/api/hello", "/"):
            try:
                status, _ = served.ask(path)
                failures += [] if status == 200 else [f"{path} was answered {status} under half-open sockets"]
            except OSError as error:
                failures.append(f"{path} was not answered under half-open sockets: {error}")
    finally:
        for wire in held:
            wire.close()
    return failures


def _other_pages(served: Served, draw: Any) -> list[str]:
    failures = []
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{served.port + 1}"):
        status, _ = served.ask("/api/sample", draw, Origin=origin)
        failures += [] if status == 403 else [f"a request of the page {origin} was answered {status}"]
    status, _ = served.ask("/api/sample", draw, 120, Origin=f"http://{served.host}:{served.port}")
    failures += [] if status == 200 else [f"a request of its own page was answered {status}"]
    return failures


def _other_addresses(model: str, folder: Path) -> list[str]:
    try:
        served = Served(model, folder, "::1")
    except RuntimeError as error:
        return [] if "assign requested address" in str(error) else [f"--host ::1: {error}"]  # a machine without IPv6
    try:
        status, _ = served.ask("/api/hello", Host=f"[::1]:{served.port}")
        return [] if status == 200 else [f"--host ::1 was answered {status}"]
    finally:
        served.stop()


def _crowd(served: Served, draw: dict[str, Any], users: int, seconds: float) -> tuple[list[float], list[str]]:
    """Each user draws an image of a seed of their own, looks at it for a while, and draws the next."""
    waits: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + seconds

    def user(number: int) -> None:
        turn = 0
        while time.monotonic() < end:
            began, turn = time.monotonic(), turn + 1
            try:
                status, content = served.ask(
                    "/api/sample", {**draw, "seed": number * 1000 + turn}, 180, X_Page=str(number)
                )
                if status != 200 or b"event: done" not in content:
                    errors.append(f"{status} {content[-200:]!r}")
            except OSError as error:
                errors.append(repr(error))
            waits.append(time.monotonic() - began)
            time.sleep(2)

    threads = [threading.Thread(target=user, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits, errors
