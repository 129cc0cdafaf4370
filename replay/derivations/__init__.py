"""Typed, current and history tables made anew of a lake's raw log, each a table of another lake.

Upstream: the log, the copies of captured tables, the manifest. Downstream: the command line.
    log -> typed rows, step by step -> [newest row of each key | fold of versions] -> one commit
Entry points: `derivation.Derivation`, `derivation_check.verify_derived`.
"""
