"""`penstock stream archive`: the run over database, log and service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import quote

from apps.calls import service_client
from apps.settings import Settings
from eventstore.archiving import ArchiveReport, ArchiveRun
from eventstore.lake_archive import LakeArchive
from eventstore.postgres.archiving import PostgresHolder, same_text


async def archive(
    settings: Settings,
    *,
    stream: str | None,
    before: int | None,
    dry_run: bool,
    max_events: int,
    show: Callable[[ArchiveReport], None],
) -> ArchiveReport:
    """Move events of one stream, or of all that hide some, out of the database.

    The service records how far each stream is in the archive, so it has to run; the events are
    taken out under the role `penstock_archive`, which the login of `postgres.dsn` must have.
    Raises `Unavailable`, `NotFound`, `InvalidRequest`.
    """
    with service_client(settings) as client:

        async def record(name: str, up_to: int) -> None:
            path = f"/v1/streams/{quote(name, safe='')}/archived"
            await asyncio.to_thread(client.put, path, {"up_to": up_to})

        async with PostgresHolder(
            settings.required("postgres.dsn"), stream=stream, before=before
        ) as holder:
            run = ArchiveRun(
                holder,
                LakeArchive(settings.lake),
                record,
                same_text=same_text,
                show=show,
                max_events=max_events,
            )
            return await (run.plan() if dry_run else run.run())
