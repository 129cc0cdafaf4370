-- Remember categories that the group used for the first time.
INSERT INTO es.categories (category) SELECT unnest(%(categories)s::text[]) ON CONFLICT DO NOTHING;
