"""What is given to a cost model: checked, and completed to the features that it is fitted on.

scikit-learn judges what is no plain array; it is imported by then only, since it takes a second.

Shapes: n observations; d columns as given; F features, in the order of
``libra.attention.cost.FEATURES``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import BLOCK_ROWS, FEATURES, LONG_ROWS

Float64 = NDArray[np.float64]

_OWN_FEATURES = FEATURES.index("causal_pairs") + 1


def kernel_columns(X: Any, *, least: int = 1) -> Float64:  # noqa: N803
    """Return X [n, d] as [n, F]: four columns get their blocks and long tokens, others stay.

    A call of four columns is taken to have tiles of equally many query rows.

    Raises:
        ValueError: when X is not a table of finite, non-negative numbers of ``least`` rows.
    """
    columns = _numbers(X, "X", least)
    if (columns < 0).any():
        raise ValueError("X: must be finite and non-negative. Negative values in data.")
    if columns.shape[1] != _OWN_FEATURES:
        return columns
    tiles, queries = columns[:, 0], columns[:, 1]
    rows = np.divide(queries, tiles, out=np.zeros_like(queries), where=tiles > 0)
    blocks = tiles * np.ceil(rows / BLOCK_ROWS)
    return np.column_stack([columns, blocks, tiles * np.maximum(rows - LONG_ROWS, 0.0)])


def checked_targets(columns: Float64, y: Any, sample_weight: Any) -> tuple[Float64, Float64 | None]:
    """Return seconds [n] and weights [n] or None; raise ``ValueError`` for what cannot be true."""
    if y is None:
        raise ValueError("y is None: requires y to be passed, but the target y is None")
    from sklearn.utils import check_consistent_length, validation

    seconds = _numbers(validation.column_or_1d(y, warn=True), "y")
    check_consistent_length(columns, seconds)
    if (seconds < 0).any():
        raise ValueError("y: must be finite and non-negative seconds")
    if sample_weight is None:
        return seconds, None
    weights = _numbers(sample_weight, "sample_weight")
    if weights.shape != seconds.shape:
        raise ValueError(f"sample_weight has shape {weights.shape}: must be {seconds.shape}")
    if (weights < 0).any() or not weights.any():
        raise ValueError("sample_weight: must be non-negative, and not all zero")
    return seconds, weights


def note_columns(model: Any, X: Any) -> None:  # noqa: N803
    """Note on the model how many columns there are, and their names if they have any."""
    _names(model, X, reset=True)
    model.n_features_in_ = np.asarray(X).shape[1]


def check_columns(model: Any, X: Any, columns: Float64, expected: int) -> None:  # noqa: N803
    """Raise ``ValueError`` when these are not the columns that the model learned from."""
    if columns.shape[1] != expected:
        raise ValueError(
            f"X has {np.asarray(X).shape[1]} features, but {type(model).__name__} is expecting "
            f"{getattr(model, 'n_features_in_', expected)} features as input"
        )
    if hasattr(model, "feature_names_in_"):
        _names(model, X, reset=False)


def _names(model: Any, X: Any, *, reset: bool) -> None:  # noqa: N803
    if not hasattr(X, "columns"):
        if reset and hasattr(model, "feature_names_in_"):
            del model.feature_names_in_
        return
    from sklearn.utils import validation

    # Since scikit-learn 1.6; before that columns go by their order alone.
    validate = getattr(validation, "validate_data", None)
    if validate is not None:
        validate(model, X, reset=reset, skip_check_array=True)
    elif reset and hasattr(model, "feature_names_in_"):
        del model.feature_names_in_


def _numbers(values: Any, name: str, least: int = 1) -> Float64:
    """Return an array of at least so many finite numbers, of rows of them if it is X; or raise."""
    table = name == "X"
    plain = isinstance(values, np.ndarray) and values.dtype == np.float64
    if not plain or values.ndim != 1 + table or len(values) < least or not values.shape[-1]:
        from sklearn.utils import check_array

        values = check_array(values, dtype="float64", ensure_2d=table, ensure_min_samples=least)
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: must be finite, and it contains NaN or infinity")
    return np.asarray(values, dtype=np.float64)
