"""Bring your own model: a flow-matching network with a training loop of its own, measured like ours.

It uses only Tessera's images in training, and no noise levels: it predicts the velocity of a straight path from
noise to image. One adapter makes it a denoiser, and every measure works on it.

    python docs/tutorials/own_model.py                        # minutes on a CPU
    python docs/tutorials/own_model.py --images 500000 --n 64 # longer, on a GPU
"""

from pathlib import Path

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from tessera.app.report.measure import ReportConfig
from tessera.app.report.verdict import verdict
from tessera.app.report.write import report
from tessera.conditioning import LocationGrid
from tessera.devices import pick_device
from tessera.models.adapters import FromVelocity
from tessera.models.model import Model
from tessera.scenes import Scenes
from tessera.training.stream import Stream

SIZE, MOST = 32, 3
conditioner = LocationGrid(cells=16, label="all")


class Flow(nn.Module):
    """Any network of (image on the path, time, condition); here, dilated convolutions."""

    def __init__(self, width: int = 48, depth: int = 4):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3 + 1, width, 3, padding=1)
        self.middle = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=2**n, dilation=2**n) for n in range(depth)
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, cond: Tensor) -> Tensor:
        maps = F.interpolate(
            conditioner.as_map(cond), size=x.shape[-2:]
        )  # (B, 1, H, W): the prompted locations
        shift = self.time(time[:, None].to(x))[:, :, None, None]
        x = self.first(torch.cat([x, maps], 1))
        for layer in self.middle:
            x = x + layer(F.silu(x + shift))
        return self.last(x)


def train(network: Flow, images: int, batch: int, device: torch.device) -> None:
    """An ordinary training loop for flow matching: the path is (1 - t) noise + t image."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    stream = Stream(Scenes(objects=(1, MOST)), SIZE, conditioner)
    for number, examples in enumerate(stream.steps(0, batch, render_batch=8 * batch, device=device)):
        if number * batch >= images:
            return
        noise, time = torch.randn_like(examples.images), torch.rand(batch, device=device)
        x = torch.lerp(noise, examples.images, time[:, None, None, None])
        loss = (network(x, time, examples.cond) - (examples.images - noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 50 == 0:
            print(f"{number * batch:>8,} images, loss {loss.item():.3f}")


def main(
    out: Path = Path("own-model"),
    images: int = 16_384,
    batch: int = 32,
    n: int = 8,
    steps: int = 18,
    device: str = "auto",
) -> None:
    torch.manual_seed(0)
    where = pick_device(device)
    network = Flow().to(where)
    train(network, images, batch, where)

    # The adapter: this path is at the image at time 1. Without a condition the network gets that of an empty prompt.
    empty = conditioner.at((), device=where)
    predict = lambda x, time, cond: network(x, time, empty.expand(len(x), -1) if cond is None else cond)  # noqa: E731
    denoiser = FromVelocity(predict, data_at=1)
    denoiser.network = network  # so that its weights are counted and moved with it

    # With its conditioner, the side of its images and the range of objects in training it is a model like ours.
    facts = {"images_seen": images}
    model = Model(denoiser.eval().requires_grad_(False), conditioner, SIZE, facts, max_train_objects=MOST)
    found = report(
        {"mine": model},
        out / "report.html",
        ReportConfig(n=n, ks=(0, 1, 2, 3, 4, 6), steps=steps, quick=True),
        device=device,
    )
    subject = found.subjects[0]
    print(verdict(subject.scores, subject.locality).headline)
    print(f"Read {out / 'report.html'}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
