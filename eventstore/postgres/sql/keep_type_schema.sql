-- Remember that events of a type may be written with a schema.
INSERT INTO es.type_schemas (subject, schema_id) VALUES (%(subject)s, %(schema_id)s)
    ON CONFLICT DO NOTHING
