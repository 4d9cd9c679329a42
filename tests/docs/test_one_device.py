"""Code for the whole model works with a list of devices: it never assumes that there is only one.

Objects that belong to one device (`OF_ONE_DEVICE`) may refer to it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime/ballast"
HYBRID = "model/hybrid/"
OF_ONE_DEVICE = (
    *(
        f"{HYBRID}{name}"
        for name in (
            *("attention/", "backends/", "compiling/", "graphs/", "layers/", "panels/", "platforms/", "pointwise/"),
            *("device_tensors.py", "devices/device.py", "faults/device_errors.py"),
            *("linear.py", "sparse/", "startup/", "steps/step.py"),
            *(
                "copies/device_blocks.py",
                "experts/device_layers.py",
                "experts/expert_cache.py",
                "experts/self_check.py",
            ),
            *("handoff/transport.py", "streaming/streamed_experts.py", "streaming/host_memory.py"),
        )
    ),
    "host/",  # functions that take the name of a device
)
"""Files and folders below runtime/ballast."""
WHOLE = {"self", "model", "hybrid", "runner", "state", "options", "settings", "plan", "load"}
"""Names of objects that have several devices. `machine.device` is the option's text."""
SINGULAR = {"device", "torch_device", "vram", "device_memory"}
IN_HYBRID = {"backend", "platform"}
"""Names that are also singular, in files of the hybrid."""
TEXTS = {
    "config/options.py MachineConfig": "the text of the option, from which `gpus` derives the list",
    "config/options.py MachineConfig gpus": "the same",
    "moe/device_rules.py Rule": "the device that a rule gives to a module",
    "plan/rows.py WeightRow": "the device of the tensors of a row",
    "wire/schemas.py EngineView": "the text of the option, for people",
}
"""Strings that are named device, with the reason."""
FIRST_OR_LAST = {
    "model/hybrid/devices/step_rows.py StepRows __init__": "the first device gets the embedded tokens",
    "model/hybrid/devices/step_rows.py StepRows whole": "the first device gets the embedded tokens",
    "model/hybrid/devices/step_rows.py StepRows pieces": "the first device gets the embedded tokens",
    "model/hybrid/decode_steps.py DecodeSteps __init__": "the last device writes the logits",
    "model/hybrid/decode_steps.py DecodeSteps queue": "the first device gets the embedded tokens",
    "model/hybrid/forward_pass.py ForwardPass _overlapping": "the last device has the logits of all parts",
    "model/hybrid/weights.py load_hybrid_weights": "the last device gets the output",
    "model/hybrid/load_stages/attention.py choose_kernels": "the sizes of a kind of devices",
    "model/hybrid/load_stages/experts.py _host_experts": "the transfer of a kind of devices",
    "model/hybrid/load_stages/weights.py load_weights": "memory that is pinned by one is pinned for all",
    "plan/command.py run": "the speed of the machine's first GPU",
    "engine/startup/loading.py _explain_out_of_memory": "work that belongs to no device is done on the first",
    "engine/startup/loading.py _load_hybrid": "memory that is pinned by one is pinned for all",
}
"""Functions that use only the first or the last device, with the reason."""


class Finder(ast.NodeVisitor):
    """Finds code that assumes one device."""

    def __init__(self, name: str) -> None:
        self._path = [name]
        self._singular = SINGULAR | IN_HYBRID if name.startswith((HYBRID, "FILE")) else SINGULAR
        self._is_of_one = False
        self.found: list[str] = []
        """File, class, function and code of each finding."""
        self.ends: set[str] = set()
        """File, class and function of each use of only the first or last device."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._is_of_one = self._is_of_one, "Device" in node.name and not node.name.endswith("Devices")
        self._within(node)
        self._is_of_one = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__init__" and not self._is_of_one:
            self.found += [
                self._told(each) for each in node.args.args + node.args.kwonlyargs if each.arg in self._singular
            ]
        self._within(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        is_field = isinstance(node.target, ast.Name) and self._path[-1][0].isupper()
        if is_field and ast.unparse(node.target) in self._singular and not self._is_of_one:
            self.found.append(self._told(node))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        first, *_, of = f".{ast.unparse(node.value)}".split(".")[1:] * 2
        is_whole = of.removeprefix("_") in WHOLE and first != "device" and not self._is_of_one
        if is_whole and node.attr.removeprefix("_") in self._singular:
            self.found.append(self._told(node))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if (
                isinstance(target, ast.List | ast.Tuple)
                and len(target.elts) == 1
                and "devices" in ast.unparse(node.value)
            ):
                self.found.append(self._told(node))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        of = ast.unparse(node.value).rpartition(".")[2].removeprefix("_")
        if of in {"devices", "loaders", "gpus"} and ast.unparse(node.slice) in {"0", "-1"}:
            self.ends.add(" ".join(self._path))
        self.generic_visit(node)

    def _within(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()

    def _told(self, node: ast.AST) -> str:
        return f"{' '.join(self._path)}: {ast.unparse(node)}"


def finder_of(name: str, text: str) -> Finder:
    finder = Finder(name)
    finder.visit(ast.parse(text))
    return finder


@pytest.fixture(scope="module")
def finders() -> list[Finder]:
    files = {path.relative_to(RUNTIME).as_posix(): path for path in sorted(RUNTIME.rglob("*.py"))}
    return [finder_of(name, path.read_text()) for name, path in files.items() if not name.startswith(OF_ONE_DEVICE)]


def test_no_file_of_the_whole_model_assumes_one_device(finders: list[Finder]) -> None:
    found = [found for finder in finders for found in finder.found]
    assert [each for each in found if each.partition(":")[0] not in TEXTS] == []


def test_the_first_and_the_last_device_are_used_for_a_reason(finders: list[Finder]) -> None:
    assert {end for finder in finders for end in finder.ends} == FIRST_OR_LAST.keys()


def test_each_text_exists(finders: list[Finder]) -> None:
    assert {found.partition(":")[0] for finder in finders for found in finder.found} == TEXTS.keys()


def test_what_belongs_to_one_device_exists() -> None:
    assert [name for name in OF_ONE_DEVICE if not (RUNTIME / name).exists()] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class Model:\n    def __init__(self, device):\n        pass", ["FILE Model: device"]),
        ("class Model:\n    def f(self):\n        return self._device.wait()", ["FILE Model f: self._device"]),
        ("class Options:\n    device: int", ["FILE Options: device: int"]),
        ("def f(state):\n    return state.backend", ["FILE f: state.backend"]),
        ("def f(config):\n    return config.options.device", ["FILE f: config.options.device"]),
        ("[device] = model.devices", ["FILE: [device] = model.devices"]),
        ("class DeviceOptions:\n    device: int", []),
        ("class DeviceState:\n    def f(self):\n        return self.backend", []),
        ("class Devices:\n    def f(self):\n        return self.backend", ["FILE Devices f: self.backend"]),
        ("def f(state):\n    for device in state.devices:\n        device.backend.prepare()", []),
    ],
)
def test_the_check_finds_code_that_assumes_one_device(text: str, found: list[str]) -> None:
    assert finder_of("FILE", text).found == found


def test_the_check_finds_uses_of_the_first_device() -> None:
    assert finder_of("FILE", "def f(model):\n    return model.devices[0], model.devices[-1]").ends == {"FILE f"}
    assert finder_of("FILE", "def f(model, at):\n    return model.devices[at], model.devices[:-1]").ends == set()
