-- Checksums of the contents of given events, to compare with those in the archive.
SELECT id, es.content_of(type, decode(data, 'base64'), tags, metadata)
    FROM jsonb_to_recordset(%(events)s::jsonb)
        AS given (id uuid, type text, data text, tags text[], metadata jsonb);
