-- End a round of a group: what was finished or parked goes, what is out or waiting is kept.
DELETE FROM es.deliveries
    WHERE subscription = %(group)s AND position = ANY(%(gone)s::bigint[]);
INSERT INTO es.deliveries
        (subscription, position, event_id, stream, due_at, deliveries, consumer, reason)
    SELECT %(group)s, * FROM unnest(%(positions)s::bigint[], %(event_ids)s::uuid[],
        %(streams)s::text[], %(due_at)s::timestamptz[], %(deliveries)s::integer[],
        %(consumers)s::text[], %(reasons)s::text[])
    ON CONFLICT (subscription, position) DO UPDATE
        SET due_at = excluded.due_at, deliveries = excluded.deliveries,
            consumer = excluded.consumer, reason = excluded.reason;
INSERT INTO es.parked (subscription, position, event_id, stream, deliveries, reason, parked_at)
    SELECT %(group)s, *, %(now)s FROM unnest(%(parked_positions)s::bigint[],
        %(parked_ids)s::uuid[], %(parked_streams)s::text[], %(parked_deliveries)s::integer[],
        %(parked_reasons)s::text[]);
INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
    SELECT subscription, number + 1, %(scanned_to)s,
           coalesce((SELECT min(position) - 1 FROM es.deliveries
                         WHERE subscription = %(group)s AND position > %(finished_to)s),
                    %(scanned_to)s),
           %(parked)s, redelivered + %(redelivered)s
        FROM es.rounds WHERE subscription = %(group)s AND number = %(number)s;
DELETE FROM es.rounds WHERE subscription = %(group)s AND number = %(number)s;
COMMIT;
