-- Conditions by tags and types, each judged by one step into an index.

ALTER TABLE es.tags ADD COLUMN category text, ADD COLUMN type text;
UPDATE es.tags SET category = events.category, type = events.type
    FROM es.events WHERE events.position = tags.position;
ALTER TABLE es.tags ALTER COLUMN category SET NOT NULL, ALTER COLUMN type SET NOT NULL;
CREATE INDEX tags_type ON es.tags (tag, type, position) INCLUDE (category);
COMMENT ON TABLE es.tags IS 'Events by tag; category and type repeat what the event has';

-- Newest event behind `after` that carries all tags: the lists of positions are walked together,
-- newest first, each jumping to where the others are. -1 after 10,000 jumps: two tags that are
-- both everywhere and never meet would hold the append lock for as long as they are.
CREATE FUNCTION es.newest_tagged(tags text[], category text, type text, after bigint)
RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    candidate bigint := 9223372036854775807;
    agreeing integer := 0;
    jumps integer := 0;
    place integer := 1;
    found bigint;
BEGIN
    WHILE agreeing < cardinality(newest_tagged.tags) LOOP
        IF newest_tagged.type IS NULL THEN
            SELECT position INTO found FROM es.tags
                WHERE tag = newest_tagged.tags[place]
                  AND position > newest_tagged.after AND position <= candidate
                ORDER BY position DESC LIMIT 1;
        ELSE
            SELECT position INTO found FROM es.tags
                WHERE tag = newest_tagged.tags[place] AND type = newest_tagged.type
                  AND position > newest_tagged.after AND position <= candidate
                  AND (newest_tagged.category IS NULL OR category = newest_tagged.category)
                ORDER BY position DESC LIMIT 1;
        END IF;
        IF found IS NULL THEN
            RETURN NULL;
        END IF;
        agreeing := CASE WHEN found = candidate THEN agreeing + 1 ELSE 1 END;
        candidate := found;
        place := place % cardinality(newest_tagged.tags) + 1;
        jumps := jumps + 1;
        IF jumps > 10000 THEN
            RETURN -1;
        END IF;
    END LOOP;
    RETURN candidate;
END
$$;
REVOKE ALL ON FUNCTION es.newest_tagged FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.newest_tagged TO penstock_service;
