"""The table of experiments and presets, and how settings are changed, kept and compared."""

import dataclasses
import json

import pytest

from tessera.conditioning import ColorCounts, LocationGrid, LocationList
from tessera.config import (
    EXPERIMENTS,
    GROUPS,
    Ki,
    Mi,
    first_difference,
    fitting,
    format_count,
    parse_changes,
    parse_count,
    parse_range,
    settings_for,
    settings_from,
)
from tessera.errors import UserError
from tessera.models.build import build_denoiser, conditioner_for, denoiser_config
from tessera.models.edm2 import EDM2
from tessera.models.local_conv import LocalConv
from tessera.models.patchwise import Patchwise, Tiled

TABLE = {  # name: conditioner, labeled objects, network
    "exp1": (LocationGrid, "all", EDM2),
    "exp2": (LocationGrid, "one", EDM2),
    "exp2-random": (LocationGrid, "random", EDM2),
    "exp2-drop": (LocationGrid, "drop", EDM2),
    "exp3": (LocationList, "all", EDM2),
    "exp2L": (LocationGrid, "one", Patchwise),
    "exp3L": (LocationList, "all", Patchwise),
    "exp1C": (LocationGrid, "all", LocalConv),
    "exp2C": (LocationGrid, "one", LocalConv),
    "color": (ColorCounts, "all", EDM2),
}


def weights(denoiser):
    return sum(p.numel() for p in denoiser.parameters())


def test_the_table_has_the_rows_of_the_study():
    assert list(EXPERIMENTS) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_each_row_builds_its_conditioner_and_network(name):
    settings = settings_for(name, "small")
    conditioner, (kind, label, network) = conditioner_for(settings), TABLE[name]
    denoiser = build_denoiser(settings)
    within = denoiser.network if isinstance(denoiser, Tiled) else denoiser
    assert type(conditioner) is kind and conditioner.label == label and type(within) is network
    assert denoiser.cond_dim == conditioner.dim


def test_the_paper_preset_is_the_papers():
    settings = settings_for("exp1", "paper")
    assert weights(build_denoiser(settings)) == 124_330_021
    training = settings.training
    assert (training.batch, training.total, training.lr, training.lr_decay_start) == (2048, 128 * Mi, 0.012, 35_000)
    assert settings.data.size == 128 and not settings.denoiser.coords


@pytest.mark.parametrize("name", TABLE)
def test_small_networks_fit_into_eight_megabytes_of_half_precision(name):
    assert weights(build_denoiser(settings_for(name, "small"))) <= 4_000_000


def test_another_network_is_one_setting_away():
    denoiser = build_denoiser(settings_for("exp3", "tiny", {"denoiser": {"kind": "localconv"}}))
    assert type(denoiser) is LocalConv and denoiser.conditioner == LocationList()


def test_initial_weights_depend_on_the_seed_alone():
    first, again = (build_denoiser(settings_for("exp1", "small")).state_dict() for _ in range(2))
    other = build_denoiser(settings_for("exp1", "small", {"training": {"seed": 1}})).state_dict()
    assert all((first[name] == again[name]).all() for name in first)
    assert not (first["network.out.weight"] == other["network.out.weight"]).all()


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("preset", ["tiny", "small", "paper"])
def test_settings_survive_json(name, preset):
    settings = settings_for(name, preset, {"data": {"objects": (1, 5)}})
    assert settings_from(json.loads(json.dumps(settings.plain()))) == settings


def test_run_folders_are_named_after_what_is_in_them():
    assert settings_for("exp2L", "tiny", {"data": {"objects": (1, 5)}}).run_name == "exp2L-M5-tiny"
    assert settings_for("exp1", "small", {"data": {"objects": (2, 4)}}).run_name == "exp1-N2-4-small"


@pytest.mark.parametrize(
    ("experiment", "group", "setting"),
    [
        ("exp1C", "denoiser", "width"),
        ("exp1C", "denoiser", "dropout"),
        ("exp1", "denoiser", "local_width"),
        ("exp1", "denoiser", "radius"),
        ("exp2C", "denoiser", "cond_radius"),
        ("exp1", "training", "loss_radius"),
        ("exp1", "conditioner", "slots"),
        ("color", "conditioner", "cells"),
    ],
)
def test_a_run_has_no_setting_that_its_network_does_not_have(experiment, group, setting):
    with pytest.raises(UserError, match=f"has no setting `{setting}`; it has "):
        settings_for(experiment, "tiny", {group: {setting: 1}})
    assert setting not in settings_for(experiment, "tiny").plain()[group]


def test_of_changes_for_several_runs_each_takes_what_it_has():
    changes = {"denoiser": {"radius": 1, "width": 8}, "training": {"patches": 4, "lr": 1.0}}
    local, whole = (fitting(settings_for(name, "tiny"), changes) for name in ("exp2L", "exp1"))
    assert local == changes and whole == {"denoiser": {"width": 8}, "training": {"lr": 1.0}}


