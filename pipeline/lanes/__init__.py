"""What has an order of its own: an event store, a captured database, a declared external source.

Upstream: nothing. Downstream: apps, which read each lane in a stream with others or in its own.
Entry points: `lane_book.LaneBook`.
"""
