-- claim: (stage, ready) -> (stage, active). What it does is in the database: migration 7.
SELECT * FROM claim_ready(:pipeline, :stage, :before, :count, :turn, :worker,
         :locked, false, :runs_max, :now)
