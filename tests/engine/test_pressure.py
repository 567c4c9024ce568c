"""Whether the machine is short of processor time."""

from pathlib import Path

from onceflow.engine.pressure import HIGH, LOOK_SECONDS, Pressure


class Machine:
    """Says how long somebody has waited, and what time it is."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.path = folder / "cpu"
        self.waited = 7.0
        self.tell()

    def tell(self) -> None:
        lines = [f"some avg10=0.00 avg60=1.00 avg300=9.00 total={int(self.waited * 1e6)}"]
        self.path.write_text("\n".join([*lines, "full avg10=0.00 total=0", ""]))

    def pass_time(self, seconds: float, waited: float) -> None:
        self.now += seconds
        self.waited += waited
        self.tell()

    def pressure(self) -> Pressure:
        return Pressure(self.path, lambda: self.now)


def test_it_is_high_while_somebody_waits_for_a_core(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    pressure = machine.pressure()
    assert not pressure.is_high()

    machine.pass_time(2.0, 2.0 * HIGH)
    assert pressure.is_high()
    machine.pass_time(2.0, 1.9 * HIGH)
    assert not pressure.is_high()


def test_it_looks_now_and_then_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    pressure = machine.pressure()

    machine.pass_time(LOOK_SECONDS * 0.9, LOOK_SECONDS)
    assert not pressure.is_high()
    machine.pass_time(LOOK_SECONDS * 0.1, 0.0)
    assert pressure.is_high()


def test_where_nobody_counts_there_is_plenty(tmp_path: Path) -> None:
    for name, text in (("none", None), ("empty", ""), ("other", "what=1\n")):
        machine = Machine(tmp_path)
        machine.path = tmp_path / name
        if text is not None:
            machine.path.write_text(text)
        pressure = machine.pressure()
        machine.now += 60
        assert not pressure.is_high()
