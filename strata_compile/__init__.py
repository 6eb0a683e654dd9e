"""plan.yaml to bundle: the compiler."""
