"""What lives in the training process: sampler, timers, reporter and policy follower."""
