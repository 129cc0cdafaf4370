-- Readings that a model takes for those of a failing sensor, beside the mean of the five before.
-- The model is a Python function: functions/sensors.py.
CREATE PROJECTION sensor_anomalies WITH (key = 'event_id') AS
WITH compared AS (
  SELECT event_id, sensor, occurred_at, value,
    (SUM(value) OVER (PARTITION BY sensor ORDER BY occurred_at
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) - value) / nullif(COUNT(*) OVER (PARTITION BY sensor ORDER BY occurred_at
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) - 1, 0) AS usual
  FROM STREAM events.sensor.read)
SELECT event_id, sensor, occurred_at, value, usual, anomaly_score(value, usual) AS score
FROM compared
WHERE anomaly_score(value, usual) >= 0.9;

-- Alerts: raised by a score of 0.9, and cleared by the first one below 0.5.
CREATE PROJECTION sensor_alerts WITH (key = 'sensor, raised_at') AS
SELECT sensor, raised_at, cleared_at, worst
FROM (
  SELECT sensor, occurred_at, anomaly_score(value, usual) AS score
  FROM (
    SELECT sensor, occurred_at, value,
      (SUM(value) OVER (PARTITION BY sensor ORDER BY occurred_at
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) - value) / nullif(COUNT(*) OVER (PARTITION BY sensor ORDER BY occurred_at
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) - 1, 0) AS usual
    FROM STREAM events.sensor.read) compared) MATCH_RECOGNIZE (
  PARTITION BY sensor ORDER BY occurred_at
  MEASURES FIRST(raised.occurred_at) AS raised_at, cleared.occurred_at AS cleared_at,
    MAX(score) AS worst
  ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
  PATTERN (raised still* cleared?)
  DEFINE raised AS raised.score >= 0.9e0, still AS still.score >= 0.5e0,
    cleared AS cleared.score < 0.5e0) found;
