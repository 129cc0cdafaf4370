-- Begin a round of a group that is about some of its events: its row, locked, and those events.
BEGIN;
SELECT name, category, type, stream_prefix, tag, started_after, max_deliveries, ack_timeout,
       backoff, backoff_cap, max_in_flight, look_ahead, max_parked, scanned_to, parked,
       clock_timestamp() AS now
    FROM es.subscriptions WHERE name = %(group)s FOR NO KEY UPDATE;
SELECT position, event_id, stream, due_at, deliveries, consumer, reason
    FROM es.deliveries WHERE subscription = %(group)s AND event_id = ANY(%(ids)s::uuid[]);
