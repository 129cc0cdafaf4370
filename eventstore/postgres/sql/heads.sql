-- Last versions of the group's streams, read anew.
SELECT stream, version FROM es.streams WHERE stream = ANY(%(streams)s::text[]);
