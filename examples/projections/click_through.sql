-- Of the searches for a term, how many were followed by a click of the same session within an hour.
CREATE PROJECTION click_through WITH (key = 'term') AS
WITH followed AS (
  SELECT s.event_id, s.term, COUNT(c.event_id) AS clicks
  FROM STREAM events.search.made s
  LEFT JOIN STREAM events.click.made c ON c.session = s.session
    AND c.occurred_at >= s.occurred_at AND c.occurred_at <= s.occurred_at + INTERVAL 1 HOUR
  GROUP BY s.event_id, s.term)
SELECT term, COUNT(*) AS searches, COUNT_IF(clicks > 0) AS clicked,
  COUNT_IF(clicks > 0) / COUNT(*) AS rate
FROM followed GROUP BY term;
