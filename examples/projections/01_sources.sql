-- Events of shops come from many places and late: what comes up to an hour late corrects results.
CREATE SOURCE clicks ON events.click WITH (lateness = '1 hour');

-- The route of each parcel, captured from the planners' own database. A parcel may be rerouted, and
-- a route holds from the time at which it was planned.
CREATE SOURCE routes ON logistics.public.ship_route WITH (
  key = 'tracking_number', event_time = 'planned_at', lateness = '30 days'
);

-- Prices of instruments, as an exchange sent them.
CREATE SOURCE prices ON market.public.price WITH (
  key = 'symbol', event_time = 'quoted_at', lateness = '30 days'
);
