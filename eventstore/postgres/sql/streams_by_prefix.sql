-- Streams whose names begin so (behind the last such name comes `behind`), up to a limit.
SELECT stream, version FROM es.heads
    WHERE stream >= %(prefix)s
      AND (%(behind)s::text IS NULL OR stream < %(behind)s)
    LIMIT %(limit)s
