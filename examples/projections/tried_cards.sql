-- A card that is tried with two small amounts or more, and within ten minutes with one that is ten
-- times their mean.
CREATE PROJECTION tried_cards WITH (key = 'card, began_at') AS
SELECT card, began_at, charged_at, trials, cents
FROM STREAM events.card.charged MATCH_RECOGNIZE (
  PARTITION BY card ORDER BY occurred_at
  MEASURES FIRST(s.occurred_at) AS began_at, big.occurred_at AS charged_at,
    COUNT(s.*) AS trials, big.cents AS cents
  ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
  PATTERN (s{2,} big) WITHIN INTERVAL 10 MINUTES
  DEFINE s AS s.cents < 200, big AS big.cents > 10 * AVG(s.cents)) found;
