"""The chart as a person uses it: installed with helm on a real node, with real images and containers."""
