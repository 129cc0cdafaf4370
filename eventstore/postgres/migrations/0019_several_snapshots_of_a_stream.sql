-- Several snapshots of a stream are kept, so that an earlier state needs no fold from the beginning.

ALTER TABLE es.snapshots DROP CONSTRAINT snapshots_pkey, ADD PRIMARY KEY (stream, decider, version);
