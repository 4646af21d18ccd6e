"""One file for a fitted model: values as tensors and a manifest, without pickle and without code.

``__all__`` has what users call; the other names are for the rest of the library.
"""

from bayescope.storage.answers import answering as answering
from bayescope.storage.answers import forget as forget
from bayescope.storage.codec import MalformedError as MalformedError
from bayescope.storage.codec import Reader as Reader
from bayescope.storage.codec import Writer as Writer
from bayescope.storage.files import Manifest, read_manifest
from bayescope.storage.files import from_message as from_message
from bayescope.storage.files import load as load
from bayescope.storage.files import load_with_manifest as load_with_manifest
from bayescope.storage.files import save as save
from bayescope.storage.files import to_message as to_message
from bayescope.storage.functions import stored_function as stored_function
from bayescope.storage.hints import fits as fits
from bayescope.storage.networks import LAYERS as LAYERS
from bayescope.storage.networks import ModelError as ModelError
from bayescope.storage.networks import stored_attribute as stored_attribute
from bayescope.storage.networks import stored_hook as stored_hook
from bayescope.storage.networks import stored_layer as stored_layer
from bayescope.storage.objects import stored as stored
from bayescope.storage.objects import unstorable as unstorable

__all__ = ["Manifest", "read_manifest"]
