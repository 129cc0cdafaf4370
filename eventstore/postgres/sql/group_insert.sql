-- Make a group, unless there is one of that name or there are too many.
WITH made AS (
    INSERT INTO es.subscriptions (name, category, type, stream_prefix, tag, started_after,
            max_deliveries, ack_timeout, backoff, backoff_cap, max_in_flight, look_ahead, max_parked)
        SELECT %(group)s, %(category)s, %(type)s, %(stream_prefix)s, %(tag)s, %(started_after)s,
               %(max_deliveries)s, %(ack_timeout)s, %(backoff)s, %(backoff_cap)s, %(max_in_flight)s,
               %(look_ahead)s, %(max_parked)s
        WHERE (SELECT count(*) FROM es.subscriptions) < %(max_groups)s
        ON CONFLICT (name) DO NOTHING
        RETURNING name, started_after
)
INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
    SELECT name, 0, started_after, started_after, 0, 0 FROM made
    RETURNING subscription
