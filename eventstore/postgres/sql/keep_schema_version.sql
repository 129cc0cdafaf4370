-- Keep one version of an event type's schema.
INSERT INTO es.schema_versions (subject, version, schema_id, schema)
VALUES (%(subject)s, %(version)s, %(schema_id)s, %(schema)s)
ON CONFLICT (subject, version) DO NOTHING
