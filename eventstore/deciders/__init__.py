"""Commands to events: users' pure rules, run over the store.

    Command -> load state -> decide -> append (expected version) -> RecordedEvent

Upstream: the workspace's `deciders/*.py`. Downstream: service, apps.
Entry points: `Decider`, `eventstore.deciders.handling.CommandHandler`,
`eventstore.deciders.entities.Entities`, and for tests of deciders `eventstore.deciders.kit`.
"""

from eventstore.deciders.decider import Command, Decider, Event
from kernel.errors import Refused

__all__ = ["Command", "Decider", "Event", "Refused"]
