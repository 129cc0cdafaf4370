-- Next positions of a tag.
SELECT position FROM es.tags
    WHERE tag = %(tag)s AND position > %(after)s AND position <= %(up_to)s
    ORDER BY position LIMIT %(limit)s
