"""Functions about sensors, for queries: pure, and typed by their annotations."""

from math import exp

from ._sensor_model import COEFFICIENTS, INTERCEPT, MEAN, SCALE


def anomaly_score(value: float, usual: float) -> float:
    """Return how likely a reading is one of a sensor that fails, from 0 to 1."""
    features = (value / usual if usual else 1.0, value - usual)
    total = INTERCEPT
    for feature, mean, scale, weight in zip(features, MEAN, SCALE, COEFFICIENTS, strict=True):
        total += weight * (feature - mean) / scale
    return 1.0 / (1.0 + exp(-max(min(total, 700.0), -700.0)))
