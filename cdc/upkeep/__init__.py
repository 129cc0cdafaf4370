"""The life of captured sources: added, kept running, watched, copied anew, removed.

Upstream: `sources/*.toml` of a workspace (`cdc.site`), what the databases and Connect say.
Downstream: connectors, slots, the catalog that the pipeline reads.
Entry points: `lifecycle.add`, `connector_keeper.ConnectorKeeper`, `source_lag.SourceHeads`,
`source_documents.source_documents`; `topic_sources` has those on topics of others.
"""
