-- a program's pipeline is known, with the names of its states.
INSERT INTO pipeline AS p (name, states) VALUES (:name, :states)
ON CONFLICT (name) DO UPDATE SET states = excluded.states WHERE p.states <> excluded.states
