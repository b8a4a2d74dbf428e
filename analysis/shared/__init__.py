"""What all stages stand on: quantities and gradients, clusters, directions, probes, sources and units."""
