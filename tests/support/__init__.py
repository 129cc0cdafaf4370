"""What tests share, by what it stands for: services, store, sources, lake and oracles."""
