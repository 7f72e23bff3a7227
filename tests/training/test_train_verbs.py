"""The verbs train, ema and sample, from the command line."""

import json

import pytest
import torch
from PIL import Image

from programs import fitting_flags, with_set
from tessera.cli.main import main
from tessera.sampling import sample_folder as sampling
from tessera.sampling.prompts import image_seed, parse_ks

SMALL = [
    "--preset", "tiny", "--conditioner.cells", "4", "--data.size", "8", "--denoiser.width", "8", "--denoiser.blocks", "1",
    "--denoiser.mult", "1,2", "--denoiser.head-width", "8", "--training.batch", "4",
    "--training.render-batch", "16", "--training.checkpoint", "8", "--training.snapshot", "16", "--tensorboard", "off",
    "--device", "cpu",
]  # fmt: skip


def call(*words):
    with pytest.raises(SystemExit) as left:
        main(with_set(*words))
    return left.value.code


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "exp1"
    assert call("train", "exp1", "--objects", "1-2", "--total", "16", "--out", folder, *SMALL) == 0
    return folder


def test_training_leaves_the_promised_files(run):
    config = json.loads((run / "config.json").read_text())
    assert config["data"]["objects"] == [1, 2] and config["denoiser"]["mult"] == [1, 2]
    assert (run / "log.jsonl").read_text().count("\n") == 2
    assert len(list((run / "snapshots").glob("*.safetensors"))) == 4
    sheet = Image.open(run / "samples" / "000000000016.png")
    assert sheet.width > 6 * 128 and sheet.height > 3 * 128


def test_the_same_command_carries_on(run, capfd):
    assert call("train", "exp1", "--objects", "1-2", "--total", "24", "--out", run, *SMALL) == 0
    assert "Carrying on from state-000000000016" in capfd.readouterr().err


def test_tensorboard_events_are_written_on_request(tmp_path):
    words = [word if word != "off" else "on" for word in SMALL]
    assert call("train", "color", "--total", "4", "--out", tmp_path / "r", *fitting_flags("color", words)) == 0
    assert list((tmp_path / "r" / "tensorboard").iterdir())


def test_any_average_becomes_a_model_folder_that_samples(run, tmp_path):
    assert call("models", "export", run, "--std", "0.07", "--out", tmp_path / "model") == 0
    assert (
        call("sample", tmp_path / "model", "--k", "0,2-3", "--each", "2", "--steps", "2", "--out", tmp_path / "s") == 0
    )
    requested = json.loads((tmp_path / "s" / "samples.json").read_text())
    assert [image["k"] for image in requested["images"]] == [0, 0, 2, 2, 3, 3]
    assert requested["images"][2]["locations"] == [[0.65, 0.65], [0.65, 0.25]]
    assert requested["images"][2]["file"] == "k02/0000.png"
    assert Image.open(tmp_path / "s" / "k02" / "0000.png").size == (8, 8)
    sheet = torch.tensor(list(Image.open(tmp_path / "s" / "sheet-k02.png").convert("RGB").get_flattened_data()))
    assert (sheet == torch.tensor([230, 30, 30])).all(1).any()  # the red dots


def test_an_image_does_not_depend_on_its_batch(run, tmp_path):
    common = ["--steps", "2", "--seed", "5", "--device", "cpu"]
    assert call("sample", run, "--k", "1-3", "--each", "3", "--out", tmp_path / "a", *common) == 0
    assert call("sample", run, "--k", "2", "--each", "2", "--batch", "1", "--out", tmp_path / "b", *common) == 0
    one, other = (torch.tensor(list(Image.open(tmp_path / n / "k02" / "0001.png").get_flattened_data())) for n in "ab")
    assert (one - other).abs().max() <= 1


def test_locations_of_ones_own(run, tmp_path, capfd):
    words = ["--locations", "0.2,0.3 0.7,0.8", "--each", "1", "--steps", "2", "--json", "--out", tmp_path]
    assert call("sample", run, *words) == 0
    record = json.loads(capfd.readouterr().out)
    assert record["images"] == [
        {"file": "k02/0000.png", "k": 2, "locations": [[0.2, 0.3], [0.7, 0.8]],
         "conditioned_on": [[0.125, 0.375], [0.625, 0.875]], "colors": [], "seed": image_seed(0, 2, 0)}
    ]  # fmt: skip


