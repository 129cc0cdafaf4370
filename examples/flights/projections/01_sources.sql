-- The flights' events. A year goes by in minutes here, so lateness counts in event time: what comes
-- up to six hours late corrects every result by itself, what comes later waits for a replay.
CREATE SOURCE flight ON events.flight WITH (lateness = '6 hours');

-- Hourly observations, captured from the table's own database. Seen as one history per airport, in
-- which a reading holds from its hour to the next one. Corrections may come a year later.
CREATE SOURCE weather ON flightops.public.weather WITH (
  key = 'origin', event_time = 'time_hour', lateness = '400 days'
);
