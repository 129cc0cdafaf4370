-- The three terms that were searched for most in each hour. Of equally many the one that was
-- searched for first.
CREATE PROJECTION top_searches WITH (key = 'hour, place') AS
WITH counted AS (
  SELECT window_start AS hour, term, COUNT(*) AS searches, MIN(occurred_at) AS first_at
  FROM STREAM events.search.made
  GROUP BY term, TUMBLE(occurred_at, '1 hour'))
SELECT hour, term, searches,
  ROW_NUMBER() OVER (PARTITION BY hour ORDER BY searches DESC, first_at) AS place
FROM counted
QUALIFY place <= 3;