OTHER = {
    "width": 48, "mult": (1,), "blocks": 2, "attention": (16,), "head_width": 12, "emb_mult": 4, "coords": False,
    "tile": 1, "radius": 1, "cond_radius": 1, "depth": 3, "local_width": 48, "dropout": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("experiment", ["exp1", "exp1C", "exp2L"])
@pytest.mark.parametrize("setting", OTHER)
def test_every_setting_of_a_network_reaches_it(experiment, setting):
    base = settings_for(experiment, "tiny", {"data": {"size": 64}})
    change = fitting(base, {"denoiser": {setting: OTHER[setting]}})
    if change["denoiser"]:
        other = settings_for(experiment, "tiny", {"data": {"size": 64}, **change})
        assert denoiser_config(build_denoiser(base)) != denoiser_config(build_denoiser(other))


def test_all_settings_of_networks_are_looked_at():
    names = {field.name for kind in GROUPS["denoiser"] for field in dataclasses.fields(kind)}
    assert {"kind", *OTHER} == names


def test_the_first_difference_is_named():
    old = settings_for("exp1", "tiny")
    new = settings_for("exp1", "tiny", {"training": {"batch": 32, "total": 5}})
    assert first_difference(old, new, {"training.total"}) == ("training.batch", old.training.batch, 32)
    assert first_difference(old, old, set()) is None
    assert first_difference(old, settings_for("exp2", "tiny"), set())[0] == "experiment"


@pytest.mark.parametrize(
    ("text", "number"), [("4Mi", 4 * Mi), ("1.5ki", 1536), ("500k", 500_000), ("65536", 65536), ("2M", 2_000_000)]
)
def test_numbers_of_images_can_be_written_short(text, number):
    assert parse_count(text) == number
    assert parse_count(format_count(number)) == number


def test_ranges_are_read():
    assert parse_range("1-3") == (1, 3) and parse_range("4") == (4, 4)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: settings_for("exp4"), "did you mean `exp"),
        (lambda: settings_for("colour"), "did you mean `color`"),
        (lambda: settings_for("exp1", "smal"), "did you mean `small`"),
        (lambda: settings_for("exp1", "tiny", {"denoiser": {"widht": 3}}), "did you mean `width`"),
        (lambda: settings_for("exp1", "tiny", {"trainin": {}}), "did you mean `training`"),
        (lambda: settings_for("exp1", "tiny", {"data": {"objects": (3, 1)}}), "cannot hold"),
        (lambda: settings_for("exp1", "tiny", {"training": {"ema": (0.5,)}}), "running average"),
        (lambda: settings_for("exp1", "tiny", {"training": {"batch": 0}}), "at least one"),
        (lambda: settings_for("exp2L", "tiny", {"training": {"patches": 3}}), "come in pairs"),
        (lambda: settings_for("exp2L", "tiny", {"training": {"loss_radius": -1}}), "at least the center cell"),
        (lambda: settings_for("color", "tiny", {"denoiser": {"kind": "patchwise"}}), "lie somewhere"),
        (lambda: settings_for("exp2L", "tiny", {"data": {"size": 40}}), "do not divide"),
        (lambda: parse_count("4Mb"), "no number of images"),
        (lambda: parse_range("3-1"), "no range"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(mistake, words):
    with pytest.raises(UserError, match=words):
        mistake()


def test_changes_become_values_of_the_settings_own_types():
    texts = ("training.batch=2Ki", "training.ema=0.05,0.1", "training.lr=0.5", "data.objects=2-4")
    assert parse_changes(texts) == {
        "training": {"batch": 2 * Ki, "ema": (0.05, 0.1), "lr": 0.5},
        "data": {"objects": (2, 4)},
    }
    network = parse_changes(("denoiser.mult=1,2,4", "denoiser.coords=off", "denoiser.attention=none"))
    assert network == {"denoiser": {"mult": (1, 2, 4), "coords": False, "attention": ()}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("denoiser.mult=1,x", "no list of numbers"),
        ("denoiser.widht=8", "did you mean `width`"),
        ("training.lr=fast", "takes a number, not `fast`"),
        ("training.strategy=eagre", "did you mean `eager`"),
        ("training.total", "write for example training.total=4Mi"),
        ("nothing.total=1", "group of settings"),
    ],
)
def test_changes_that_do_not_fit_are_refused(text, words):
    with pytest.raises(UserError, match=words):
        parse_changes((text,))


def test_the_width_of_the_embedding_and_of_the_local_network_reach_the_network():
    changes = {"width": 8, "mult": (1,), "head_width": 8, "emb_mult": 5}
    network = build_denoiser(settings_for("exp1", "tiny", {"denoiser": changes})).network
    assert network.cond.weight.shape[0] == 5 * 8
    local = build_denoiser(settings_for("exp1C", "tiny", {"denoiser": {"local_width": 24}}))
    assert local.config["width"] == 24


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"training": {"ema": ()}}, "At least one"),
        ({"training": {"ema": (0.1, 0.1)}}, "one is enough"),
        ({"denoiser": {"dropout": 1.0}}, "between 0 and 1"),
    ],
)
def test_settings_that_could_not_be_trained_are_refused(change, why):
    with pytest.raises(UserError, match=why):
        settings_for("exp1", "tiny", change)


def test_a_config_of_an_earlier_version_reads_as_today():
    then = {
        "experiment": "exp2",
        "preset": "tiny",
        "tell": {"kind": "grid", "label": "one", "slots": 12, "fill": "first"},
        "denoiser": {"kind": "patchwise", "hears": 3, "depth": 6, "local_width": 96},
        "training": {"micro": 16, "rampup": 99, "decay": 0, "stockpile": 64, "compile": "off"},
    }
    settings = settings_from(then)
    assert (settings.conditioner.labels, settings.denoiser.cond_radius) == ("one", 3)
    training = settings.training
    assert (training.micro_batch, training.lr_warmup, training.lr_decay_start) == (16, 99, 0)
    assert (training.render_batch, training.strategy) == (64, "eager")
    strategies = {"auto": "auto", "on": "compiled", "tuned": "compiled"}
    for old, new in strategies.items():
        assert settings_from({"training": {"compile": old}}).training.strategy == new