def test_lists_of_k_are_read():
    assert parse_ks("0-3") == [0, 1, 2, 3] and parse_ks("1, 3,6-7") == [1, 3, 6, 7]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--locations", "0.5,1.5"], "outside the image"),
        (["--locations", "0.5"], "pair"),
        (["--colors", "red"], "are locations"),
        (["--k", "13"], "at most 12"),
        (["--k", "3-1"], "no list of K"),
        (["--each", "0"], "At least one"),
        (["--steps", "0"], "at least one step"),
        (["--std", "0.5"], "std lies between"),
        (["--images", "5"], "No snapshot"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_one_sentence(run, tmp_path, capfd, words, sentence):
    assert call("sample", run, "--steps", "2", "--out", tmp_path / "o", *words) == 2
    said = capfd.readouterr().err
    assert sentence in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "exp9"], "did you mean `exp"),
        (["train", "exp1", "--denoiser.widht", "3"], "--denoiser.width"),
        (["train", "exp1", "--preset", "medium"], "There is no preset `medium`"),
        (["train", "exp1", "--total", "many"], "no number of images"),
        (["train", "exp1", "--objects", "3-1"], "no range"),
        (["train", "exp1", "--training.lr", "nan"], "finite number"),
        (["train", "exp1", "--set", "training.p-std=-1"], "must be positive"),
        (["train", "exp1", "--set", "training.beta1=2"], "between 0 and 1"),
        (["train", "exp1", "--training.render-batch", "0"], "render-batch must be at least 1"),
        (["train", "exp1", "--denoiser.blocks", "-1"], "blocks must be at least 1"),
        (["train", "exp1", "--denoiser.head-width", "0"], "head-width must be at least 1"),
        (["train", "exp1C", "--denoiser.local-width", "0"], "local-width must be at least 1"),
        (["train", "exp3", "--conditioner.slots", "1"], "cannot hold 3 objects"),
        (["train", "exp1", "--minutes", "-1"], "--minutes cannot be negative"),
        (["models", "export", "nowhere"], "not a run folder"),
        (["sample", "nowhere"], "no model"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(words, sentence, capfd):
    assert call(*words) == 2
    said = capfd.readouterr().err
    assert sentence in said and "Traceback" not in said


@pytest.mark.parametrize("kind", ["a file", "a model"])
def test_what_is_no_run_folder_is_left_as_it_is(run, tmp_path, capfd, kind):
    where = tmp_path / "taken"
    if kind == "a file":
        where.write_text("mine")
    else:
        assert call("models", "export", run, "--out", where) == 0
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert call("train", "exp1", "--out", where, *SMALL) == 2
    assert "Traceback" not in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != ".lock") == before


def test_a_model_is_not_written_over_somebody_s_files(run, tmp_path, capfd):
    (tmp_path / "README.md").write_text("my notes")
    assert call("models", "export", run, "--out", tmp_path) == 2
    assert "choose another folder" in capfd.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["my notes"]


def test_sampling_carries_on_and_another_command_replaces_what_was_there(run, tmp_path, monkeypatch):
    words = ["sample", run, "--k", "1-2", "--steps", "2", "--device", "cpu", "--out", tmp_path / "s"]
    many, few = [*words, "--each", "3", "--batch", "2"], [*words, "--each", "1"]
    real, made = sampling.sample, []

    def until_third(*given, **options):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return real(*given, **options)

    monkeypatch.setattr(sampling, "sample", until_third)
    assert call(*many) == 130
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("k*/*.png")}
    assert len(kept) == 4  # two batches of six images
    monkeypatch.setattr(sampling, "sample", lambda *given, **options: made.append(1) or real(*given, **options))
    assert call(*many) == 0
    assert len(made) == 3 and all(file.stat().st_mtime_ns == time for file, time in kept.items())
    assert len(list((tmp_path / "s").rglob("k*/*.png"))) == 6
    assert call(*few) == 0
    assert len(list((tmp_path / "s").rglob("k*/*.png"))) == 2


def test_samples_are_not_mixed_with_renders(run, tmp_path, capfd):
    (tmp_path / "scenes.json").write_text("{}")
    assert call("sample", run, "--k", "1", "--steps", "2", "--out", tmp_path) == 2
    assert "something other than samples" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["scenes.json"]


def test_a_rate_that_falls_toward_the_total_keeps_the_total(tmp_path, capsys):
    words = ["train", "exp1", "--out", tmp_path / "cooled", *SMALL, "--training.cooldown", "8"]
    assert call(*words, "--total", "16") == 0
    assert call(*words, "--total", "32") == 2
    assert "training.total is `16`, not `32`" in capsys.readouterr().err.replace("\n", " ")
