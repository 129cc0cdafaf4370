-- Parked events of a group, by position.
SELECT position, event_id, stream, deliveries, reason, parked_at
    FROM es.parked WHERE subscription = %(group)s AND position > %(after)s
    ORDER BY position LIMIT %(limit)s
