-- How many stops each parcel is away from its end, by the route that was planned for it at the time
-- of its last scan. A route that becomes known late repairs the scans that it concerns.
CREATE PROJECTION shipping_report WITH (key = 'tracking_number') AS
SELECT e.tracking_number, e.occurred_at, r.end_stop_id - e.current_stop_id AS remaining_stops
FROM STREAM events.shipping.scanned e
JOIN routes FOR SYSTEM_TIME AS OF e.occurred_at r ON r.tracking_number = e.tracking_number;
