-- Begin a round of a group: its row, locked, how far it is, and what it has not finished.
BEGIN;
SELECT name, category, type, stream_prefix, tag, started_after, max_deliveries, ack_timeout,
       backoff, backoff_cap, max_in_flight, look_ahead, max_parked
    FROM es.subscriptions WHERE name = %(group)s FOR NO KEY UPDATE;
SELECT number, scanned_to, finished_to, parked, clock_timestamp()
    FROM es.rounds WHERE subscription = %(group)s ORDER BY number DESC LIMIT 1;
SELECT position, event_id, stream, due_at, deliveries, consumer, reason
    FROM es.deliveries
    WHERE subscription = %(group)s AND position > (
        SELECT finished_to FROM es.rounds WHERE subscription = %(group)s ORDER BY number DESC LIMIT 1)
    ORDER BY position;
