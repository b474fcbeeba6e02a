"""Settings of all tests."""

from hypothesis import settings

# Machines that run tests are often busy: time is no failure here. CI draws the same cases each
# run, so that a red run is the change's.
settings.register_profile("libra", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("libra")
