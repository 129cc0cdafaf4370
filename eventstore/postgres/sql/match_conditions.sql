-- For each condition the newest event behind its position that matches, if any. Every probe is a
-- step into one index, however many events a tag has: the order and the limit say so to the planner.
SELECT number, max(position) AS newest FROM (
    SELECT probe.number,
           CASE
               WHEN probe.tag IS NULL THEN
                   (SELECT position FROM es.events
                        WHERE type = probe.type AND position > probe.after
                        ORDER BY position DESC LIMIT 1)
               WHEN probe.type IS NULL THEN
                   (SELECT position FROM es.tags
                        WHERE tag = probe.tag AND position > probe.after
                        ORDER BY position DESC LIMIT 1)
               ELSE
                   (SELECT position FROM es.tags
                        WHERE tag = probe.tag AND type = probe.type AND position > probe.after
                        ORDER BY position DESC LIMIT 1)
           END AS position
        FROM unnest(%(numbers)s::integer[], %(probe_tags)s::text[], %(probe_types)s::text[],
                    %(afters)s::bigint[]) AS probe (number, tag, type, after)
    UNION ALL
    SELECT number, CASE WHEN cardinality(tags) = 0 THEN es.newest_of_kind(category, type, after)
                       ELSE es.newest_tagged(tags, category, type, after) END
        FROM jsonb_to_recordset(%(walks)s::jsonb)
            AS walk (number integer, tags text[], category text, type text, after bigint)
) AS answers
    GROUP BY number;
