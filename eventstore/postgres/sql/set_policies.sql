-- Set what streams show, and how much of them is in the archive.
UPDATE es.streams
    SET deleted = given.deleted, tombstoned = given.tombstoned,
        truncate_before = given.truncate_before, max_age_s = given.max_age_s,
        max_count = given.max_count, archived_up_to = given.archived_up_to
    FROM unnest(%(streams)s::text[], %(deleted)s::boolean[], %(tombstoned)s::boolean[],
                %(truncate_before)s::bigint[], %(max_age_s)s::bigint[], %(max_count)s::bigint[],
                %(archived_up_to)s::bigint[])
        AS given (stream, deleted, tombstoned, truncate_before, max_age_s, max_count,
                  archived_up_to)
    WHERE streams.stream = given.stream;
