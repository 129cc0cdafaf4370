-- Persistent subscriptions: what each group was asked to be, the events that it has looked at and
-- nobody has finished, and those that it gave up on. All three are written under the row lock of
-- the group's subscription.

CREATE TABLE es.subscriptions (
    name           text        PRIMARY KEY,
    category       text,
    type           text,
    stream_prefix  text,
    tag            text,
    started_after  bigint      NOT NULL CHECK (started_after >= 0),
    scanned_to     bigint      NOT NULL CHECK (scanned_to >= started_after),
    max_deliveries integer     NOT NULL,
    ack_timeout    interval    NOT NULL,
    backoff        interval    NOT NULL,
    backoff_cap    interval    NOT NULL,
    max_in_flight  integer     NOT NULL,
    look_ahead     integer     NOT NULL,
    max_parked     integer     NOT NULL,
    parked         integer     NOT NULL DEFAULT 0 CHECK (parked >= 0),
    redelivered    bigint      NOT NULL DEFAULT 0,
    made_at        timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
COMMENT ON COLUMN es.subscriptions.scanned_to IS 'Every event up to here was looked at';

-- Rows come and go with each event: vacuum must not wait for a fifth of the table to be dead.
CREATE TABLE es.deliveries (
    subscription text        NOT NULL REFERENCES es.subscriptions ON DELETE CASCADE,
    position     bigint      NOT NULL,
    event_id     uuid        NOT NULL,
    stream       text        NOT NULL,
    deliveries   integer     NOT NULL,
    consumer     text,
    due_at       timestamptz NOT NULL,
    reason       text,
    PRIMARY KEY (subscription, position),
    UNIQUE (subscription, event_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
COMMENT ON COLUMN es.deliveries.consumer IS 'Who has it, until due_at; null: waits until due_at';

CREATE TABLE es.parked (
    subscription text        NOT NULL REFERENCES es.subscriptions ON DELETE CASCADE,
    position     bigint      NOT NULL,
    event_id     uuid        NOT NULL,
    stream       text        NOT NULL,
    deliveries   integer     NOT NULL,
    reason       text        NOT NULL,
    parked_at    timestamptz NOT NULL,
    PRIMARY KEY (subscription, position),
    UNIQUE (subscription, event_id)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON es.subscriptions, es.deliveries, es.parked
    TO penstock_service;
