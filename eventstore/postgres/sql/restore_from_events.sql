-- Make of all events what a writer makes of each: categories, streams, tags, and types with schemas.
WITH made AS (
    INSERT INTO es.categories (category) SELECT DISTINCT category FROM es.events
        ON CONFLICT DO NOTHING
), begun AS (
    INSERT INTO es.streams (stream, category)
        SELECT stream, category FROM es.events WHERE version = 0
), tagged AS (
    INSERT INTO es.tags (tag, position, category, type)
        SELECT DISTINCT tag, position, category, type
            FROM es.events CROSS JOIN LATERAL unnest(tags) AS given (tag)
), written AS (
    INSERT INTO es.types (subject, schema_id)
        SELECT DISTINCT ON (category, type) category || '.' || type, schema_id
            FROM es.events ORDER BY category, type, position DESC
)
INSERT INTO es.type_schemas (subject, schema_id)
    SELECT DISTINCT category || '.' || type, schema_id FROM es.events
