"""A model of many producers and a cluster, fed with measured costs, and its check against real runs."""
