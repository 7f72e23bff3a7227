"""Every figure can be made, and shows what it is meant to show."""

import pytest

from tessera.studies.swingby import figures

QUICK = ("4", "5", "8", "9", "10", "17", "18", "terms")


@pytest.mark.parametrize("name", QUICK)
def test_quick_figures_have_labeled_axes(name):
    figure = figures.draw(name)
    assert all(ax.get_title(loc="left") or ax.get_xlabel() or ax.get_ylabel() for ax in figure.axes)
    assert any(ax.lines or ax.collections or ax.images for ax in figure.axes)


def test_figures_8_and_9_name_their_descents():
    assert figures.draw("8").axes[1].get_title(loc="left") == "triple descent"
    assert figures.draw("9").axes[1].get_title(loc="left") == "quadruple descent"


def test_the_animation_moves():
    frames = list(figures.animate_swing(figures.canonical_path(6), frames=3))
    assert len(frames) == 3 and frames[0].shape == frames[2].shape
    assert (frames[0] != frames[2]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in figures.FIGURES if name not in QUICK])
def test_all_other_figures_can_be_made(name):
    figure = figures.draw(name)
    assert figure.axes and all(ax.lines or ax.collections or ax.images for ax in figure.axes)
