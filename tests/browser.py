"""Pages in a real browser, headless Chromium. Debian's package has it; `.ci/run` installs it and skips nothing."""

from __future__ import annotations

import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# Where it is set, as in continuous integration, a browser that is not there is an error.
REQUIRED = os.environ.get("BAYESCOPE_BROWSER") == "required"
needs_a_browser = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED,
    reason="NO BROWSER: pages are not tested in one; apt-get install chromium brings it",
)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
