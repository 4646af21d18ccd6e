"""bayescope."""
