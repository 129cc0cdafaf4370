-- Finish parked events: somebody has handled them after all, or gives them up for good.
DELETE FROM es.parked
    WHERE subscription = %(group)s AND event_id = ANY(%(ids)s::uuid[])
    RETURNING event_id
