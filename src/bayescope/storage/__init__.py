"""One file for a fitted model: values as tensors and a manifest, without pickle and without code."""

from bayescope.storage.answers import answering
from bayescope.storage.files import load, load_with_manifest, read_manifest, save
from bayescope.storage.manifest import Manifest
from bayescope.storage.registry import stored

__all__ = ["Manifest", "answering", "load", "load_with_manifest", "read_manifest", "save", "stored"]
