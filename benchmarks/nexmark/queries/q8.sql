-- Monitor new users: people who opened an auction in the ten seconds in which they came.
CREATE PROJECTION q8 WITH (key = 'id, starttime') AS
SELECT p.id, p.name, p.starttime
FROM (
  SELECT id, name, window_start AS starttime, window_end AS endtime
  FROM STREAM person GROUP BY id, name, TUMBLE(date_time, '10 seconds')) p
JOIN (
  SELECT seller, window_start AS starttime, window_end AS endtime
  FROM STREAM auction GROUP BY seller, TUMBLE(date_time, '10 seconds')) a
ON p.id = a.seller AND p.starttime = a.starttime AND p.endtime = a.endtime;
