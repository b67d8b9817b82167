"""A model of many producers and a cluster, fed with costs that were measured."""
