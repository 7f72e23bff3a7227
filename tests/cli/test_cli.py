"""The command line: fast, and one clear sentence for every mistake."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tessera import load
from tessera.cli.main import VERBS, main, options_class, parse
from tessera.cli.options import flags_of
from tessera.conditioning import LocationGrid
from tessera.conditioning.registry import CONDITIONERS
from tessera.config import changed, settings_for


def complaint(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(list(words))
    assert leaving.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1, printed.err
    return printed.err


def test_help_does_not_import_torch():
    code = "import sys; from tessera.cli.main import overview; overview(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in VERBS)


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tessera 0.")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([*name.split(), "--help"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: tessera {name}" in shown and "{None" not in shown and "default: None" not in shown


@pytest.mark.parametrize("how", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_leaves_early_is_no_error(how):
    words = [sys.executable, "-m", "tessera", "reproduce", "status", *how]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # before anything was written
    assert process.stderr.read() == "" and process.wait() == 0


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_option_takes_what_is_no_finite_number(capsys, value):
    assert "--s-churn takes a finite number" in complaint(capsys, "sample", "exp1", "--s-churn", value)
    assert "--minutes takes a finite number" in complaint(capsys, "train", "exp1", f"--minutes={value}")


def test_a_file_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tessera.cli.studies.Composition.run", None)
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    for out in (tmp_path / "file" / "x.json", tmp_path / "folder.json"):
        complaint(capsys, "reproduce", "composition", "exp2", "--out", str(out))


def test_a_folder_may_have_a_dot_in_its_name(capsys, tmp_path):
    words = ["render", "--count", "1", "--size", "16", "--device", "cpu", "--out", str(tmp_path / "v1.0")]
    for _ in range(2):
        with pytest.raises(SystemExit) as leaving:
            main(words)
        assert leaving.value.code == 0, capsys.readouterr().err


def test_running_out_of_memory_is_one_sentence(capsys, monkeypatch):
    import torch

    monkeypatch.setattr("tessera.cli.models.Models.run", lambda self: torch.empty(10**15))
    assert "not enough memory" in complaint(capsys, "models")
    monkeypatch.setattr("tessera.cli.models.Models.run", lambda self: {}[1])
    with pytest.raises(KeyError):
        main(["models"])


def test_a_misspelt_verb_is_answered_with_the_nearest(capsys):
    assert "did you mean `render`" in complaint(capsys, "rendr")
    assert "did you mean `detector calibrate`" in complaint(capsys, "detector", "calibrat")


def test_a_misspelt_option_is_answered_with_the_nearest(capsys):
    said = complaint(capsys, "render", "--out", "x", "--coun", "5")
    assert "no option --coun" in said and "--count" in said


def test_a_wrong_value_names_its_option(capsys):
    assert "--count" in complaint(capsys, "render", "--out", "x", "--count", "abc")
    assert "one of auto, cpu, cuda, mps, not `cude`" in complaint(capsys, "render", "--out", "x", "--device", "cude")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dynamics", "run", "--width", "1.5"], "--width takes a whole number, not `1.5`."),  # int or None
        (["dynamics", "run", "--set", "dim=1.5"], "dim takes a whole number, not `1.5`."),
        (["dynamics", "run", "--omega", "much"], "--omega takes a number, not `much`."),
        (["sample", "exp1", "--each", "few"], "--each takes a whole number, not `few`."),
    ],
)
def test_a_value_that_is_no_number_is_refused_in_words(words, sentence, capsys):
    assert sentence in complaint(capsys, *words)


def test_a_missing_option_is_named(capsys):
    assert "--out" in complaint(capsys, "render")


def test_there_are_at_most_24_verbs_and_260_options():
    counts = {name: len(set(flags_of(options_class(name)))) for name in VERBS}
    print(f"{len(VERBS)} verbs, {sum(counts.values())} options: {counts}")
    assert len(VERBS) <= 24 and sum(counts.values()) <= 260


@pytest.mark.parametrize("name", VERBS)
def test_the_options_that_are_counted_are_those_of_the_help(name, capsys):
    """Of `train`, whose options depend on the experiment, exp2L has most of the networks'."""
    with pytest.raises(SystemExit):
        main([*name.split(), *(["exp2L"] if name == "train" else []), "--help"])
    shown = {*re.findall(r"--[a-z][\w.-]*", capsys.readouterr().out)}
    counted = set(flags_of(options_class(name)))
    others = ("--conditioner.slots", "--denoiser.depth", "--denoiser.local-width")  # of a list, of localconv
    assert counted - shown <= ({*others} if name == "train" else set())
    assert {flag for flag in shown if "." in flag} <= counted


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_knows_verbs_and_options(shell, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["--print-completion", shell])
    script = capsys.readouterr().out
    assert leaving.value.code == 0 and "--s-churn" in script and '"dynamics sweep"' in script
    assert "bash" in complaint(capsys, "--print-completion", "fish")


def test_bash_completes_verbs_options_and_families(capsys):
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    script = capsys.readouterr().out

    def completed(*words):
        quoted = " ".join(f"'{word}'" for word in words)
        completion = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tessera; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", f"{script}\n{completion}"], capture_output=True, text=True).stdout.split()

    assert completed("tessera", "loc") == ["locality"]
    assert completed("tessera", "sample", "--s-") == ["--s-churn"]
    assert completed("tessera", "dynamics", "sw") == ["sweep"]
    assert "--mu" in completed("tessera", "dynamics", "run", "--")


def test_the_config_of_a_run_gives_the_settings_and_options_change_them(tmp_path):
    settings = settings_for("exp2L", "tiny", {"training": {"lr": 0.5}})
    (tmp_path / "config.json").write_text(json.dumps({"tessera": "0", **settings.plain()}))
    parsed = parse("train", ["--config", str(tmp_path / "config.json"), "--denoiser.radius", "1"])
    assert parsed.settings == changed(settings, {"denoiser": {"radius": 1}})


def test_a_registered_conditioner_is_trained_with_settings_of_its_own(tmp_path, monkeypatch, recwarn):
    @dataclass(frozen=True)
    class Coarse(LocationGrid):
        """A grid with a kind of its own."""

        strength: float = 1.0

        @property
        def config(self):
            return {**super().config, "kind": "coarse", "strength": self.strength}

    monkeypatch.setitem(CONDITIONERS.parts, "coarse", Coarse)
    settings = [
        "--preset",
        "tiny",
        "--denoiser.width",
        "8",
        "--total",
        "16",
        "--training.batch",
        "8",
        "--data.size",
        "16",
    ]
    own = ["--conditioner.kind", "coarse", "--conditioner.cells", "4", "--conditioner.strength", "2.5"]
    with pytest.raises(SystemExit) as leaving:
        main(["train", "exp1", *own, *settings, "--device", "cpu", "--out", str(tmp_path / "run")])
    assert leaving.value.code is None or leaving.value.code == 0
    model = load(tmp_path / "run")
    assert model.conditioner == Coarse(4, "all", 2.5) and not [w for w in recwarn if "Union" in str(w.message)]


def test_a_setting_of_another_network_is_refused(capsys):
    said = complaint(capsys, "train", "exp1C", "--denoiser.width", "8")
    assert "--denoiser.width is for another network" in said
