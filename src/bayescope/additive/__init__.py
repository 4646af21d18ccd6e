"""Neural additive models: terms, their Gauss-Newton fit, evidence by blocks, interactions and explanations."""
