"""Cost model, placement, policy and the balancer service. Importing this loads no FastAPI."""
