"""Ensembles: several networks that begin apart, each trained to a mode of its own."""

from bayescope.ensembles.ensemble import ensemble

__all__ = ["ensemble"]
