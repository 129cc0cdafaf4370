"""The client for asyncio. `generate_sync.py` makes `_sync` out of this package: edit here only."""
