-- Visits of a web site: clicks of a user with less than half an hour from one to the next.
CREATE PROJECTION visits WITH (key = 'user_id, window_start') AS
SELECT user_id, window_start, window_end, COUNT(*) AS clicks, url AS last_url
FROM STREAM clicks
GROUP BY user_id, SESSION(occurred_at, '30 minutes');
