-- Where each flight stands: its latest event by the time at which it happened, not at which it came.
CREATE PROJECTION flight_status WITH (key = 'flight_id', freshness = '1 second') AS
SELECT
  flight_id,
  carrier,
  flight_number,
  origin,
  dest,
  type AS status,
  occurred_at AS status_at
FROM STREAM events.flight;
