"""What `expand` has loaded, made findable: search by meaning, a graph, answers with citations.

The index and the graph are projections of the database, fed from its committed events: each may be
deleted at any time and is made again from what was committed.
"""
