"""Other event stores, driven by programs of ours and measured beside Penstock.

Upstream: package indexes, at the versions pinned here, into a folder outside the repository.
Downstream: `benchmarks.eventstore`. Each `drive_*` program runs in the peers' own environment: it
takes one JSON document as its argument (`closed_loop.Work`) and prints one.
Entry points: `benchmarks.peers.install.installed`, `benchmarks.peers.closed_loop.work`.
"""
