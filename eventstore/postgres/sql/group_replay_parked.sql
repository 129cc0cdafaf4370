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
        RETURNING position
), before AS (
    DELETE FROM es.rounds WHERE subscription = %(group)s AND number = %(number)s
        RETURNING subscription, number, scanned_to, finished_to, parked, redelivered
)
INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
    SELECT subscription, number + 1, scanned_to,
           least(finished_to, (SELECT min(position) - 1 FROM kept)),
           parked - (SELECT count(*) FROM kept), redelivered
        FROM before
    RETURNING (SELECT count(*) FROM kept), parked
