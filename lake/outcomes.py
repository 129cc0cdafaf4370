"""What became of a record in quarantine, as a row of `quarantine/outcomes` says."""

from __future__ import annotations

RELEASED, WAIVED, REFUSED, COPIED = "released", "waived", "refused", "copied"
"""In the log now; given up; not to be decoded this time either; in a copy of its table."""
