"""The contestants, one file each. `bench/plan.py` lists them with the settings that are tried."""
