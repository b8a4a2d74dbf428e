"""Words every room of the house shares: contracts, records on disk, configuration, statistics."""
