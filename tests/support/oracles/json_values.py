"""JSON as events bring it: few names, so that they meet again, and values of every kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)


def json_objects(*names: str) -> SearchStrategy[dict[str, Any]]:
    """Draw JSON objects whose fields, at every depth, have these names."""
    name = st.sampled_from(names)
    values = st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(name, inner, max_size=3),
        max_leaves=8,
    )
    return st.dictionaries(name, values, max_size=4)
