-- Index the group's tags.
INSERT INTO es.tags (tag, position, category, type)
    SELECT * FROM unnest(%(tags)s::text[], %(positions)s::bigint[], %(categories)s::text[],
                         %(types)s::text[])
    ON CONFLICT DO NOTHING;
