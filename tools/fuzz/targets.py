"""The code that reads a case: that of `ballast plan`, and that of `ballast serve` up to the loaded model."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ballast import cli, plan
from ballast.config.options import Config, ServerConfig
from ballast.engine.startup.build import engine_settings
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import padding
from ballast.plan import check_memory, load_checked_text, open_checked, settle
from ballast.server.http.keys import Keys
from ballast.server.http.tls import Tls
from ballast.server.lifecycle import open_listeners
from tools.fuzz import gguf_cases, text_cases

_SMALL = (
    *("--device=cpu", "--cpu_threads=1", "--numa=off", "--port=0"),
    *("--cache_lens=96", "--max_batch_size=1", "--max_new_tokens=16", "--chunk_size=16", "--measurements=off"),
)
OPTIONS_FILE = "options.yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of files. `write` makes a case in a folder. `paths` maps the options that name files to their names in
    the folder. Without `paths`, the case is the options file itself."""

    write: Callable[[random.Random, Path], None]
    paths: Mapping[str, str]
    loads: bool = False
    """Whether an accepted file is also loaded and used for computation."""

    def config(self, folder: Path) -> Config:
        """The configuration for reading a case. Raises ConfigError."""
        if not self.paths:
            return cli.serve_config((f"--config={folder / OPTIONS_FILE}",))
        config = _small_config()
        model: dict[str, Any] = {key: folder / name for key, name in self.paths.items()}
        return replace(config, model=replace(config.model, **model))


@cache
def _small_config() -> Config:
    """For cases that are read with the same options. Parsing options takes longer than reading a case."""
    return cli.serve_config(_SMALL)


def run(target: Target, folder: Path) -> dict[str, int]:
    """The exit codes of `ballast plan`, of `ballast serve` up to the loaded model, and of its listening, by these
    names. Their messages go to standard error."""
    codes = {
        "plan": _exit_code(lambda: _plan(target.config(folder))),
        "serve": _exit_code(lambda: _serve(target.config(folder), loads=target.loads)),
    }
    return codes if target.paths else codes | {"listen": _exit_code(lambda: _listen(target.config(folder).server))}


def _exit_code(command: Callable[[], int]) -> int:
    try:
        return cli.exit_code(command)
    except SystemExit as ended:  # argparse
        return ended.code if isinstance(ended.code, int) else 1


def _plan(config: Config) -> int:
    with redirect_stdout(io.StringIO()):
        return plan.run(config)


def _serve(config: Config, *, loads: bool) -> int:
    """Does the same as `ballast.server.serve_command.serve`, without its log."""
    gguf, spec = open_checked(config.model)
    config, made = settle(config, gguf, spec)
    check_memory(made)
    text = load_checked_text(config.model, gguf, spec)
    if loads:
        runner = load_runner(gguf, spec, text.tokenizer.vocab_size, engine_settings(config))
        runner.forward(padding(1, config.scheduling.block_tokens), lambda: None)
    return 0


def _listen(server: ServerConfig) -> int:
    listeners = open_listeners(server)
    listeners.api.close()
    if listeners.admin is not None:
        listeners.admin.close()
    if server.tls_cert_file is not None and server.tls_key_file is not None:
        Tls.load(server.tls_cert_file, server.tls_key_file)
    if server.api_key_file is not None:
        Keys(server.api_key_file)
    return 0


def _file(name: str, make: Callable[[random.Random], bytes]) -> Callable[[random.Random, Path], None]:
    def write(rng: random.Random, folder: Path) -> None:
        (folder / name).write_bytes(make(rng))

    return write


def _write_config_json(rng: random.Random, folder: Path) -> None:
    """Next to a file that lacks the values of config.json."""
    dropped = ("expert_group_count", "expert_weights_norm", "rope.scaling.yarn_beta_fast")
    keys = {f"deepseek2.{key}": None for key in dropped if rng.random() < 0.5}
    (folder / "m.gguf").write_bytes(gguf_cases.write_seed(gguf_cases.seed_specs()[0], **keys))
    (folder / "config.json").write_bytes(text_cases.make_config_json(rng))


def _write_tokenizer(rng: random.Random, folder: Path) -> None:
    (folder / "m.gguf").write_bytes(_whole())
    (folder / "config.json").write_bytes(b"{}")
    for name, data in text_cases.make_tokenizer_files(rng).items():
        (folder / name).write_bytes(data)


def _write_rules(rng: random.Random, folder: Path) -> None:
    (folder / "m.gguf").write_bytes(_whole())
    (folder / "rules.yaml").write_bytes(text_cases.make_rules(rng))


def _whole() -> bytes:
    return gguf_cases.write_seed(gguf_cases.seed_specs()[0])


_MODEL = {"gguf_path": "m.gguf"}

TARGETS = {
    "gguf": Target(_file("m.gguf", gguf_cases.make_case), _MODEL, loads=True),
    "config": Target(_write_config_json, _MODEL | {"model_path": "."}, loads=True),
    "tokenizer": Target(_write_tokenizer, _MODEL | {"model_path": "."}, loads=True),
    "rules": Target(_write_rules, _MODEL | {"optimize_config_path": "rules.yaml"}),
    "options": Target(_file(OPTIONS_FILE, text_cases.make_options), {}),
}
"""The targets by the name of their kind."""
