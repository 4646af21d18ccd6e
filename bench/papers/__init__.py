"""Published experiments, run again with bayescope: their data, their splits, their settings where they say them."""
