"""The engines of h_t = σ(W h_{t−1} + u_t). Nothing here knows a layer."""
