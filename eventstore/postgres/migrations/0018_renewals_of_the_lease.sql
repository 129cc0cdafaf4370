-- The lease is renewed without a version more of the row that every append reads.

-- How long the writer holds the lease, by its newest renewal. One adds a row and takes the one before
-- away, as with es.rounds: every append reads the lease, and would pass all versions that renewals had
-- left of its row, one every few seconds, while an old snapshot is open.
CREATE TABLE es.renewals (
    number     bigint      NOT NULL,
    renewal    bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (number, renewal)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
COMMENT ON COLUMN es.renewals.number IS 'Of the lease that is renewed';

GRANT SELECT, INSERT, DELETE ON es.renewals TO penstock_service;
