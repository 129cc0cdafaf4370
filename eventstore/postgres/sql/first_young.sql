-- First version, from `low` on, that was recorded within the last `max_age_s` seconds; `high` when
-- none was. Times never decrease within a stream, so halving the range finds it.
WITH RECURSIVE young AS MATERIALIZED (
    SELECT clock_timestamp() - %(max_age_s)s * interval '1 second' AS since
), probe (low, high) AS (
    SELECT %(low)s::bigint, %(high)s::bigint
    UNION ALL
    SELECT CASE WHEN recorded_at < since THEN middle + 1 ELSE low END,
           CASE WHEN recorded_at < since THEN high ELSE middle END
        FROM probe, young,
             LATERAL (SELECT (low + high) / 2) AS half (middle),
             LATERAL (SELECT recorded_at FROM es.recorded
                          WHERE stream = %(stream)s AND version = middle) AS event
        WHERE low < high
)
SELECT low FROM probe WHERE low >= high LIMIT 1
