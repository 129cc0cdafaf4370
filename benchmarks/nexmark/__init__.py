"""Nexmark: people, auctions and bids from a seed, and its queries as projections.

`generator` makes the events in the proportions that the public description of Nexmark gives,
`queries/` holds one script for each query, over the three topics of `queries/sources.sql`.
"""
