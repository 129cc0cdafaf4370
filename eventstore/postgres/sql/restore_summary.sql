-- Go through all events once for their kinds and once for their streams: the rest follows from these.
CREATE TEMPORARY TABLE kinds ON COMMIT DROP AS
    SELECT category, type, schema_id, count(*) AS events, max(position) AS last
        FROM es.events GROUP BY category, type, schema_id;
CREATE TEMPORARY TABLE lives ON COMMIT DROP AS
    SELECT stream, min(category) AS category, count(*) AS events, max(version) AS last
        FROM es.events GROUP BY stream
