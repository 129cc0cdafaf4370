-- Write a type with this schema from now on.
INSERT INTO es.types (subject, schema_id) VALUES (%(subject)s, %(schema_id)s)
    ON CONFLICT (subject) DO UPDATE SET schema_id = excluded.schema_id
