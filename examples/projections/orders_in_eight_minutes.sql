-- Orders and what they came to in the last eight minutes, seen every minute.
CREATE PROJECTION orders_in_eight_minutes WITH (key = 'window_end') AS
SELECT window_end, COUNT(*) AS orders, SUM(cents) AS cents
FROM STREAM events.purchase.placed
GROUP BY HOP(occurred_at, '1 minute', '8 minutes');
