"""The asyncio engine: one manager per process, the single owner of its transitions."""
