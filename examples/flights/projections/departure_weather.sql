-- Each departure with the weather that was known at that airport at that moment: never a later
-- reading. A reading that is amended afterwards, or found late, repairs the departures it concerns.
CREATE PROJECTION departure_weather WITH (key = 'flight_id', freshness = '1 second') AS
SELECT
  d.flight_id,
  d.carrier,
  d.origin,
  d.occurred_at AS departed_at,
  d.departure_delay_minutes,
  w.time_hour AS observed_at,
  w.temp,
  w.wind_speed,
  w.precip,
  w.visib
FROM STREAM events.flight.departed AS d
LEFT JOIN weather FOR SYSTEM_TIME AS OF d.occurred_at AS w ON w.origin = d.origin;
