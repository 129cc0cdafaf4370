-- Keep the text of a schema; under its id it never changes.
INSERT INTO es.schemas (schema_id, schema) VALUES (%(schema_id)s, %(schema)s)
    ON CONFLICT (schema_id) DO NOTHING
