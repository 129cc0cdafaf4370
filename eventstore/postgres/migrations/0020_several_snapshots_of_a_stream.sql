-- Several snapshots of a stream are kept, so that an earlier state needs no fold from the beginning.
-- The index is there, so that nothing is built while loads of deciders wait for the table.

ALTER TABLE es.snapshots
    DROP CONSTRAINT snapshots_pkey,
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY USING INDEX snapshots_versions;
