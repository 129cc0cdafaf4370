"""AUTO CDC on open-source Delta: changes in any order become a table (SCD type 1) or its history.

Upstream: any frame, stream or Delta table of changes, typed tables among them. Downstream: Delta
tables that every engine reads. Entry point: `create_auto_cdc_flow`.
"""

from pipeline.history.shape import NOT_COLUMNS
from projections.auto_cdc.batch import Applied
from projections.auto_cdc.flow import AutoCdcFlow, create_auto_cdc_flow

TYPED_COLUMNS = tuple(sorted(NOT_COLUMNS))
"""What typed tables of captured sources add to a table's own columns: for `except_column_list`."""

__all__ = ["TYPED_COLUMNS", "Applied", "AutoCdcFlow", "create_auto_cdc_flow"]
