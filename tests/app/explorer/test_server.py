"""The page's requests on a real server: events, positions, abandoned work, refusals, restarts."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from explorer_wire import events

pytest.importorskip("fastapi", reason="the explorer's extra is not installed")

from tessera.app.explorer.server import _PAGE, address, bind
from tessera.errors import UserError

REQUEST = {"models": ["exp1C", "exp1"], "locations": [[0.65, 0.65]], "steps": 3}


def get(running, path):
    return urllib.request.urlopen(running.url + path, timeout=30)


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_hello_has_models_locations_and_colors(running):
    got = json.load(get(running, "api/hello"))
    assert [card["name"] for card in got["models"]] == ["exp1", "exp1C", "exp3", "color"]
    assert len(got["locations"]) == 12 and len(got["colors"]) == 8 and len(got["heat"]) == 256
    assert got["provenance"]["tessera"]


def test_sampling_comes_as_events(running):
    got = list(events(running.post("api/sample", REQUEST)))
    assert [event["event"] for event in got][:2] == ["queue", "started"] and got[-1]["event"] == "end"
    assert sum(event["event"] == "step" for event in got) == 6
    assert {event["model"] for event in got if event["event"] == "done"} == {"exp1C", "exp1"}


def test_a_cached_trajectory_needs_no_queue(running):
    list(events(running.post("api/sample", REQUEST)))
    got = list(events(running.post("api/trajectory", REQUEST)))
    assert [event["event"] for event in got] == ["trajectory", "trajectory", "end"]
    got = list(events(running.post("api/probe", {**REQUEST, "step": 1, "at": [0.5, 0.5]})))
    assert [event["event"] for event in got] == ["queue", "started", "probe", "probe", "end"]


def test_a_cached_trajectory_is_encoded_outside_the_loop(running, monkeypatch):
    """Encoding takes a while, and the loop has other pages to serve."""
    list(events(running.post("api/sample", REQUEST)))
    made, cached_trajectory = [], running.session.cached_trajectory

    def recorded(request, found):
        made.append(threading.current_thread())
        return cached_trajectory(request, found)

    monkeypatch.setattr(running.session, "cached_trajectory", recorded)
    assert [event["event"] for event in events(running.post("api/trajectory", REQUEST))] == [
        "trajectory",
        "trajectory",
        "end",
    ]
    assert made[0] not in (running.thread, running.explorer.queue.worker)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"models": ["exp1"], "locations": [[2, 0]]}, "locations.0.0"),
        ({"models": ["exp1"], "steps": "many"}, "steps"),
        ({}, "models"),
        ([1, 2], "does not fit"),
    ],
)
def test_a_bad_request_is_refused_in_one_sentence(running, body, sentence):
    with pytest.raises(urllib.error.HTTPError) as refused:
        running.post("api/sample", body)
    got = json.load(refused.value)["sentence"]
    assert refused.value.code == 422 and sentence in got and got.endswith(".") and "\n" not in got


def test_an_unknown_model_is_an_error_in_the_stream(running):
    got = list(events(running.post("api/sample", {**REQUEST, "models": ["exp9"]})))
    assert got[-1]["event"] == "error" and "exp9" in got[-1]["sentence"]


class Held:
    """Sampling that waits, for tests of the jobs behind it and of a page that closes."""

    def __init__(self):
        self.go, self.begun, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.steps = 0

    def sample(self, request):
        try:
            self.begun.set()
            while not self.go.wait(0.02):
                self.steps += 1
                yield {"event": "step", "model": "exp1", "step": self.steps}
        finally:
            self.ended.set()


@pytest.fixture
def held(running, monkeypatch):
    work = Held()
    monkeypatch.setattr(running.session, "sample", work.sample, raising=False)
    yield work
    work.go.set()


def test_the_second_page_gets_its_position_and_is_then_served(running, held):
    first = running.post("api/sample", REQUEST, page="first")
    assert held.begun.wait(10)
    second = events(running.post("api/trajectory", REQUEST, page="second"))
    got = next(second)
    assert got == {"event": "queue", "ahead": 1}
    held.go.set()
    assert [event["event"] for event in second][-1] == "end"
    first.close()


def test_steps_are_sent_while_sampling_goes_on(running, held):
    got = events(running.post("api/sample", REQUEST))
    assert next(event for event in got if event["event"] == "step")["step"] == 1
    assert held.begun.is_set() and not held.ended.is_set()


def test_work_is_dropped_when_its_page_is_closed(running, held):
    body = json.dumps(REQUEST).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST /api/sample HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as wire:
        wire.sendall(head.encode() + body)
        assert held.begun.wait(10)
    assert held.ended.wait(10) and not held.go.is_set()
    until(lambda: running.explorer.queue.load() == {"running": 0, "waiting": 0})


def test_a_server_that_stops_ends_its_streams_and_another_takes_its_port(running, held):
    pulse = events(get(running, "api/pulse"))
    before = next(pulse)["boot"]
    sampling = events(running.post("api/sample", REQUEST))
    assert held.begun.wait(10)
    running.stop()
    assert list(pulse) == [] and "end" not in {event["event"] for event in sampling}
    assert held.ended.wait(10)
    running.start()
    assert next(events(get(running, "api/pulse")))["boot"] != before


def test_a_foreign_host_name_is_refused(running):
    for host, status in (("evil.example", 400), ("localhost", 200), (f"127.0.0.1:{running.port}", 200)):
        wire = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        wire.request("GET", "/", headers={"Host": host})
        assert wire.getresponse().status == status
        wire.close()


def test_the_page_may_reach_nothing_but_its_server(running):
    answer = get(running, "")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
    for file in _PAGE.iterdir():
        outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", file.read_text())
        assert [link for link in outside if link != "http://www.w3.org/2000/svg"] == [], file.name
        assert get(running, file.name).status == 200


def test_a_taken_port_is_refused_in_one_sentence():
    with bind("127.0.0.1", 0) as taken, pytest.raises(UserError, match="choose another --port"):
        bind("127.0.0.1", taken.getsockname()[1])


def test_addresses_are_such_as_a_browser_takes():
    assert address("127.0.0.1", 80) == address("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert address("::1", 80) == "http://[::1]:80/"


def test_the_verb_serves_until_it_is_interrupted(folders):
    words = [sys.executable, "-m", "tessera", "explore", str(folders["exp1C"]), "--port", "0", "--device", "cpu"]

    def take_interruptions():  # a shell that runs this in the background tells its children to ignore them
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    options = {"stderr": subprocess.PIPE, "text": True, "preexec_fn": take_interruptions}
    with subprocess.Popen(words, **options) as process:
        said = process.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", said)[0]
        assert "Tessera" in urllib.request.urlopen(url, timeout=60).read().decode()
        with urllib.request.urlopen(url + "api/pulse", timeout=60) as pulse:
            assert pulse.readline() == b"event: pulse\n"
            process.send_signal(signal.SIGINT)  # with a page still open
            assert process.wait(30) == 130
        assert "stopped" in process.stderr.read()


def status_of(running, body=None, host="localhost", **headers):
    wire = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    wire.request("POST" if body else "GET", "/api/sample" if body else "/api/hello", body, {"Host": host, **headers})
    status = wire.getresponse().status
    wire.close()
    return status


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost", "http://evil.example", 403),
        ("localhost", "null", 403),
        ("localhost", "http://localhost:1", 403),
        ("localhost", "http://localhost", 200),
        ("[::1]:8000", "http://[::1]:8000", 200),
        ("[::1", "http://[::1", 400),
    ],
)
def test_requests_come_from_the_own_page(running, host, origin, status):
    assert status_of(running, host=host, Origin=origin) == status


def test_a_body_without_end_is_not_read_to_its_end(running):
    assert status_of(running, b"a" * (1 << 19), **{"Content-Type": "application/json"}) == 413


def test_a_head_that_never_ends_is_not_waited_for(running, monkeypatch):
    monkeypatch.setattr("tessera.app.explorer.limits._PATIENCE", 0.5)
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as wire:
        wire.sendall(b"GET /api/hello HTTP/1.1\r\nHost: loc")
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert wire.recv(100) == b""
        assert time.monotonic() - began < 10


def test_the_oldest_idle_connection_makes_room_for_a_new_one(running, monkeypatch):
    monkeypatch.setattr("tessera.app.explorer.limits._MOST_CONNECTIONS", 3)
    held = [socket.create_connection(("127.0.0.1", running.port), timeout=20) for _ in range(6)]
    assert status_of(running) == 200
    for wire in held:
        wire.close()
