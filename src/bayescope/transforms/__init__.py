"""Transforms: invertible maps from unconstrained coordinates u to the user's coordinates x."""

from bayescope.transforms.maps import Interval as Interval
from bayescope.transforms.maps import between as between
from bayescope.transforms.transforms import NamedTransforms as NamedTransforms
from bayescope.transforms.transforms import Transform as Transform
from bayescope.transforms.transforms import check_at as check_at
from bayescope.transforms.transforms import constrained_dim as constrained_dim
from bayescope.transforms.transforms import coordinates_of as coordinates_of
from bayescope.transforms.transforms import elementwise as elementwise
from bayescope.transforms.transforms import free_coordinates as free_coordinates
from bayescope.transforms.transforms import ordered_ends as ordered_ends
from bayescope.transforms.transforms import parameter_at as parameter_at
from bayescope.transforms.transforms import pushforward_moments as pushforward_moments
from bayescope.transforms.transforms import resolve as resolve
from bayescope.transforms.transforms import resolve_by_name as resolve_by_name
from bayescope.transforms.transforms import unconstrain as unconstrain
