-- What deciders keep beside the events. All of it can be computed again, but for the answers.

CREATE TABLE es.snapshots (
    stream        text        NOT NULL,
    decider       text        NOT NULL,
    first_version bigint      NOT NULL,
    version       bigint      NOT NULL,
    position      bigint      NOT NULL,
    recorded_at   timestamptz NOT NULL,
    shapes        json        NOT NULL,
    state         json        NOT NULL,
    made_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (stream, decider)
);
COMMENT ON COLUMN es.snapshots.decider IS 'Version and checksum of the code that folded it';
COMMENT ON COLUMN es.snapshots.shapes IS 'Schema version of each event type as it was folded';

-- Answers of commands with a key that led to no events. Those with events are found by their ids.
CREATE TABLE es.commands (
    key         text        PRIMARY KEY,
    fingerprint text        NOT NULL,
    answer      json        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX commands_at ON es.commands (at);

-- All versions of an event type's schema, so that old events are read while the registry is away.
CREATE TABLE es.schema_versions (
    subject   text    NOT NULL,
    version   integer NOT NULL,
    schema_id integer NOT NULL,
    schema    text    NOT NULL,
    PRIMARY KEY (subject, version)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON es.snapshots, es.commands TO penstock_service;
-- What a new version of a type's schema must get on with, where that is not the default.
CREATE TABLE es.compatibility (
    subject text PRIMARY KEY,
    level   text NOT NULL
);

GRANT SELECT, INSERT ON es.schema_versions TO penstock_service;
GRANT SELECT, INSERT, UPDATE ON es.compatibility TO penstock_service;
