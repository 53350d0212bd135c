"""The vocabulary every other part speaks: parcels, phases, the method contract, registry, random streams."""
