"""Tiny untrained pipelines, built once per worker; without the extra none of these tests are collected."""

import importlib.util

import pytest
import torch

HERE = all(importlib.util.find_spec(name) for name in ("diffusers", "transformers", "accelerate"))
collect_ignore_glob = [] if HERE else ["test_sdxl_*.py"]

WORDS = ["a", "photograph", "of", "horse", "dog", "cat", "left", "right", "big", "hokusai"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The tiny pipeline on disk."""
    from tiny_pipeline import tiny_sdxl

    return tiny_sdxl(tmp_path_factory.mktemp("sdxl") / "tiny")


@pytest.fixture(scope="session")
def sdxl(folder):
    """The same, loaded."""
    from tessera.studies.text_to_image.pipeline import load_sdxl

    return load_sdxl(folder)


@pytest.fixture(scope="session")
def deep():
    """All 70 blocks, at an eighth of the tiny latent's area."""
    from tessera.studies.text_to_image.pipeline import Sdxl
    from tiny_pipeline import DEEP, make_pipeline

    return Sdxl(make_pipeline(DEEP, WORDS, seed=0), "deep", (64, 64))


@pytest.fixture
def latents(sdxl):
    """Two noisy latents and their noise level."""
    return sdxl.start([3, 4], 15), torch.tensor(float(sdxl.sigmas(15)[0]))
