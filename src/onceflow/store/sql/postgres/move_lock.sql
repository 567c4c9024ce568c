-- nobody changes anything while it is carried over.
LOCK TABLE item, run, event, stage IN SHARE ROW EXCLUSIVE MODE
