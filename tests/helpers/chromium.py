"""Finds the browser for the tests of the web page."""

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_BROWSER = "no browser was found: `make page-test` installs one with apt-get"
