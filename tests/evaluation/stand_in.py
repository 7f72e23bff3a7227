"""A detector that knows the truth and errs in known ways."""

import numpy as np
import torch

from tessera.evaluation.detection import Detection


class StandIn:
    """Returns the lists it was given, in order, one per image it is shown."""

    def __init__(self, lists, ood_score=0.5):
        self.lists, self.ood, self.shown = list(lists), ood_score, 0

    def detect(self, images):
        begin, self.shown = self.shown, self.shown + len(images)
        return self.lists[begin : self.shown], torch.full((len(images),), float(self.ood))


def forgetful(truth, missed, rng):
    """The truth, each object left out with the chance `missed`."""
    return [[obj for obj in objects if rng.random() >= missed] for objects in truth]


def shaken(truth, reach, rng):
    """The truth with every center moved by exactly `reach` in a random direction."""
    angles = iter(rng.uniform(0, 2 * np.pi, sum(map(len, truth))))
    return [[moved(t, reach, next(angles)) for t in objects] for objects in truth]


def moved(obj, reach, angle):
    location = (obj.location[0] + reach * np.cos(angle), obj.location[1] + reach * np.sin(angle))
    return Detection(*location, obj.color, obj.shape, obj.size, obj.material, 0.9, 0.9)
