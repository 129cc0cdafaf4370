"""How a projection of several steps follows its inputs: regions of change, computed again.

Upstream: a plan tree of `projections.sql`, and new rows of the lake's typed tables and histories.
Downstream: the projector merges the changes into the projection's table.
Entry point: `projections.run.dataflow.Dataflow`.
"""
