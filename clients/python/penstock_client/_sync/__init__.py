# Written by generate_sync.py from penstock_client/_async/__init__.py: edit that file.
"""The client without asyncio."""
