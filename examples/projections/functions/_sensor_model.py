"""A fitted model: a scaler and a logistic regression, as scikit-learn's attributes name them.

Written by whoever fits the model, from `mean_`, `scale_`, `coef_` and `intercept_`. Another model
is another file, and by that another projection: `penstock replay plan` says so.
"""

FEATURES = ("ratio", "difference")
MEAN = (1.0, 0.0)
SCALE = (0.25, 5.0)
COEFFICIENTS = (1.5, 0.5)
INTERCEPT = -4.0
