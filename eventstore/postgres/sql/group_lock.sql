-- Begin a round of a group: its row, locked, and what it has not finished.
BEGIN;
SELECT name, category, type, stream_prefix, tag, started_after, max_deliveries, ack_timeout,
       backoff, backoff_cap, max_in_flight, look_ahead, max_parked, scanned_to, parked,
       clock_timestamp() AS now
    FROM es.subscriptions WHERE name = %(group)s FOR NO KEY UPDATE;
SELECT position, event_id, stream, due_at, deliveries, consumer, reason
    FROM es.deliveries WHERE subscription = %(group)s ORDER BY position;
