"""The lengths of replies and of the cache that follow from a model's context and from memory."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from ballast import cli
from ballast.config.options import Config, SchedulingConfig
from ballast.config.resolve import resolve
from ballast.errors import OutOfMemoryError
from ballast.host import machine
from ballast.host.machine import Machine, Memory
from ballast.model.metadata import read_spec
from ballast.plan import check_memory, command, planned, run, settle
from ballast.plan.command import plan_for
from ballast.plan.lengths import CacheSizes, cache_sizes, lengths_of
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.written import MakeTiny

GIB = 1 << 30
R1_CONTEXT = 163840


def requested(max_new_tokens: int | None = None, cache_lens: int | None = None, batch: int = 4) -> SchedulingConfig:
    return SchedulingConfig(max_new_tokens=max_new_tokens, cache_lens=cache_lens, max_batch_size=batch)


@pytest.mark.parametrize(
    ("scheduling", "context", "least", "useful", "most"),
    [
        (requested(), R1_CONTEXT, 4128, 32800, 163840),
        (requested(batch=8), R1_CONTEXT, 8224, 65568, 262176),
        (requested(batch=1), R1_CONTEXT, 1056, 8224, 163840),
        (requested(), 4096, 4128, 16416, 16416),
        (requested(), 100, 416, 416, 416),
        (requested(max_new_tokens=64), R1_CONTEXT, 288, 32800, 163840),
        (requested(max_new_tokens=16384), R1_CONTEXT, 65568, 65568, 163840),
        (requested(max_new_tokens=100_000), R1_CONTEXT, 400_032, 400_032, 400_032),
        (requested(cache_lens=32768), R1_CONTEXT, 32768, 32768, 32768),
        (requested(cache_lens=5000), 100, 5024, 5024, 5024),
        (requested(1024, 32768), R1_CONTEXT, 32768, 32768, 32768),
    ],
)
def test_candidate_sizes_from_which_memory_selects(
    scheduling: SchedulingConfig, context: int, least: int, useful: int, most: int
) -> None:
    assert cache_sizes(scheduling, context) == CacheSizes(least, useful, most, 32)


@pytest.mark.parametrize(
    ("largest", "fitting", "grown"),
    [
        (0, 4128, 32800),
        (4127, 4128, 32800),
        (20000, 20000, 32800),
        (32800, 32800, 32800),
        (34048, 32800, 32800 + 288),
        (100_000, 32800, 32800 + 16800),
        (10_000_000, 32800, 163840),
    ],
)
def test_the_cache_shrinks_to_the_minimum_and_grows_by_a_quarter_of_spare_memory(
    largest: int, fitting: int, grown: int
) -> None:
    sizes = cache_sizes(requested(), R1_CONTEXT)
    assert (sizes.fitting(largest), sizes.grown(largest)) == (fitting, grown)


@pytest.mark.parametrize(
    ("scheduling", "context", "cache", "new", "derived"),
    [
        (
            requested(),
            R1_CONTEXT,
            163840,
            32768,
            {"cache_lens": "context of 163840", "max_new_tokens": "longest reply"},
        ),
        (
            requested(),
            R1_CONTEXT,
            100_000,
            24999,
            {"cache_lens": "1/4 of the free memory", "max_new_tokens": "= 100000"},
        ),
        (requested(), R1_CONTEXT, 32800, 8199, {"cache_lens": "4 replies of 8192", "max_new_tokens": "= 32800"}),
        (requested(), R1_CONTEXT, 20000, 4999, {"cache_lens": "the largest that fits", "max_new_tokens": "= 20000"}),
        (requested(), R1_CONTEXT, 4128, 1031, {"cache_lens": "4 replies of 1024", "max_new_tokens": "= 4128"}),
        (requested(), 4096, 16416, 4096, {"cache_lens": "context of 4096", "max_new_tokens": "the model's context"}),
        (requested(max_new_tokens=64), R1_CONTEXT, 32800, 64, {"cache_lens": "4 replies of 8192"}),
        (requested(max_new_tokens=64), R1_CONTEXT, 288, 64, {"cache_lens": "4 replies of 64"}),
        (requested(cache_lens=32768), R1_CONTEXT, 32768, 8191, {"max_new_tokens": "= 32768"}),
        (requested(1024, 32768), R1_CONTEXT, 32768, 1024, {}),
    ],
)
def test_omitted_lengths_are_derived_and_show_their_source(
    scheduling: SchedulingConfig, context: int, cache: int, new: int, derived: dict[str, str]
) -> None:
    found = lengths_of(scheduling, context, cache, cache_sizes(scheduling, context), leaves_experts=False)
    assert (found.max_new_tokens, found.cache_lens) == (new, cache)
    assert found.cache_lens > scheduling.max_batch_size * found.max_new_tokens
    assert found.derived.keys() == derived.keys()
    assert [name for name, part in derived.items() if part not in found.derived[name]] == []


# --- with plans -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    file = tmp_path_factory.mktemp("r1") / "r1.gguf"
    return open_gguf(write_hollow_model(file, R1_SPEC, common_types(R1_SPEC)))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that the host has, to be changed."""
    here, available = machine.read_machine(), [512 * GIB]

    def with_memory() -> Machine:
        return replace(here, memory=Memory(1024 * GIB, available[0], None))

    monkeypatch.setattr(command, "read_machine", with_memory)
    return available


