"""The process of one piece: a `tessera` command that ends with the worker that started it, however that ends."""

import importlib
import os
import sys
import threading


def end_with_parent() -> None:
    """The worker holds the other end of our stdin; when that closes, even by SIGKILL, no result is awaited any more.

    Nothing is saved on the way: a retry of this piece may begin at once and must not find our locks.
    """

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    # By name, so that no module of the package imports the command line.
    importlib.import_module("tessera.cli.main").main(sys.argv[1:])
