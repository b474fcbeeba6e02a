"""Training scripts to copy, and the demo that runs them."""
