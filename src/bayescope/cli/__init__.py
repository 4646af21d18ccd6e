"""The command line: what `bayescope fit`, `predict`, `compare`, `report`, `effects`, `info` and others do."""

from bayescope.cli.model_files import load_model
from bayescope.cli.opening import open_source
from bayescope.cli.training_table import Roles, held_out_rows, read_training_table
from bayescope_command import main
from bayescope_command.app import app

__all__ = ["Roles", "app", "held_out_rows", "load_model", "main", "open_source", "read_training_table"]
