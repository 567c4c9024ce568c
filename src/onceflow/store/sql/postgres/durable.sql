-- a commit that was answered is on the disk, whatever the server, the role or the database have for a default. Where
-- they ask for more (remote_apply), that stays. For this transaction only.
SELECT set_config('synchronous_commit', 'on', true)
 WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
