"""How far a value lies above those before it, in robust standard deviations.

Median and median absolute deviation (MAD) bear up to half of the window being outliers, which mean and standard
deviation do not: one spike would hide the next. For normal noise 1.4826 x MAD is the standard deviation (Rousseeuw and
Croux, 1993, "Alternatives to the Median Absolute Deviation"). Only what lies above counts: a loss that falls fast is no
anomaly.
"""

import math
from collections import deque
from typing import Any

import numpy as np

_NORMAL = 1.4826
_FLOOR = 1e-3
"""Least scale, relative to the median: of values that hardly differ, such as those of one repeated batch, the MAD is
zero or rounding, and the slightest change would be a spike."""


class RobustWindow:
    """The last `window` finite values, and what is too high beside them.

    Args:
        window: values that are remembered.
        threshold: score above which a value is an outlier.
    """

    def __init__(self, window: int, threshold: float) -> None:
        self.threshold = threshold
        self.min_values = max(1, window // 4)
        self._values: deque[float] = deque(maxlen=window)

    @property
    def median(self) -> float:
        """Of the values, or NaN."""
        return float(np.median(self._values)) if self._values else math.nan

    def score(self, value: float) -> float:
        """Robust standard deviations from the median to `value`: infinite for a value that is not finite, and 0 while
        fewer than a quarter of a window is known."""
        if len(self._values) < self.min_values:
            return 0.0
        if not math.isfinite(value):
            return math.inf
        values = np.asarray(self._values)
        median = float(np.median(values))
        scale = max(_NORMAL * float(np.median(np.abs(values - median))), _FLOOR * abs(median), np.finfo(float).tiny)
        return (value - median) / scale

    def is_outlier(self, value: float) -> bool:
        return self.score(value) > self.threshold

    def add(self, value: float) -> None:
        """Remember a value, unless it is not finite."""
        if math.isfinite(value):
            self._values.append(value)

    def clear(self) -> None:
        self._values.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, of a longer window the newest values; an empty state is an empty window."""
        self.clear()
        self._values.extend(state.get("values", ()))
