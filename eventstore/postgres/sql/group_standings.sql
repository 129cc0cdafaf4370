-- How all groups stand, or one of them.
SELECT s.name, s.category, s.type, s.stream_prefix, s.tag, s.started_after, s.max_deliveries,
       s.ack_timeout, s.backoff, s.backoff_cap, s.max_in_flight, s.look_ahead, s.max_parked,
       counter.position AS head, least(d.lowest - 1, r.scanned_to) AS checkpoint,
       coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT recorded_at FROM es.recorded
               WHERE position = least(d.lowest - 1, r.scanned_to) + 1)), 0)::float8 AS lag_s,
       d.in_flight, d.waiting, r.parked, r.redelivered
    FROM es.counter, es.subscriptions s
    CROSS JOIN LATERAL (
        SELECT scanned_to, finished_to, parked, redelivered FROM es.rounds
            WHERE subscription = s.name ORDER BY number DESC LIMIT 1) r
    CROSS JOIN LATERAL (
        SELECT min(position) AS lowest, count(consumer) AS in_flight,
               count(*) - count(consumer) AS waiting
            FROM es.deliveries WHERE subscription = s.name AND position > r.finished_to) d
    WHERE %(group)s::text IS NULL OR s.name = %(group)s
    ORDER BY s.name