def config_for(gguf: GgufModel, vram: int | None, scheduling: SchedulingConfig) -> Config:
    config = resolve(Config(), 4)
    device = "cpu" if vram is None else "cuda:15"
    machine = replace(
        config.machine, device=device, vram_limit=None if vram is None else (vram,), gpu_experts=None if vram else 0
    )
    model = replace(config.model, gguf_path=gguf.path)
    return replace(config, model=model, machine=machine, scheduling=scheduling)


@pytest.mark.parametrize(
    ("vram", "host_gib", "reply", "cache"),
    [
        (24, 512, (8192, 9000), (32800, 36000)),  # what a consumer GPU holds in addition to R1's dense weights
        (80, 512, (32768, 32768), (163840, 163840)),
        (14, 512, (1024, 8191), (4128, 32799)),
        (None, 512, (32768, 32768), (131104, 163840)),
        (None, 410, (8192, 32768), (32800, 163840)),
    ],
)
def test_r1_can_think_on_the_memory_that_is_there(
    r1: GgufModel,
    host: list[int],
    vram: int | None,
    host_gib: int,
    reply: tuple[int, int],
    cache: tuple[int, int],
) -> None:
    host[0] = host_gib * GIB
    plan = plan_for(config_for(r1, vram and vram * GIB, requested()), r1, R1_SPEC)
    check_memory(plan)
    assert plan.lengths is not None
    assert reply[0] <= plan.lengths.max_new_tokens <= reply[1]
    assert cache[0] <= plan.lengths.cache_lens == plan.numbers.cache_lens <= cache[1]


def test_a_larger_cache_does_not_shorten_the_steps(r1: GgufModel, host: list[int]) -> None:
    derived = plan_for(config_for(r1, 80 * GIB, requested()), r1, R1_SPEC)
    given = plan_for(config_for(r1, 80 * GIB, requested(1024, 32768)), r1, R1_SPEC)
    assert derived.numbers.prefill_chunk_size == given.numbers.prefill_chunk_size == 16384
    assert given.lengths is not None
    assert (given.lengths.max_new_tokens, given.numbers.cache_lens) == (1024, 32768)


@pytest.mark.parametrize(
    ("batch", "replies", "end"), [(4, "4 replies", ", or lower max_batch_size"), (1, "one reply", "")]
)
def test_memory_too_small_for_the_minimum_is_rejected_with_what_fits(
    written: MakeTiny, host: list[int], batch: int, replies: str, end: str
) -> None:
    gguf = open_gguf(written().gguf)
    spec = replace(read_spec(gguf), context_length=R1_CONTEXT)
    least = cache_sizes(requested(batch=batch), R1_CONTEXT).least
    enough = plan_for(config_for(gguf, None, requested(1024, least, batch)), gguf, spec).needed_bytes
    host[0] = enough
    fits = plan_for(config_for(gguf, None, requested(batch=batch)), gguf, spec)
    check_memory(fits)
    assert fits.lengths is not None
    assert fits.lengths.max_new_tokens >= 1024
    host[0] = enough - (1 << 19)
    with pytest.raises(OutOfMemoryError) as raised:
        check_memory(plan_for(config_for(gguf, None, requested(batch=batch)), gguf, spec))
    found = re.search(rf"fits is (\d+), which holds {replies} of (\d+) tokens: set both{end}$", str(raised.value))
    assert found is not None
    assert "KV cache" in str(raised.value)
    advice = requested(int(found[2]), int(found[1]), batch)
    check_memory(plan_for(config_for(gguf, None, advice), gguf, spec))


def test_the_settled_configuration_is_complete_and_bounds_the_queue_by_its_cache(written: MakeTiny) -> None:
    gguf = open_gguf(written().gguf)
    config, plan = settle(config_for(gguf, None, requested(max_new_tokens=16)), gguf, read_spec(gguf))
    assert plan.lengths is not None
    assert config.scheduling.max_new_tokens == 16
    assert config.scheduling.cache_lens == plan.lengths.cache_lens
    assert config.scheduling.max_queue_tokens == 8 * plan.lengths.cache_lens
    fewer = replace(config_for(gguf, None, requested()), scheduling=replace(requested(), max_queue_tokens=7))
    assert planned(fewer, plan).scheduling.max_queue_tokens == 7


def test_the_plan_shows_which_values_were_derived_or_given(written: MakeTiny) -> None:
    gguf = open_gguf(written().gguf)
    config = config_for(gguf, None, requested(max_new_tokens=16))
    out, data = io.StringIO(), io.StringIO()
    run(config, out=out)
    assert re.search(
        r"^Lengths\n.*\n  max_new_tokens +16  as given\n  cache_lens +\d+  the model's", out.getvalue(), re.M
    )
    run(config, as_json=True, out=data)
    reported = json.loads(data.getvalue())["lengths"]
    assert reported["max_new_tokens"] == 16
    assert list(reported["derived"]) == ["cache_lens"]


def test_auto_equals_an_omitted_option() -> None:
    options = ["--device", "cpu", "--max_new_tokens", "auto", "--cache_lens", "auto"]
    assert cli.serve_config(options) == cli.serve_config(["--device", "cpu"])
