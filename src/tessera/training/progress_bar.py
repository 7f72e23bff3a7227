"""The progress of a run: a bar on stderr, and TensorBoard."""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tessera.config import Settings
from tessera.console import progress
from tessera.errors import needs_extra
from tessera.training.distributed import ProcessGroup


class ProgressBar(ExitStack):
    """Shows the progress of a run on stderr and writes it to TensorBoard; only the leading process does."""

    def __init__(self, settings: Settings, folder: Path, group: ProcessGroup, tensorboard: str):
        super().__init__()
        self.settings, self.group, self.folder = settings, group, folder
        self.open_writer = _board_opener(tensorboard) if group.leads else None
        self.board: Any = None

    def __enter__(self) -> "ProgressBar":
        self.advance = self.enter_context(progress(self.settings.run_name, self.settings.training.total))
        return self

    def step(self, images_seen: int) -> None:
        if self.group.leads:
            self.advance(to=images_seen)

    def record(self, record: dict[str, Any]) -> None:
        self.advance(0, note=f"{record['images_per_second']:,.0f} images/s, loss {record['loss']:.4f}")
        if self.board is None and self.open_writer:  # not before there is a run to write about
            self.board = self.open_writer(self.folder / "tensorboard")
            self.callback(self.board.close)
        if self.board is not None:
            for name in ("loss", "lr", "images_per_second"):
                self.board.add_scalar(name, record[name], record["images_seen"])


def _board_opener(wanted: str) -> Any:
    """What opens a TensorBoard writer into a folder, or None."""
    if wanted == "off" or (wanted == "auto" and find_spec("tensorboard") is None):
        return None
    with needs_extra("TensorBoard is not installed", "track", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter
