-- Which of these events the group has behind it.
SELECT id FROM es.recorded WHERE id = ANY(%(ids)s::uuid[])
    AND position > %(started_after)s AND position <= %(scanned_to)s
    AND NOT EXISTS (SELECT FROM es.deliveries d
                        WHERE d.subscription = %(group)s AND d.position = recorded.position)
    AND NOT EXISTS (SELECT FROM es.parked p
                        WHERE p.subscription = %(group)s AND p.position = recorded.position)
