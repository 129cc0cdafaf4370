-- How many stops each parcel is away from its end, as a Flink job says it: tables by connectors, and
-- an insertion. Only the options in WITH are Penstock's. A parcel's row is that of its newest scan.
CREATE TABLE `ShipEvent` (
  `trackingNumber`    BIGINT,
  `occurredAt`         TIMESTAMP(3),
  `eventCode`         STRING,
  `statusCode`        STRING,
  `statusDescription` STRING,
  `carrierCode`       STRING,
  `country`           STRING,
  `state`             STRING,
  `city`              STRING,
  `postalCode`        STRING,
  `currentStopId`     INT
)
WITH (
  'connector' = 'events',
  'category' = 'parcel',
  'type' = 'scanned'
);

CREATE TABLE `ShipRoute` (
  `routeId` BIGINT,
  `trackingNumber` BIGINT,
  `endStopId` INT
)
WITH (
  'connector' = 'capture',
  'table' = 'superfast.public.ship_route',
  'key' = 'trackingNumber'
);

INSERT INTO Report
SELECT e.trackingNumber, e.occurredAt, (r.endStopId - e.currentStopId) AS numberOfRemainingStops
FROM ShipEvent e
JOIN ShipRoute r ON e.trackingNumber = r.trackingNumber
GROUP BY e.trackingNumber;
