-- Index the group's tags.
INSERT INTO es.tags (tag, position)
    SELECT * FROM unnest(%(tags)s::text[], %(positions)s::bigint[]) ON CONFLICT DO NOTHING;
