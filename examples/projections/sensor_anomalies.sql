-- Readings of a sensor that are more than twice the mean of the five readings before.
CREATE PROJECTION sensor_anomalies WITH (key = 'event_id') AS
SELECT event_id, sensor, occurred_at, value, usual
FROM (
  SELECT event_id, sensor, occurred_at, value,
    (total - value) / (readings - 1) AS usual
  FROM (
    SELECT event_id, sensor, occurred_at, value,
      SUM(value) OVER (PARTITION BY sensor ORDER BY occurred_at
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS total,
      COUNT(*) OVER (PARTITION BY sensor ORDER BY occurred_at
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS readings
    FROM STREAM events.sensor.read) summed
  WHERE readings > 1) compared
WHERE value > 2 * usual;
