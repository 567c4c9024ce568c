// the event up to which the graph was fed.
MERGE (p:Projection {one: 1}) SET p.seq = $seq
