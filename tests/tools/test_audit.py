"""Licenses and advisories of the dependencies."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import audit
from programs import call_program


@pytest.fixture
def osv():
    """A server of advisories that knows of one vulnerability, in version 1.0 of `holey`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            known = [query["package"]["name"] == "holey" and query["version"] == "1.0" for query in queries]
            self.send_response(200)
            self.end_headers()
            results = [{"vulns": [{"id": "PYSEC-1"}]} if one else {} for one in known]
            self.wfile.write(json.dumps({"results": results}).encode())

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def test_licenses_of_what_is_needed_go_with_ours(capfd, osv):
    assert call_program("audit", "--url", osv) == 0
    shown = capfd.readouterr()
    assert "torch" in shown.out and "to be looked at" not in shown.out and shown.err == ""


def test_a_known_vulnerability_is_an_error(capfd, tmp_path, osv):
    (tmp_path / "c.txt").write_text("sound==2.0\nholey==1.0  # old\nholey-too==1.0\n")
    assert call_program("audit", "--constraints", tmp_path / "c.txt", "--url", osv) == 1
    assert "holey 1.0 has known vulnerabilities: PYSEC-1" in capfd.readouterr().err


def test_without_advisories_it_says_so(capfd):
    assert call_program("audit", "--url", "http://127.0.0.1:9/") == 0
    assert "Advisories were not looked up" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "fits"), [("MIT", True), ("Apache-2.0 AND CNRI-Python", True), ("GPL-3.0-only", False), ("", False)]
)
def test_a_license_that_binds_ours_is_named(text, fits):
    assert audit.goes_with_ours(text) == fits
