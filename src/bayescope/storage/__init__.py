"""One file for a fitted model: values as tensors and a manifest, without pickle and without code.

``__all__`` has what users call; the other names are for the rest of the library.
"""

from bayescope.storage.answers import answering as answering
from bayescope.storage.files import load as load
from bayescope.storage.files import load_with_manifest as load_with_manifest
from bayescope.storage.files import read_manifest
from bayescope.storage.files import save as save
from bayescope.storage.manifest import Manifest
from bayescope.storage.registry import stored as stored

__all__ = ["Manifest", "read_manifest"]
