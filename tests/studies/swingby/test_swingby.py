"""Swing-by in a diffusion model: settings, records that resume, and a summary that separates a rise from chance."""

import json

import numpy as np
import pytest
import torch

from programs import with_set
from tessera.cli.main import dispatch
from tessera.errors import UserError
from tessera.studies.swingby import analysis
from tessera.studies.swingby.circles import COMPOSITION
from tessera.studies.swingby.diffusion import (
    Swingby,
    SwingbyConfig,
    _parse_share,
    error_band,
    error_of,
    finished,
    last_crossing,
    new_network,
    new_trainer,
    rise_record,
    run_path,
    summary,
    train_all,
    train_one,
)

SMALL = SwingbyConfig(gaps=(0.4,), seeds=1, steps=3, batch=4, moments=3, images=2, levels=2, width=8)


def run_with(path, scatter=0.0, seed=0, images=32):
    """A record whose composition goes along `path` (T, 2), and whose other corners are right from the start."""
    rng = np.random.default_rng(seed)
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
    locations = np.tile(corners, (len(path), 1, 1))  # (T, corners, 2)
    locations[:, COMPOSITION] = path
    noise = scatter * rng.normal(size=(len(path), 4, images, 2))
    steps = list(range(1, len(path) + 1))
    made = {"steps": steps, "coordinates": (locations[:, :, None] + noise).tolist()}
    return {**made, "provenance": {"device": "here"}}


def test_evaluations_begin_at_the_first_step_and_end_at_the_last():
    steps = SwingbyConfig(steps=400, moments=20).evaluation_steps
    assert steps[0] == 1 and steps[-1] == 400 and steps == sorted(set(steps))


def test_a_run_records_every_corner_at_every_evaluation_and_is_reproducible():
    trainer = new_trainer(SMALL)
    one, again = (train_one(0.4, 1, SMALL, trainer) for _ in range(2))
    assert np.array(one["coordinates"]).shape == (3, 4, 2, 2) and one["steps"] == [1, 2, 3] == SMALL.evaluation_steps
    assert one == again != train_one(0.4, 2, SMALL, trainer)
    assert one == train_one(0.4, 1, SMALL, new_trainer(SMALL))


def test_another_seed_is_another_network():
    one, other = (new_network(seed, SMALL).out.weight for seed in (0, 1))
    assert not torch.equal(one, other)


def test_runs_of_two_seeds_share_no_noise(monkeypatch):
    trainer, drawn = new_trainer(SMALL), []
    noise_of = trainer.noise
    monkeypatch.setattr(trainer, "noise", lambda views: drawn.append(noise_of(views)) or drawn[-1])
    for seed in (0, 1):
        train_one(0.4, seed, SMALL, trainer)
    noise = torch.cat([noise for _, noise in drawn]).flatten(1)
    assert len(noise) == 2 * SMALL.steps * SMALL.batch == len(noise.unique(dim=0))


def test_finished_runs_are_left_alone_and_processes_share_the_rest(tmp_path):
    config = SwingbyConfig(**{**SMALL.plain(), "gaps": (0.3, 0.6)})
    train_all(config, tmp_path, share=(1, 2))
    assert finished(tmp_path, 0.3, 0, config) is None and finished(tmp_path, 0.6, 0, config)
    before = run_path(tmp_path, 0.6, 0).read_bytes()
    train_all(config, tmp_path)
    assert finished(tmp_path, 0.3, 0, config) and run_path(tmp_path, 0.6, 0).read_bytes() == before
    assert finished(tmp_path, 0.6, 0, SwingbyConfig(**{**config.plain(), "gaps": (0.6,), "batch": 8})) is None


def test_the_error_is_the_squared_distance_to_the_composition():
    assert error_of(np.full((2, 3, 4, 2), 0.5)) == pytest.approx([0.25] * 3)


@pytest.mark.parametrize("differ", ["seeds", "images"])
def test_the_band_is_as_wide_as_seeds_and_images_scatter(differ):
    shape = (5, 1, 1, 1) if differ == "seeds" else (1, 1, 5, 1)
    composed = np.broadcast_to(np.linspace(0, 1, 5).reshape(shape), (5, 2, 5, 2))
    low, high = error_band(composed, resamples=100)
    assert (high - low > 0.1).all()


