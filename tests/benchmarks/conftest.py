"""Collects what the benchmarks measured and prints one table, each package as a ratio to negolab in the same run."""

import pytest

RESULTS: list[tuple[str, str, float, float]] = []


@pytest.fixture
def record():
    """``record(package, setting, episodes_per_second, turns_per_second)``."""
    return lambda *row: RESULTS.append(row)


def pytest_terminal_summary(terminalreporter):
    """One line per measurement."""
    rates = [row for row in RESULTS if row[2]]
    if not rates:
        return
    base = max(row[3] for row in rates if row[0] == "negolab")
    write = terminalreporter.write_line
    write("")
    write(f"{'package':<12}{'setting':<52}{'episodes/s':>12}{'turns/s':>12}{'of negolab':>12}")
    for package, setting, episodes, turns in sorted(rates, key=lambda row: -row[3]):
        write(f"{package:<12}{setting:<52}{episodes:>12,.0f}{turns:>12,.0f}{turns / base:>12.3f}")
    write("per second of process CPU time, best of the rounds; turns: one seat's reply or offer")
