-- Make of all events what a writer makes of each: categories, streams, tags, and types with schemas.
WITH made AS (
    INSERT INTO es.categories (category) SELECT DISTINCT category FROM kinds
        ON CONFLICT DO NOTHING
), begun AS (
    INSERT INTO es.streams (stream, category) SELECT stream, category FROM lives
), tagged AS (
    INSERT INTO es.tags (tag, position, category, type)
        SELECT given.tag, position, category, type FROM es.events
            CROSS JOIN LATERAL (SELECT DISTINCT unnest(tags)) AS given (tag)
            WHERE tags <> '{}'
), written AS (
    INSERT INTO es.types (subject, schema_id)
        SELECT DISTINCT ON (category, type) category || '.' || type, schema_id
            FROM kinds ORDER BY category, type, last DESC
)
INSERT INTO es.type_schemas (subject, schema_id)
    SELECT DISTINCT category || '.' || type, schema_id FROM kinds
