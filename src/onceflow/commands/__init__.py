"""The commands, on the public API only. `onceflow.cli` imports each when it is asked for."""
