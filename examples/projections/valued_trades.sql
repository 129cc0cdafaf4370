-- Each trade beside the price of its instrument at that moment: as it was quoted then, never later.
CREATE PROJECTION valued_trades WITH (key = 'event_id') AS
SELECT t.event_id, t.symbol, t.occurred_at, t.pieces * p.cents AS market_value_cents,
  t.cents - p.cents AS over_market_cents
FROM STREAM events.trade.made t
LEFT JOIN prices FOR SYSTEM_TIME AS OF t.occurred_at p ON p.symbol = t.symbol;
