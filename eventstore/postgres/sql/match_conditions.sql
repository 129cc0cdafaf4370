-- For each condition the newest event behind its position that matches, if any. Every walk is a few
-- steps into one index, however many events a tag has.
SELECT number,
       max(CASE WHEN cardinality(tags) = 0 THEN es.newest_of_kind(category, type, after)
                ELSE es.newest_tagged(tags, category, type, after) END) AS newest
    FROM jsonb_to_recordset(%(walks)s::jsonb)
        AS walk (number integer, tags text[], category text, type text, after bigint)
    GROUP BY number;
