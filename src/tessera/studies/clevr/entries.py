"""Every cell of the paper's tables, with what the paper found there; one row each, to be compared by eye.

K_max, the extras in parentheses and the numbers at K = 0 are those of Tables 1 and 2 of the earlier revision
(hand counted over 8 images at 128 x 128); exp3 and exp3L are of the later one, which gives them in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from tessera.config import Settings, changed, look_up, settings_for
from tessera.errors import UserError
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS

IMAGES = 64  # evaluated for each K
_MORE_IMAGES = 256  # where the share of right images lies so near the rule's that 64 would toss a coin


@dataclass(frozen=True)
class Paper:
    """What the paper reports of a cell; None where it reports nothing."""

    k_max: int | None = None
    extras: str = ""  # objects at locations not in the prompt, such as 0-2
    at_zero: str | None = None  # objects in images of empty prompts
    words: str = ""  # where the paper gives words instead of a number

    @property
    def text(self) -> str:
        """`9 +(0-2)`, as the paper writes it."""
        number = self.words or ("" if self.k_max is None else str(self.k_max))
        return f"{number} +({self.extras})" if self.extras else number

    def plain(self) -> dict[str, Any]:
        return {"k_max": self.k_max, "extras": self.extras or None, "at_zero": self.at_zero, "text": self.text}


@dataclass(frozen=True)
class StudyEntry:
    """One training of the study: an experiment on 1 to `max_train_objects` objects, perhaps with something changed."""

    experiment: str
    max_train_objects: int
    paper: Paper = field(default_factory=Paper)
    variant: str = ""
    about: str = ""  # what the variant changes
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_ks: tuple[int, ...] | None = None  # the Ks to test, where all of them would take too long
    s_churn: float = 0.0  # fresh noise while sampling; the record then has both evaluations
    each: int = IMAGES  # evaluated for each K
    needs: bool = True  # trained with what its experiment needs beyond the preset
    longer: float = 1.0  # so many times the images of its experiment, unless the caller says how many

    @property
    def name(self) -> str:
        return f"{self.experiment}-M{self.max_train_objects}" + (f"-{self.variant}" if self.variant else "")

    def facts(self, preset: str) -> dict[str, Any]:
        """What records say of it."""
        return {
            "cell": self.name,
            "experiment": self.experiment,
            "max_train_objects": self.max_train_objects,
            "about": self.about,
            "preset": preset,
            "paper": self.paper.plain(),
        }

    @property
    def ks(self) -> tuple[int, ...]:
        most = len(COLOR_NAMES) if self.experiment == "color" else len(LOCATIONS)
        return tuple(range(most + 1)) if self.own_ks is None else self.own_ks

    def settings(self, preset: str, seed: int = 0, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
        """Preset, experiment, what the caller changes, and then what makes this cell."""
        own = {**self.changes}
        own["data"] = {**own.get("data", {}), "objects": (1, self.max_train_objects), "seed": seed}
        own["training"] = {"seed": seed, **own.get("training", {})}
        merged = {group: dict(values) for group, values in (changes or {}).items()}
        for group, values in own.items():
            merged[group] = {**merged.get(group, {}), **values}
        settings = settings_for(self.experiment, preset, merged, self.needs)
        if self.longer == 1.0 or "total" in merged["training"]:
            return settings
        return changed(settings, {"training": {"total": round(self.longer * settings.training.total)}})


# What the paper reports of trainings on 1 to M objects, by experiment and M: the fields of `Paper`.
_REPORTED: dict[str, dict[int, tuple[Any, ...]]] = {
    "exp1": {1: (1, "", "0-1"), 2: (5, "", "0"), 3: (9, "", "0"), 4: (10, "", "0"), 5: (10, "", "0"), 6: (11, "", "0")},
    "exp2": {
        2: (1, "0-1", "0-2"),
        3: (1, "0-2", "0-3"),
        4: (1, "0-3", "1-4"),
        5: (1, "0-4", "0-5"),
        6: (1, "0-5", "1-6"),
    },
    "exp2-random": {2: (3, "", "0-1"), 3: (5, "", "0-3"), 4: (6, "", "0-4"), 5: (8, "", "0-4"), 6: (9, "", "0-4")},
    "exp2-drop": {3: (3, "0-1", "0-1"), 4: (8, "0-1", "0-1"), 5: (9, "0-1", "0-1"), 6: (10, "0-1", "0-1")},
    "exp2L": {1: (6,), 3: (9, "0-2"), 5: (10, "0-2")},
    "color": {1: (1,), 3: (4,), 5: (7,)},
    "exp3": {3: (3, "", None, "fails beyond 3")},
    "exp3L": {3: (None, "", None, "restored")},
}
# Of patches, which agree only through the noise they share: as much of it as a step can have.
_CHURNED: dict[str, Any] = {"s_churn": 20.0, "each": _MORE_IMAGES}


def _cells_of(experiment: str) -> list[StudyEntry]:
    more = _CHURNED if experiment == "exp2L" else {}
    return [StudyEntry(experiment, most, Paper(*paper), **more) for most, paper in _REPORTED[experiment].items()]


TABLES = list(chain.from_iterable(map(_cells_of, _REPORTED)))

_FULL_IMAGE = 8  # cells to each side: a patch as large as the image
_FEW = tuple(range(5))  # a patch as large as the image costs a whole network pass per cell
_PAIR = {"training": {"patches": 2}}  # and per patch in training


def _radius_cell(radius: int, changes: Mapping[str, Mapping[str, Any]] | None = None, **more: Any) -> StudyEntry:
    """Trained and sampled as the paper's: the loss over all of a patch, no fresh noise."""
    about = f"patch radius {radius}" + (", the whole image" if radius == _FULL_IMAGE else "")
    changes = {"denoiser": {"radius": radius}, **(changes or {})}
    return StudyEntry("exp2L", 3, variant=f"k{radius}", about=about, changes=changes, needs=False, **more)


