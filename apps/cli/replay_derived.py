"""`penstock replay … --lake PLACE` of tables that are made of the log: typed, current, history."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from apps.cli.output import tell
from apps.settings import Settings
from kernel.errors import InvalidRequest
from lake.layout import Lake
from replay.generation_names import derived_name

if TYPE_CHECKING:
    from replay.book import Replay
    from replay.derivations.derivation_plan import DerivationPlan


def is_derived(name: str, into: Lake | None) -> bool:
    """Say whether a name is that of a table of the log. Raises `InvalidRequest` without a place.

    Beside the live one such a table cannot be made: the pipeline alone writes there.
    """
    if derived_name(name) is None:
        return False
    if into is None:
        raise InvalidRequest(
            f"{name} is made of the log in another lake only",
            remedy=f"penstock replay apply {name} --lake PLACE",
        )
    return True


def refuse_options(name: str, given: Mapping[str, object]) -> None:
    """Raise `InvalidRequest` for options that say something of a projection's build."""
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise InvalidRequest(
            f"{name} is made of all of its log, which {named[0]} says nothing of",
            remedy=f"Leave out {', '.join(named)}.",
        )


def derived_plan(found: Settings, name: str, into: Lake | None) -> DerivationPlan:
    """Return what making a table of the log would do."""
    from apps.cli.sites import site_of
    from replay.derivations.derivation_plan import plan_derivation

    return plan_derivation(site_of(found, fields=False, into=into), name)


def make_derived(found: Settings, name: str, into: Lake | None) -> Replay:
    """Make a table of the log, or go on with it; tell of its progress on standard error."""
    from apps.cli.sites import site_of
    from apps.large_states import replay_session
    from replay.derivations.derivation import Derivation
    from replay.derivations.derivation_plan import plan_derivation, refuse_no_room
    from replay.derivations.lake_schemas import LakeSchemas

    # What fails of a table is raised, and told by the command: not with its stack as well.
    logging.getLogger("penstock.tables").addHandler(logging.NullHandler())
    site = site_of(found, fields=False, into=into)
    refuse_no_room(plan_derivation(site, name))
    made = Derivation(
        site,
        LakeSchemas(site.lake, site.tables),
        lambda progress: tell(progress.line),
        spark=replay_session(found, also=None if into is None else into.root),
    )
    return made.build(name)
