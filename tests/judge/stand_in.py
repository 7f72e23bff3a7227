"""A judge that knows the truth and errs in known ways."""

import numpy as np
import torch

from tessera.judge.finding import Finding


class StandIn:
    """Returns the lists it was given, in order, one per picture it is shown."""

    def __init__(self, lists, strangeness=0.5):
        self.lists, self.strange, self.shown = list(lists), strangeness, 0

    def look(self, images):
        begin, self.shown = self.shown, self.shown + len(images)
        return self.lists[begin : self.shown], torch.full((len(images),), float(self.strange))


def forgetful(truth, missed, rng):
    """The truth, each thing left out with the chance `missed`."""
    return [[thing for thing in things if rng.random() >= missed] for things in truth]


def shaken(truth, reach, rng):
    """The truth with every centre moved by exactly `reach` in a random direction."""
    angles = iter(rng.uniform(0, 2 * np.pi, sum(map(len, truth))))
    return [[moved(t, reach, next(angles)) for t in things] for things in truth]


def moved(thing, reach, angle):
    place = (thing.place[0] + reach * np.cos(angle), thing.place[1] + reach * np.sin(angle))
    return Finding(place, thing.color, thing.shape, thing.size, thing.material, 0.9, 0.9)