def _plain_cell(experiment: str) -> StudyEntry:
    about = "no coordinate channels, as in the paper"
    return StudyEntry(experiment, 3, variant="plain", about=about, changes={"denoiser": {"coords": False}})


_ABOUT_FAR = "pixel radius 3, condition radius 2; half as many images again"
_FAR_CHANGES = {"denoiser": {"radius": 3, "cond_radius": 2}}
FAR = StudyEntry("exp2L", 5, Paper(10, "0-2"), "far", _ABOUT_FAR, _FAR_CHANGES, longer=1.5, **_CHURNED)

ABLATIONS = [
    *(_radius_cell(1), _radius_cell(2, paper=Paper(9, "0-2")), _radius_cell(3)),
    _radius_cell(_FULL_IMAGE, _PAIR, paper=Paper(words="fails, as exp2"), own_ks=_FEW),
    *(_plain_cell("exp1"), _plain_cell("exp2"), FAR),
]

CELLS: dict[str, StudyEntry] = {cell.name: cell for cell in [*TABLES, *ABLATIONS]}


def names(experiment: str) -> list[str]:
    return [cell.name for cell in TABLES if cell.experiment == experiment]


HEADLINES = ["exp1-M3", "exp2-M3", "exp3-M3", "exp2L-M3"]

# The targets of `tessera reproduce`, and the cells each needs.
TARGETS: dict[str, list[str]] = {
    "table1": [*names("exp1"), *names("exp2"), *names("exp2L"), *names("color")],
    "table2": [*names("exp1"), *names("exp2"), *names("exp2-random"), *names("exp2-drop")],
    "fig1": HEADLINES,
    "fig4": ["exp1-M1", "exp2L-M1"],
    "fig5": ["color-M5"],
    "fig8": names("exp1"),
    "lists": ["exp3-M3", "exp3L-M3"],
    "ablations": ["exp2L-M3", *[cell.name for cell in ABLATIONS], "exp1-M3", "exp2-M3", "exp1-M1", "exp2L-M1"],
    "all": list(CELLS),
}


def cells_for(target: str, only: str | None = None) -> list[StudyEntry]:
    """The cells a target needs, or those of them that `only` names, headline cells first."""
    wanted = look_up(target, TARGETS, "table or figure")
    if only is not None:
        chosen = [look_up(word, CELLS, "cell").name for word in only.replace(",", " ").split()]
        wanted = [name for name in wanted if name in chosen]
        if not wanted:
            raise UserError(f"None of the cells `{only}` belongs to {target}.")
    first = [name for name in HEADLINES if name in wanted]
    return [CELLS[name] for name in [*first, *(name for name in wanted if name not in first)]]


def with_ks(cell: StudyEntry, ks: tuple[int, ...] | None) -> StudyEntry:
    """The same cell tested on other Ks, as far as it knows them."""
    if ks is None:
        return cell
    known = tuple(k for k in ks if k in cell.ks)
    if not known:
        raise UserError(f"{cell.name} has K = {cell.ks[0]} to {cell.ks[-1]}; none of --k is among them.")
    return replace(cell, own_ks=known)
