-- A card with three failed transactions within an hour: one row for the transaction that makes it
-- three, and for each further one while there are three in the hour before it.
CREATE PROJECTION failed_cards WITH (key = 'transaction_id') AS
SELECT transaction_id, card, noticed_at, failures
FROM (
  SELECT event_id AS transaction_id, card, occurred_at AS noticed_at,
    COUNT(*) OVER (PARTITION BY card ORDER BY occurred_at
      RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS failures
  FROM STREAM events.card.declined) counted
WHERE failures >= 3;
