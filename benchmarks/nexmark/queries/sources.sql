-- The three kinds of events, each a topic of JSON records. An event's number is its identity.
CREATE SOURCE person (
  event BIGINT, id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING,
  state STRING, date_time TIMESTAMP, extra STRING
) WITH (topic = 'nexmark.person', format = 'json', event_time = date_time, identity = event,
  lateness = '1 day');

CREATE SOURCE auction (
  event BIGINT, id BIGINT, item_name STRING, description STRING, initial_bid BIGINT,
  reserve BIGINT, date_time TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT,
  extra STRING
) WITH (topic = 'nexmark.auction', format = 'json', event_time = date_time, identity = event,
  lateness = '1 day');

CREATE SOURCE bid (
  event BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
  date_time TIMESTAMP, extra STRING
) WITH (topic = 'nexmark.bid', format = 'json', event_time = date_time, identity = event,
  lateness = '1 day');

-- A bounded table beside them, for q13.
CREATE SOURCE side_input (key BIGINT, value STRING, at TIMESTAMP) WITH (
  topic = 'nexmark.side_input', format = 'json', key = key, event_time = at);
