"""Every benchmark prints one record."""

import importlib
import json

import pytest

from programs import call_program
from tessera.evaluation.detection import Detection
from tessera.scenes.random import normal

SMALL = (
    "--device", "cpu", "--preset", "tiny", "--set", "data.size=8", "denoiser.width=8", "denoiser.blocks=1",
    "denoiser.mult=1,2", "denoiser.head_width=8", "training.batch=4", "training.render_batch=16",
)  # fmt: skip


def record_of(capfd, *words):
    assert call_program("bench", *words, "--json") == 0
    return json.loads(capfd.readouterr().out)


def test_the_render_benchmark_reports_speed_memory_and_its_settings(tmp_path, capfd):
    given = ("--size", 16, "--count", 4, "--repeats", 1, "--objects", 1, "--device", "cpu", "--batch", 2)
    record = record_of(capfd, "render", *given, "--out", tmp_path / "r" / "b.json")
    assert record == json.loads((tmp_path / "r" / "b.json").read_text())
    assert set(record["quality"]) == {"true", "fast"} and record["batch"] == 2
    for numbers in record["quality"].values():
        assert numbers["images_per_second"]["median"] == pytest.approx(4 / numbers["seconds"]["median"])
        assert numbers["peak_memory_bytes"] > 1e6
    assert record["scene_drawing"]["scenes_per_second"]["median"] > 0
    assert call_program("bench", "render", "--repeats", 0) == 2
    assert "--repeats must be at least 1" in capfd.readouterr().err


def test_the_detector_benchmark_counts_images_per_second(capfd, monkeypatch):
    one = Detection(0.5, 0.5, "red", "cube", "large", "metal", 0.9, 0.9)

    class FindsOne:
        def detect(self, images):
            return [[one] for _ in images], None

    monkeypatch.setattr("benchmarks.detector.load_detector", lambda weights, device: FindsOne())
    small = ("--size", 16, "--count", 5, "--objects", 1, "--repeats", 2, "--device", "cpu")
    record = record_of(capfd, "detector", *small)
    assert record["count"] == 5 and record["found_per_image"] == 1
    assert record["images_per_second"]["min"] <= record["images_per_second"]["median"]


def test_the_training_benchmark_tells_where_time_goes(capfd):
    record = record_of(capfd, "train", "--steps", 1, "--rounds", 2, "--warmup", 0, "--profile", *SMALL)
    rate = record["images_per_second"]
    assert rate["low"] < rate["value"] < rate["high"] and rate["n"] == 2
    assert record["utilization"]["flops_per_image"] > 0 and record["weights"] > 0
    assert {"name", "ms", "calls"} == set(record["kernels"][0]) and record["kernels"][0]["ms"] > 0
    assert record["settings"]["denoiser"]["mult"] == [1, 2]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("denoiser.wdth=8", "did you mean `width`"),
        ("denoisr.width=8", "did you mean `denoiser`"),
        ("denoiser.width=wide", "takes a whole number, not `wide`"),
        ("denoiser.kind=3", "There is no network `3`"),
    ],
)
def test_wrong_settings_are_one_sentence(capfd, override, sentence):
    assert call_program("bench", "train", "--preset", "tiny", "--set", override) == 2
    said = capfd.readouterr()
    assert sentence in said.err and said.err.count("\n") == 1 and not said.out


def test_the_denoising_benchmark_compares_with_the_global_network(capfd):
    words = ("--preset", "tiny", "--batch", 1, "--repeats", 2, "--device", "cpu")
    networks = record_of(capfd, "denoise", *words, "--set", "denoiser.width=8", "denoiser.head_width=8")["networks"]
    assert networks["edm2"]["ratio"] == 1 and set(networks) == {"edm2", "localconv", "patchwise"}


def test_the_locality_benchmark_measures_both_ways_and_finds_the_same_numbers(capfd):
    small = ("--preset", "tiny", "--probes", 6, "--levels", 2, "--images", 1, "--repeats", 1, "--device", "cpu")
    record = record_of(capfd, "locality", *small)
    assert record["ratio"] > 0 and record["ratio_with_one_forward_for_all_probes"] > 0
    assert record["largest_difference"] < 1e-4 and record["probes_timed_one_by_one"] == 4
    assert record["seconds"]["batched"] > 0
    assert call_program("bench", "locality", "--memory", 0) == 2
    assert "positive number of GiB, not 0" in capfd.readouterr().err


def test_the_dynamics_benchmark_reports_seconds(capfd):
    record = record_of(capfd, "dynamics", "--cells", 4, "--seeds", 2, "--repeats", 2)
    assert record["runs"] == 32 and 0 < record["seconds"]["min"] <= record["seconds"]["median"]


def test_without_a_known_benchmark_the_names_are_listed(capfd):
    assert call_program("bench", "rendr") == 2 and "locality" in capfd.readouterr().err
    assert call_program("bench", "--help") == 0 and "locality" in capfd.readouterr().out


def test_the_strategies_benchmark_measures_the_paths_of_this_device(capfd, monkeypatch):
    """Compiling is left out: what is measured is that each side trains, and how the record says so."""
    monkeypatch.setattr("tessera.training.trainer.torch.compile", lambda work, **options: work)
    monkeypatch.setattr("tessera.training.trainer.CompiledNormal", lambda: normal)
    record = record_of(capfd, "strategies", "--steps", 1, "--rounds", 2, *SMALL)
    compiled = record["paths"].pop("torch.compile")
    assert compiled["strategy"] == {"with": "compiled", "without": "eager"}
    assert compiled["steps_per_round"] == 4 and compiled["gain"]["n"] == 2
    rates = compiled["images_per_second"]
    assert compiled["gain"]["value"] == pytest.approx(rates["with"]["value"] / rates["without"]["value"], rel=0.5)
    assert all("CUDA" in entry["not_measured"] for entry in record["paths"].values()) and record["paths"]
    assert call_program("bench", "strategies", "--paths", "magic") == 2
    assert "no fast path `magic`" in capfd.readouterr().err


@pytest.mark.parametrize("path", ["scene kernel", "render kernel"])
def test_the_strategies_benchmark_hides_triton_from_the_module_that_chooses_a_kernel(path):
    from benchmarks.strategies import MODULE_PATHS, path_used

    module = importlib.import_module(MODULE_PATHS[path])
    assert module.importlib.util.find_spec("json")
    with path_used(path, used=False):
        assert module.importlib.util.find_spec("json") is None
    with path_used(path, used=True):
        assert module.importlib.util.find_spec("json")
