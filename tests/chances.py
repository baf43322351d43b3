"""What sampling has to do, spelled out with Python's numbers; and generators whose numbers a test chooses.

Nothing is shared with the versions.
"""

import math


def chances(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The probability of each token of one row, in the order of transformers: temperature, top-k, top-p, min-p."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    best = logits[ranked[0]]
    weights = {i: math.exp((float(logits[i]) - float(best)) / temperature) for i in ranked[: top_k or None]}
    kept, mass, whole = {}, 0.0, math.fsum(weights.values())
    for i, weight in weights.items():  # the one that crosses top_p is kept, and so is the best
        if kept and mass >= top_p * whole * (1 - 1e-12):
            break
        kept[i] = weight
        mass = math.fsum(kept.values())
    kept = {i: weight for i, weight in kept.items() if weight >= min_p}
    return [kept.get(i, 0.0) / math.fsum(kept.values()) for i in range(len(logits))]


class Numbers:
    """In place of a np.random.Generator: random() gives these numbers one after another, and no more."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)
