"""A stage in a process of its own, which hangs."""

import time

from chaos_common import end_with_the_scenario, note

from onceflow import Pipeline, Stage, Work


def hang(work: Work) -> None:
    note("began", work)
    time.sleep(3600)


hanging = Pipeline("hanging", Stage("hang", hang, cpu=True))

end_with_the_scenario()
