-- Filtered reads jump to what they want, and streams have a life cycle.

-- A category by itself, a type by itself, a type of one category.
CREATE INDEX events_category ON es.events (category, position);
CREATE INDEX events_type ON es.events (type, position) INCLUDE (category);
-- Serves prefixes of stream names, whatever the database's collation is.
CREATE INDEX streams_prefix ON es.streams (stream text_pattern_ops);

ALTER TABLE es.streams
    ADD COLUMN tombstoned boolean NOT NULL DEFAULT false,
    ADD COLUMN max_age_s  bigint CHECK (max_age_s > 0),
    ADD COLUMN max_count  bigint CHECK (max_count > 0);
COMMENT ON COLUMN es.streams.deleted IS 'Deleted, and nothing was appended since';
COMMENT ON COLUMN es.streams.truncate_before IS 'Reads of the stream begin at this version';
COMMENT ON COLUMN es.streams.tombstoned IS 'Gone for good: neither read nor appended to';
COMMENT ON COLUMN es.streams.max_age_s IS 'Reads of the stream leave out older events';
COMMENT ON COLUMN es.streams.max_count IS 'Reads of the stream show this many events at most';
