"""Pure rules: pipelines, items, leases, transitions, errors. No clock, no I/O, no await."""
