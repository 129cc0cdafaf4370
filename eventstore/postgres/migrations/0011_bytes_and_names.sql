-- Pages end after so many bytes, those that are read from the archive too.

ALTER TABLE es.archived ADD COLUMN bytes integer;
COMMENT ON COLUMN es.archived.bytes IS 'Size of data and metadata; null: archived before that was kept';
