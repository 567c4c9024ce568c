-- whoever writes events says so first (functions.sql): readers stop below what it may still commit.
SELECT onceflow.hold_history()
