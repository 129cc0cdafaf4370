-- Remember streams that the group used for the first time.
INSERT INTO es.streams (stream, category)
    SELECT * FROM unnest(%(streams)s::text[], %(categories)s::text[])
    ON CONFLICT DO NOTHING;
