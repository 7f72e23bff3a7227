"""Small networks that are awake, and a server in a thread that can be stopped and started anew."""

import json
import threading
import urllib.request

import pytest
import torch

from tessera.app.explorer.models import open_models
from tessera.config import fitting, settings_for
from tessera.evaluation.detector import load_detector
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.model_folder import save_model

SMALL = {"data": {"size": 32}, "denoiser": {"width": 8, "depth": 2, "attention": ()}}


def woken(network):
    """An untrained network answers nothing: its gains are zero."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(False)
        if name.endswith("gain"):
            parameter.copy_(0.4 + 0.6 * torch.rand((), generator=generator))
    return network.eval()


def keep_model(folder, experiment):
    settings = settings_for(experiment, "tiny", fitting(settings_for(experiment, "tiny"), SMALL))
    save_model(folder, woken(build_denoiser(settings)), conditioner_for(settings), {"settings": settings.plain()})
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Model folders by name: one that sees everything, a local one, one got a list, one conditioned on colors."""
    root = tmp_path_factory.mktemp("models")
    return {name: keep_model(root / name, name) for name in ("exp1", "exp1C", "exp3", "color")}


@pytest.fixture(scope="session")
def models(folders):
    return open_models([str(folder) for folder in folders.values()], torch.device("cpu"))


@pytest.fixture(scope="session")
def detector():
    return load_detector()


@pytest.fixture
def session(models, detector):
    """With an empty memory."""
    from tessera.app.explorer.session import Session  # here, so that without the extra its tests can skip

    return Session(models, detector)


class Running:
    """A server in a thread of this process."""

    def __init__(self, session, port=0):
        self.session, self.port, self.server = session, port, None
        self.start()

    def start(self):
        from tessera.app.explorer.server import Explorer, Server, bind

        door = bind("127.0.0.1", self.port)
        self.port = door.getsockname()[1]
        self.explorer = Explorer(self.session)
        self.server = Server(self.explorer, "127.0.0.1")
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [door]}, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def post(self, path, body, page="test"):
        """An open answer."""
        headers = {"Content-Type": "application/json", "X-Page": page}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=60)


@pytest.fixture(scope="session")
def start_server():
    """`start_server(session)`: a server whose `stop` the caller calls."""
    return Running


@pytest.fixture
def running(session, start_server):
    server = start_server(session)
    yield server
    server.stop()
