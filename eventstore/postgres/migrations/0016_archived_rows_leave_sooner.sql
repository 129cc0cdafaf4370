-- Archived events leave the indexes of es.events when they are one row in fifty, not one in five.

ALTER TABLE es.events SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
