-- For each condition the newest event behind its position that matches, if any. Every walk is a few
-- steps into one index, however many events a tag has; `budget` bounds those of one condition.
SELECT number, newest FROM es.newest_matches(%(walks)s::jsonb, %(budget)s::integer);