def test_a_path_that_turns_back_is_a_swing_and_a_noisy_falling_one_is_not():
    rise = np.concatenate([np.linspace(0.5, 0.9, 8), np.linspace(0.9, 0.3, 8), np.linspace(0.3, 1, 16)])
    turning = np.stack([np.linspace(0.5, 1, 32), rise], axis=1)
    found = summary(0.4, [run_with(turning, 0.1, seed) for seed in range(5)])
    assert found["swing_by"] and found["p"] < 0.01 and found["rise"]["low"] > 0.1 > found["rise_by_chance"]
    falling = np.linspace([0.5, 0.4], [1, 1], 32)
    straight = summary(0.4, [run_with(falling, 0.3, seed) for seed in range(5)])
    assert not straight["swing_by"] and straight["p"] > 0.05


def test_the_rise_is_read_from_the_samples_that_chance_is_read_from():
    """A parabola through them would lift the measured rise alone, and not what it is compared with."""
    wave = np.linspace(0.3, 1, 24) + 0.3 * np.sin(np.linspace(0, 2 * np.pi, 24))
    composed = np.repeat(wave[None, :, None, None], 2, -1)  # (S, T, N, 2), no scatter at all
    steps, errors = np.arange(24.0), error_of(composed)
    found = rise_record(steps, composed, resamples=20)
    assert analysis.swing(steps, errors).rise > analysis.rise(errors)
    assert found["rise"]["value"] == found["rise"]["low"] == found["rise"]["high"] == analysis.rise(errors)


def test_what_images_without_circles_do_is_no_swing():
    """Before the shown corners are drawn there is nothing to measure."""
    falling = np.linspace([0.5, 0.4], [1, 1], 32)
    falling[:6] = [[0.1, 0.1], [0.9, 0.9]] * 3
    runs = [run_with(falling, 0.1, seed) for seed in range(5)]
    for run in runs:
        run["coordinates"][:6] = np.full_like(run["coordinates"][:6], 0.5).tolist()
        for moment in (1, 3):
            run["coordinates"][moment][COMPOSITION] = np.ones((len(run["coordinates"][0][0]), 2)).tolist()
    found = summary(0.4, runs)
    assert found["drawn_at"] == 7 and not found["swing_by"] and found["machines"] == ["here"]


def test_the_first_concept_is_the_one_that_crosses_the_middle_first():
    path = np.stack([np.linspace(0, 1, 9), np.linspace(-1, 1, 9)], axis=1)
    found = summary(0.4, [run_with(path)])
    assert found["first"] == {"color": 5.0, "size": 7.0, "concept": "color"} and found["trained_at"] == 1
    assert last_crossing(np.arange(3.0), np.array([1.0, 0.0, 0.0]), 0.5) is None


def test_the_verb_writes_a_record_and_a_figure(tmp_path, capsys):
    words = [f"--{name}={getattr(SMALL, name)}" for name in ("seeds", "steps", "batch", "moments", "images")]
    words += ["--levels=2", "--width=8", "--gaps=0.4", f"--root={tmp_path / 'runs'}", f"--out={tmp_path / 's.json'}"]
    dispatch(with_set("reproduce", "swingby", *words, "--json"))
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "s.json").read_text())
    assert record["gaps"][0]["gap"] == 0.4 and len(record["gaps"][0]["error"]) == 3
    dispatch(with_set("reproduce", "swingby", *words, "--seeds=4", "--minutes=0", "--json"))
    again = json.loads(capsys.readouterr().out)
    assert again["gaps"] == record["gaps"]  # what is missing was not trained
    with pytest.raises(UserError, match="no finished run"):
        Swingby(root=tmp_path / "nowhere", minutes=0, device="cpu").run()
    assert (tmp_path / "s.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: SwingbyConfig(gaps=()), "At least one color gap"),
        (lambda: SwingbyConfig(gaps=(0.9,)), "color gap must lie"),
        (lambda: SwingbyConfig(steps=0), "at least 1"),
        (lambda: _parse_share("2/2"), "0/4"),
    ],
)
def test_wrong_plans_are_refused_in_one_sentence(wrong, message):
    with pytest.raises(UserError, match=message):
        wrong()
