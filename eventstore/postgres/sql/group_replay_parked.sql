-- Let parked events be given again, oldest first, as if for the first time.
WITH back AS (
    DELETE FROM es.parked
        WHERE subscription = %(group)s AND position IN (
            SELECT position FROM es.parked WHERE subscription = %(group)s
                AND (%(ids)s::uuid[] IS NULL OR event_id = ANY(%(ids)s::uuid[]))
                ORDER BY position LIMIT %(limit)s)
        RETURNING position, event_id, stream
), kept AS (
    INSERT INTO es.deliveries (subscription, position, event_id, stream, due_at, deliveries)
        SELECT %(group)s, position, event_id, stream, %(now)s, 0 FROM back
        RETURNING event_id
)
UPDATE es.subscriptions SET parked = parked - (SELECT count(*) FROM kept)
    WHERE name = %(group)s
    RETURNING (SELECT count(*) FROM kept), parked
