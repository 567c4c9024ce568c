-- add, its history: every new item begins with one event.
INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt)
SELECT :now, :kind, id, 1, run, stage, phase, generation, fence, attempt FROM item WHERE id BETWEEN :first AND :last
