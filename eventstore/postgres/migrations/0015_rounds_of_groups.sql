-- How far a group is stands in a row of its own for each round, not in one that all rounds change.

-- How far each group is, by its newest row. A round adds one and takes the one before away. While an
-- old snapshot is open none of those can be removed, but nobody passes them: the newest is at the end
-- of the index, where the versions of one row that every round changed would all be in one place.
-- Likewise what a group has finished lies before `finished_to`, where nobody looks for deliveries.
CREATE TABLE es.rounds (
    subscription text COLLATE "C" NOT NULL REFERENCES es.subscriptions ON DELETE CASCADE,
    number       bigint  NOT NULL,
    scanned_to   bigint  NOT NULL,
    finished_to  bigint  NOT NULL,
    parked       integer NOT NULL CHECK (parked >= 0),
    redelivered  bigint  NOT NULL,
    PRIMARY KEY (subscription, number)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
COMMENT ON COLUMN es.rounds.scanned_to IS 'Every event up to here was looked at';
COMMENT ON COLUMN es.rounds.finished_to IS 'Every event up to here is finished, parked or not for this group';

INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
    SELECT name, 0, scanned_to,
           coalesce((SELECT min(position) - 1 FROM es.deliveries WHERE subscription = name), scanned_to),
           parked, redelivered
        FROM es.subscriptions;
GRANT SELECT, INSERT, DELETE ON es.rounds TO penstock_service;

ALTER TABLE es.subscriptions DROP COLUMN scanned_to, DROP COLUMN parked, DROP COLUMN redelivered;
ALTER TABLE es.subscriptions RESET (fillfactor);

-- One index: of a table whose rows are all dead the planner might take another one, and pass them all.
ALTER TABLE es.deliveries DROP CONSTRAINT deliveries_subscription_event_id_key;
ALTER TABLE es.parked DROP CONSTRAINT parked_subscription_event_id_key,
    ADD UNIQUE (event_id, subscription);
