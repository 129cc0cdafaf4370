-- Last versions of streams, and whether they are closed. Read without the append lock.
SELECT stream, version, deleted OR tombstoned AS closed
    FROM es.heads WHERE stream = ANY(%(streams)s::text[]);
