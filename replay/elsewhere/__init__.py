"""Events once more into another topic or another store, with times of their own and at a pace.

Upstream: a store's log in the lake, by `EventParts`. Downstream: `PassageTarget`s of `delivery`.
    Selection -> Survey -> [Schedule] -> [Shift] -> Target
Entry points: `replay.elsewhere.passage.Passage`, `replay.elsewhere.selection.SelectedEvents`.
"""
