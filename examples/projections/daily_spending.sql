-- What each account spent of its day so far, quarter by quarter.
CREATE PROJECTION daily_spending WITH (key = 'account, until') AS
SELECT account, window_end AS until, SUM(cents) AS cents, MAX(cents) AS largest_cents
FROM STREAM events.cloud.used
GROUP BY account, CUMULATE(occurred_at, '6 hours', '1 day');
