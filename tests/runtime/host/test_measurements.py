"""Measurements made at a start are stored for later starts under the same conditions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ballast.host.machine import read_machine
from ballast.host.startup.machine_facts import gpu_facts, machine_facts
from ballast.host.startup.measurements import MAX_BYTES, MAX_FILES, Measurements, kept_counts, kept_seconds
from ballast.host.startup.start_times import StartTimes

FACTS = {"gpu": "H100", "threads": [16]}


def take(measurements: Measurements, value: float, inputs: object = (1, 2)) -> float:
    """The measurement, which returns `value` if it is made now."""
    return measurements.take("speed", inputs, lambda: value, float, kept_seconds)


def kept_file(folder: Path) -> Path:
    """A folder's only file, with a speed of 1 s."""
    assert take(Measurements(folder, FACTS), 1.0) == 1.0
    (file,) = folder.iterdir()
    return file


def test_a_later_start_does_not_measure_again(tmp_path: Path) -> None:
    kept_file(tmp_path)
    later = Measurements(tmp_path, FACTS)
    assert take(later, 2.0) == 1.0
    assert later.reused == ["speed"]


def test_other_facts_or_inputs_are_measured(tmp_path: Path) -> None:
    kept_file(tmp_path)
    assert take(Measurements(tmp_path, FACTS | {"gpu": "H200"}), 2.0) == 2.0
    assert take(Measurements(tmp_path, FACTS), 3.0, inputs=(1, 3)) == 3.0
    assert take(Measurements(tmp_path, FACTS), 4.0, inputs=(1, 3)) == 3.0


def test_a_new_measurement_replaces_the_stored_one(tmp_path: Path) -> None:
    kept_file(tmp_path)
    assert take(Measurements(tmp_path, FACTS, reuse=False), 2.0) == 2.0
    assert take(Measurements(tmp_path, FACTS), 3.0) == 2.0


def test_without_a_folder_each_start_measures(tmp_path: Path) -> None:
    assert [take(Measurements(), value) for value in (1.0, 2.0)] == [1.0, 2.0]


def entry(value: str) -> Callable[[dict[str, Any]], str]:
    """The file with a measurement whose value is this JSON."""

    def written(content: dict[str, Any]) -> str:
        content["measured"]["speed"]["value"] = "VALUE"
        return json.dumps(content).replace('"VALUE"', value)

    return written


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: "",
        lambda content: json.dumps(content)[:-9],
        lambda content: "[" * 100_000,
        lambda content: "9" * 10_000,
        lambda content: "\x00\xff",
        lambda content: "[]",
        lambda content: json.dumps(content | {"format": 2}),
        lambda content: json.dumps(content | {"facts": {}}),
        lambda content: json.dumps(content | {"measured": [1]}),
        lambda content: json.dumps(content) + " " * MAX_BYTES,
        entry("NaN"),
        entry("-1"),
        entry("1e300"),
        entry("9" * 400),
        entry("true"),
        entry('"1"'),
        entry("[1]"),
        entry("null"),
    ],
)
def test_a_damaged_file_is_ignored_with_one_log_line_and_replaced(
    tmp_path: Path, damaged: Callable[[dict[str, Any]], str], caplog: pytest.LogCaptureFixture
) -> None:
    file = kept_file(tmp_path)
    file.write_text(damaged(json.loads(file.read_text())), encoding="latin-1")
    assert take(Measurements(tmp_path, FACTS), 2.0) == 2.0
    assert [record.message for record in caplog.records] == ["kept measurements cannot be used"]
    assert vars(caplog.records[0])["file"] == str(file)
    assert take(Measurements(tmp_path, FACTS), 3.0) == 2.0


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/dev/zero")])
def test_only_a_regular_file_is_read(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = kept_file(tmp_path)
    file.unlink()
    make(file)
    assert take(Measurements(tmp_path, FACTS), 2.0) == 2.0
    assert caplog.records[0].message == "kept measurements cannot be used"


def test_a_folder_that_cannot_be_written_to_costs_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "volume").touch()
    measurements = Measurements(tmp_path / "volume/measurements", FACTS)
    assert [take(measurements, 1.0, inputs) for inputs in range(3)] == [1.0] * 3
    assert [record.message for record in caplog.records if "not kept" in record.message] == [
        "measurements are not kept"
    ]


def test_a_folder_keeps_the_newest_files(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        take(Measurements(tmp_path, {"number": number}), 1.0)
        for file in tmp_path.iterdir():
            os.utime(file, ns=(0, file.stat().st_mtime_ns - 10**9))
    assert len(list(tmp_path.iterdir())) == MAX_FILES
    assert take(Measurements(tmp_path, {"number": MAX_FILES + 2}), 2.0) == 1.0
    assert take(Measurements(tmp_path, {"number": 0}), 2.0) == 2.0


@pytest.mark.parametrize("values", [[], [0], [1, 1], [2, 1], [1, 9], [1.0], [True], ["1"]])
def test_numbers_that_do_not_ascend_are_refused(values: list[Any]) -> None:
    assert kept_counts([1, 3, 8], 8) == [1, 3, 8]
    with pytest.raises(ValueError, match=r"not a list of numbers|not ascending"):
        kept_counts(values, 8)


def test_facts_of_a_machine_name_its_cpu_and_software_and_are_json() -> None:
    machine = read_machine()
    facts = machine_facts(machine, [])
    assert facts["cpu"][0] == machine.cpu_model
    assert facts["packages"]["torch"]
    assert facts["gpus"] == []
    assert json.loads(json.dumps(facts)) == facts == machine_facts(read_machine(), [])


def test_facts_of_a_gpu_name_its_driver_and_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class About:
        name, total_memory, multi_processor_count = "H100", 80 << 30, 132
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x5D, 0

    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: About)
    files = {"sys/bus/pci/devices/0000:5d:00.0/max_link_speed": "32.0 GT/s\n", "proc/driver/nvidia/version": "580\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    facts = gpu_facts("cuda:0", tmp_path)
    assert (facts["name"], facts["driver"]) == ("H100", "580")
    assert facts["pci"]["max_link_speed"] == "32.0 GT/s"
    assert facts["pci"]["numa_node"] == ""


def test_each_second_of_a_start_counts_for_one_phase() -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 63.0])
    times = StartTimes(lambda: next(clock))
    with times.phase("weights"), times.phase("kernels"):
        pass
    with pytest.raises(RuntimeError, match="failed"), times.phase("measured"):
        raise RuntimeError("failed")
    seconds = times.seconds()
    assert {phase: spent for phase, spent in seconds.items() if spent} == {
        "weights": 10.0,
        "kernels": 4.0,
        "measured": 32.0,
        "other": 17.0,
    }
