-- Departure delays per airline over the last three hours, seen every hour. Late is 15 minutes.
CREATE PROJECTION carrier_delays WITH (
  key = 'carrier, window_start', freshness = '1 second'
) AS
SELECT
  carrier,
  window_start,
  window_end,
  COUNT(*) AS departures,
  AVG(departure_delay_minutes) AS mean_delay_minutes,
  MAX(departure_delay_minutes) AS max_delay_minutes,
  AVG(CASE WHEN departure_delay_minutes >= 15 THEN 1 ELSE 0 END) AS late_share
FROM STREAM events.flight.departed
GROUP BY carrier, HOP(occurred_at, '1 hour', '3 hours');
