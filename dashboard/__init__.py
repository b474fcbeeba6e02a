"""The static page that the balancer serves."""
