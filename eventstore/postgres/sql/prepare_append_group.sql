-- Once per connection; then each group is one call without parsing and planning.
PREPARE append_group AS SELECT es.append_group(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
)
