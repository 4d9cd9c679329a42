"""Opening GGUF files: tensors are read in place, and errors name the cause."""

from __future__ import annotations

import logging
import mmap
import os
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.errors import ConfigError, ModelError
from ballast.hub.naming import Choice, HubFile, choices
from ballast.model.metadata import read_spec
from ballast.model.tensors import check_tensors
from ballast.weights.gguf import block_of, open_gguf
from devkit.long import times
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import metadata_of, write_gguf, write_model, write_shards
from devkit.models.specs.deepseek import V3_SPEC


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf", V3_SPEC)


def small_file(path: Path, value: float = 1.5) -> Path:
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_string("greeting", "grüß dich")
    writer.add_array("words", ["a", "", "日本"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_bool("yes", True)
    writer.add_float32("ratio", 0.5)
    writer.add_uint64("large", 2**40)
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.full((2, 32), value, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_are_plain_python_values(tmp_path: Path) -> None:
    metadata = open_gguf(small_file(tmp_path / "m.gguf")).metadata
    assert metadata == {
        "general.architecture": "deepseek2",
        "greeting": "grüß dich",
        "words": ["a", "", "日本"],
        "numbers": [1, -2, 3],
        "yes": True,
        "ratio": 0.5,
        "large": 2**40,
    }
    assert type(metadata["yes"]) is bool
    assert type(metadata["large"]) is int


def test_tensor_bytes_are_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    file = small_file(tmp_path / "m.gguf")
    model = open_gguf(file)
    info = model.tensors["first"]
    assert (info.shape, info.ggml_type, info.num_bytes, info.file) == ((2, 3), GgmlType.F32, 24, file)
    data = model.data("first")
    assert data.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert not data.flags.writeable
    assert not data.flags.owndata
    assert file.read_bytes()[info.offset : info.offset + 24] == data.tobytes()


def test_shapes_are_row_major_and_quantised_rows_count_weights(tmp_path: Path) -> None:
    shapes = {"k": (2, 3, 512)}
    model = open_gguf(write_gguf(tmp_path / "m.gguf", {}, shapes, {"k": GgmlType.Q4_K}))
    info = model.tensors["k"]
    assert info.shape == (2, 3, 512)
    assert info.num_bytes == 2 * 3 * 2 * 144 == model.data("k").size


def test_long_arrays_of_strings_and_numbers_arrive_whole(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(20_000)]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [i / 2 for i in range(20_000)]}
    assert open_gguf(write_gguf(tmp_path / "m.gguf", keys, {"x": (1,)})).metadata.items() >= keys.items()


# --- which files ------------------------------------------------------------------------------------------------


def test_a_folder_with_one_file_is_that_model(model: Path) -> None:
    assert open_gguf(model.parent).files == (model,)


def test_a_folder_a_first_shard_and_a_later_shard_name_the_same_model(tmp_path: Path) -> None:
    files = write_shards(tmp_path, "m", V3_SPEC, 3)
    for path in (tmp_path, files[0], files[2]):
        found = open_gguf(path)
        assert found.files == tuple(files)
        assert read_spec(found).hidden == V3_SPEC.hidden
        check_tensors(found, V3_SPEC)
    assert {info.file for info in found.tensors.values()} == set(files)


def test_a_missing_shard_is_reported(tmp_path: Path) -> None:
    files = write_shards(tmp_path, "m", V3_SPEC, 3)
    files[1].unlink()
    with pytest.raises(ModelError, match=r"m-00002-of-00003\.gguf: this shard is missing; the model has 3"):
        open_gguf(tmp_path)


def test_several_models_in_a_folder_are_refused_and_listed(tmp_path: Path) -> None:
    write_shards(tmp_path, "big", V3_SPEC, 2)
    write_model(tmp_path / "other.gguf", V3_SPEC)
    with pytest.raises(ConfigError, match=r"gguf_path=.*contains 2 models.*big-\*-of-00002\.gguf, other\.gguf"):
        open_gguf(tmp_path)


def test_companion_files_in_a_models_folder_are_not_other_models(tmp_path: Path) -> None:
    for name in ("mmproj-F16.gguf", "mtp-model.gguf"):
        write_model(tmp_path / name, V3_SPEC)
    with pytest.raises(ConfigError, match=r"contains 2 models; pass one of them: mmproj-F16\.gguf, mtp-model\.gguf"):
        open_gguf(tmp_path)
    files = write_shards(tmp_path, "big", V3_SPEC, 2)
    assert open_gguf(tmp_path).files == tuple(files)


def test_a_vision_projector_is_opened_only_if_it_is_the_only_file(model: Path) -> None:
    small_file(model.parent / "mmproj-F16.gguf")
    model.unlink()
    assert open_gguf(model.parent).path.name == "mmproj-F16.gguf"  # it is rejected later, with its kind in the error


def test_the_error_for_a_folder_without_a_model_names_one_with_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \*\.gguf file in this folder$"):
        open_gguf(tmp_path)
    (tmp_path / "Q4_K_M").mkdir()
    write_model(tmp_path / "Q4_K_M" / "m.gguf", V3_SPEC)
    with pytest.raises(ConfigError, match=r"Q4_K_M contain some: pass one of these"):
        open_gguf(tmp_path)


def other_gguf(file: Path, keys: dict[str, object], architecture: str | None = None) -> Path:
    """A GGUF file with one tensor that is not a model."""
    return write_gguf(file, {"general.architecture": architecture} | keys, {"x": (1,)})


NOT_MODELS: dict[str, Callable[[Path], object]] = {
    "._model.gguf": lambda file: file.write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X"),
    ".hidden.gguf": lambda file: small_file(file),
    "gone.gguf": lambda file: file.symlink_to(file.parent / "nowhere.gguf"),
    "imatrix.gguf": lambda file: other_gguf(file, {"general.type": "imatrix", "imatrix.chunk_count": 5}),
    "matrix-of-unusual-name.gguf": lambda file: other_gguf(file, {"general.type": "imatrix"}),
    "lora.gguf": lambda file: other_gguf(file, {"general.type": "adapter", "adapter.type": "lora"}, "qwen3moe"),
    "control.gguf": lambda file: other_gguf(file, {}, "controlvector"),
    "vision.gguf": lambda file: other_gguf(file, {"general.type": "mmproj"}, "clip"),
    "m.mmproj-Q8_0.gguf": lambda file: small_file(file),
    "vocab.gguf": lambda file: write_gguf(file, {"general.architecture": "qwen3moe"}, {}),
    "empty.gguf": lambda file: file.write_bytes(b""),
    "pointer.gguf": lambda file: file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00"),
    "page.gguf": lambda file: file.write_bytes(b"<!doctype html><html></html>"),
}


@pytest.mark.parametrize("name", NOT_MODELS)
def test_a_file_that_holds_no_model_does_not_count_in_a_folder(model: Path, name: str) -> None:
    NOT_MODELS[name](model.parent / name)
    assert open_gguf(model.parent).files == (model,)
    assert choices([HubFile(path, 1, "a" * 64) for path in ("model.gguf", "._model.gguf", "m-imatrix.gguf")]) == (
        Choice("model", (HubFile("model.gguf", 1, "a" * 64),)),
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("._model.gguf", "metadata that macOS keeps"),
        ("gone.gguf", r"a link to .*nowhere\.gguf, which does not exist"),
        ("imatrix.gguf", "an importance matrix"),
        ("lora.gguf", r"an adapter \(LoRA\)"),
        ("control.gguf", "a control vector"),
        ("vision.gguf", "the part of a model that sees images"),
        ("vocab.gguf", "a vocabulary without weights"),
        ("empty.gguf", "an empty file"),
        ("pointer.gguf", "a pointer of Git LFS"),
        ("page.gguf", "a web page"),
    ],
)
def test_a_folder_without_a_model_is_rejected_with_its_files(tmp_path: Path, name: str, kind: str) -> None:
    NOT_MODELS[name](tmp_path / name)
    with pytest.raises(ConfigError, match=rf"no model in this folder: {re.escape(name)} is {kind}"):
        open_gguf(tmp_path)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("._model.gguf", "not a GGUF file: metadata that macOS keeps"),
        ("gone.gguf", r"links to .*nowhere\.gguf, which does not exist"),
        ("imatrix.gguf", "this is an importance matrix.*name the file of a model"),
        ("lora.gguf", r"this is an adapter \(LoRA\).*merge it into its model"),
        ("control.gguf", "this is a control vector"),
        ("vision.gguf", r"sees images \(mmproj\).*name the file of its language model"),
        ("vocab.gguf", "this is a vocabulary without weights"),
        ("pointer.gguf", "not a GGUF file.*`git lfs pull`"),
        ("page.gguf", "not a GGUF file.*a web page"),
    ],
)
def test_a_file_without_a_model_is_rejected_with_its_kind(tmp_path: Path, name: str, reported: str) -> None:
    NOT_MODELS[name](tmp_path / name)
    with pytest.raises((ConfigError, ModelError), match=reported):
        read_spec(open_gguf(tmp_path / name))


def test_a_first_shard_without_tensors_is_part_of_a_model(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    write_gguf(first, metadata_of(V3_SPEC) | {"split.no": 0, "split.count": 2}, {})
    write_gguf(second, {"split.no": 1, "split.count": 2}, {"x": (1,)})
    assert open_gguf(tmp_path).files == (first, second)


@pytest.mark.parametrize("keys", [{"split.count": 0}, {"split.count": 1}, {"split.count": 0, "split.tensors.count": 3}])
def test_a_file_that_was_merged_from_shards_is_one_model(tmp_path: Path, keys: dict[str, int]) -> None:
    metadata = metadata_of(V3_SPEC) | {"split.no": 0} | keys
    file = write_gguf(tmp_path / "merged.gguf", metadata, {"x": (1,)})
    assert open_gguf(file).files == (file,)


def test_a_shard_under_another_name_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "renamed.gguf", {"split.no": 0, "split.count": 3}, {"x": (1,)})
    with pytest.raises(ModelError, match=r"split\.count=3.*name the shards as NAME-00001-of-00003\.gguf"):
        open_gguf(file)


def test_a_path_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gguf_path=.*nothing\.gguf: no such file or folder"):
        open_gguf(tmp_path / "nothing.gguf")


def test_shards_of_different_models_are_refused(tmp_path: Path) -> None:
    files = write_shards(tmp_path, "m", V3_SPEC, 2)
    write_gguf(files[1], {"split.no": 0, "split.count": 2}, {"alien": (4,)})
    with pytest.raises(ModelError, match=r"m-0000.-of-00002\.gguf: split\."):
        open_gguf(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    files = write_shards(tmp_path, "m", V3_SPEC, 2)
    write_gguf(files[1], {}, {"token_embd.weight": (4,)})
    with pytest.raises(ModelError, match=r"00002-of-00002\.gguf: tensor token_embd\.weight: also in m-00001"):
        open_gguf(tmp_path)


# --- damaged files ----------------------------------------------------------------------------------------------


def test_a_file_that_is_not_gguf_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    for content, reported in (
        (b"", "it is empty"),
        (b"GG", 'it begins with "GG"'),
        (b"# Ballast", 'it begins with "# Ba"'),
        (b"PK\x03\x04 something else entirely", "it begins with the bytes 50 4b 03 04"),
    ):
        file.write_bytes(content)
        with pytest.raises(
            ModelError, match=rf"m\.gguf: not a GGUF file: {reported}; name a file that begins with GGUF"
        ):
            open_gguf(file)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (1, "GGUF version 1; expected one of 2, 3"),
        (4, "GGUF version 4"),
        (0, "GGUF version 0"),
        (3 << 24, "big-endian"),
    ],
)
def test_unsupported_versions_and_byte_orders_are_reported(model: Path, version: int, message: str) -> None:
    content = bytearray(model.read_bytes())
    content[4:8] = struct.pack("<I", version)
    model.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        open_gguf(model)


def test_a_truncated_file_names_the_tensor_and_the_bytes(model: Path) -> None:
    info = open_gguf(model).tensors["blk.1.ffn_down_exps.weight"]
    with model.open("r+b") as stream:
        stream.truncate(info.offset + 100)
    with pytest.raises(ModelError, match=rf"cut short: expected \d+ bytes from byte \d+, .* {info.offset + 100}"):
        open_gguf(model)


@pytest.mark.parametrize(
    ("number", "reported"),
    [
        (999, "unknown type number 999; it may be newer than this version of Ballast"),
        (42, r"type Q2_0 \(number 42\) of llama\.cpp is not supported yet; use a file of TQ2_0 or Q2_K$"),
        (43, r"type F8_E4M3 \(number 43\) of llama\.cpp is not supported yet; use a file of Q8_0 or BF16$"),
        (31, r"type Q4_0_4_4 \(number 31\) was removed from llama\.cpp; use a file of Q4_0$"),
        (36, r"type IQ4_NL_4_4 \(number 36\) was removed from llama\.cpp; use a file of IQ4_NL$"),
        (151, r"type Q8_KV \(number 151\) is ik_llama\.cpp's own"),
        (139, r"type IQ4_K \(number 139\) is ik_llama\.cpp's own, which only that program reads; use a file"),
        (212, r"type number 212 is one of ik_llama\.cpp's own, of interleaved rows, which only that program reads"),
    ],
)
def test_an_unknown_type_number_names_the_tensor_and_whose_it_is(tmp_path: Path, number: int, reported: str) -> None:
    file = small_file(tmp_path / "m.gguf")
    content = bytearray(file.read_bytes())
    # A tensor's entry: name, number of dimensions, dimensions, type, offset.
    entry = content.index(b"first") + 5 + 4 + 2 * 8
    content[entry : entry + 4] = struct.pack("<I", number)
    file.write_bytes(content)
    with pytest.raises(ModelError, match=rf"m\.gguf: tensor first: {reported}"):
        open_gguf(file)


def test_rows_with_partial_blocks_are_rejected_with_the_tensor(tmp_path: Path) -> None:
    file = small_file(tmp_path / "m.gguf")
    content = bytearray(file.read_bytes())
    entry = content.index(b"first") + 5 + 4 + 2 * 8
    content[entry : entry + 4] = struct.pack("<I", GgmlType.Q4_K)
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"tensor first: rows of 3 weights; Q4_K expects a multiple of 256"):
        open_gguf(file)


def test_a_tensor_name_longer_than_ggml_allows_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", {}, {f"blk.{'1' * 5000}.attn_norm.weight": (4,)})
    with pytest.raises(ModelError, match=r"m\.gguf: tensor blk\.1{76}…: a name of 5021 bytes; expected at most 63"):
        open_gguf(file)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("blk.0.attn_norm.weight", 0),
        ("blk.60.ffn_norm.weight", 60),
        ("blk.x.attn_norm.weight", None),
        ("blk.\u00b2\u00b9.attn_norm.weight", None),  # superscripts, which are digits but not a number
        ("blk.\u0663.attn_norm.weight", None),  # a digit of another script
        ("blk.01.attn_norm.weight", None),
        ("blk.-1.attn_norm.weight", None),
        ("blk.1", None),
        ("blk", None),
        ("output.weight", None),
    ],
)
def test_only_plain_numbers_name_a_block(name: str, block: int | None) -> None:
    assert block_of(name) == block


@pytest.mark.parametrize(("what", "at"), [("tensors", 8), ("keys", 16)])
def test_counts_that_no_model_has_are_refused_at_once(tmp_path: Path, what: str, at: int) -> None:
    """The rest of the file is a hole of a terabyte, enough for one key or tensor every 24 bytes."""
    content = bytearray(small_file(tmp_path / "m.gguf").read_bytes()[:24])
    content[at : at + 8] = struct.pack("<Q", 2**40)
    hole = tmp_path / "hole.gguf"
    hole.write_bytes(content)
    os.truncate(hole, 2**40)
    with pytest.raises(ModelError, match=rf"hole\.gguf: damaged GGUF header: {2**40} {what}; expected at most \d+"):
        open_gguf(hole)


@pytest.mark.parametrize(
    ("marker", "count", "problem"),
    [
        (b"words", 2**30, f"an array of {2**30} entries; expected at most 4000000 in all arrays of a file"),
        (b"numbers", 2**62, f"an array of {2**62} entries; expected at most"),
        (b"greeting", 2**30, r"a field ends at byte \d+; expected a header of at most 67108864 bytes"),
    ],
)
def test_a_header_that_no_model_has_is_refused_at_once(tmp_path: Path, marker: bytes, count: int, problem: str) -> None:
    content = bytearray(small_file(tmp_path / "m.gguf").read_bytes())
    at = content.index(marker) + len(marker) + 4 + (0 if marker == b"greeting" else 4)
    content[at : at + 8] = struct.pack("<Q", count)
    file = tmp_path / "long.gguf"
    file.write_bytes(content)
    os.truncate(file, 2**40)
    with pytest.raises(ModelError, match=problem):
        open_gguf(file)


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    file = small_file(tmp_path / "m.gguf")
    content = bytearray(file.read_bytes())
    entry = content.index(b"second") + 6 + 4 + 2 * 8 + 4
    content[entry : entry + 8] = struct.pack("<Q", 0)
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"tensor second: overlaps tensor first"):
        open_gguf(file)


def test_an_array_longer_than_the_file_is_refused_at_once(tmp_path: Path) -> None:
    file = small_file(tmp_path / "m.gguf")
    for marker in (b"words", b"numbers"):
        content = bytearray(file.read_bytes())
        count = content.index(marker) + len(marker) + 4 + 4
        content[count : count + 8] = struct.pack("<Q", 3_000_000)
        damaged = tmp_path / "damaged.gguf"
        damaged.write_bytes(content)
        with pytest.raises(ModelError, match=r"damaged GGUF header: the file ends at byte \d+"):
            open_gguf(damaged)


def open_all(file: Path) -> None:
    """All checks of a model file before loading."""
    model = open_gguf(file)
    spec = read_spec(model)
    check_tensors(model, spec)
    for name in model.tensors:
        model.data(name)


def header_bytes(file: Path) -> int:
    return min(info.offset for info in open_gguf(file).tensors.values())


def test_every_truncation_of_a_header_is_a_model_error(model: Path) -> None:
    content = model.read_bytes()
    end = header_bytes(model)
    cut = model.parent / "cut.gguf"
    for length in [*range(200), *range(200, end, 37), end, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(ModelError):
            open_all(cut)


def test_flipped_bytes_in_a_header_are_read_or_refused(model: Path) -> None:
    content = model.read_bytes()
    end = header_bytes(model)
    flipped = model.parent / "flipped.gguf"
    generator = random.Random(20)
    num_refused = 0
    for _ in range(600):
        damaged = bytearray(content)
        for _ in range(generator.choice((1, 1, 1, 4))):
            damaged[generator.randrange(8, end)] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
        flipped.write_bytes(damaged)
        try:
            open_all(flipped)
        except (ModelError, ConfigError):
            num_refused += 1
    assert num_refused > 200


@settings(max_examples=times(60, 200), deadline=None)
@given(st.binary(max_size=400))
def test_anything_after_the_magic_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "m.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00" + tail)
    with pytest.raises(ModelError):
        open_all(file)


def test_a_special_file_is_rejected_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf: is not a regular file"):
        open_gguf(tmp_path)


def test_the_wrong_architecture_is_reported(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", metadata_of(V3_SPEC) | {"general.architecture": "phi2"}, {"x": (1,)})
    with pytest.raises(ModelError, match=r"m\.gguf: general\.architecture=phi2; supported are deepseek2"):
        read_spec(open_gguf(file))


DOWN = "blk.1.ffn_down_exps"
SCALED_SPEC = changed(V3_SPEC, width=64)


def check_with(file: Path, kind: GgmlType, shapes: dict[str, tuple[int, ...]]) -> None:
    """Check a model with experts of this type and additional tensors."""
    types = {f"{DOWN}.weight": kind, "blk.1.ffn_up_shexp.weight": kind, "output.weight": kind}
    written = write_model(file, SCALED_SPEC, types=types, shapes={**shapes})
    check_tensors(open_gguf(written), SCALED_SPEC)


def test_only_nvfp4_scales_are_used_and_activation_scales_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experts = (SCALED_SPEC.routing.num_experts,)
    scales = {f"{DOWN}.scale": experts, "blk.1.ffn_up_shexp.scale": (1,), "output.scale": (1,)}
    with caplog.at_level(logging.INFO):
        check_with(tmp_path / "a.gguf", GgmlType.NVFP4, scales)
    assert "are not used" not in caplog.text
    check_with(tmp_path / "b.gguf", GgmlType.NVFP4, scales | {f"{DOWN}.input_scale": experts})
    check_with(tmp_path / "c.gguf", GgmlType.Q8_0, {f"{DOWN}.input_scale": experts})


@pytest.mark.parametrize(
    ("kind", "name", "shape", "story"),
    [
        (
            GgmlType.Q8_0,
            f"{DOWN}.scale",
            (8,),
            r"is a scale of all of blk\S+\.weight, which is Q8_0; only NVFP4 of attention",
        ),
        (
            GgmlType.NVFP4,
            "token_embd.scale",
            (1,),
            r"is a scale of all of token_embd\.weight, which is F32; only NVFP4",
        ),
        (GgmlType.NVFP4, f"{DOWN}.scale", (7,), r"expected shape \(8,\) of F32, found \(7,\) of F32"),
        (GgmlType.NVFP4, f"{DOWN}.scale", (1,), r"expected shape \(8,\) of F32, found \(1,\) of F32"),
        (GgmlType.NVFP4, "blk.1.ffn_up_shexp.scale", (8,), r"expected shape \(1,\) of F32, found \(8,\) of F32"),
    ],
)
def test_a_scale_that_cannot_be_applied_is_refused(
    tmp_path: Path, kind: GgmlType, name: str, shape: tuple[int, ...], story: str
) -> None:
    with pytest.raises(ModelError, match=rf"tensor {name}: {story}"):
        check_with(tmp_path / "m.gguf", kind, {name: shape})


def test_a_scale_without_a_matching_matrix_is_rejected(tmp_path: Path) -> None:
    tied = changed(SCALED_SPEC, tied_output=True)
    file = write_model(tmp_path / "a.gguf", tied, shapes={"output.scale": (1,)})
    with pytest.raises(ModelError, match=r"tensor output\.scale: is a scale of output\.weight, but the embedding"):
        check_tensors(open_gguf(file), tied)
    router = "blk.1.ffn_gate_inp"
    types, shapes = {f"{router}.weight": GgmlType.NVFP4}, {f"{router}.scale": (1,)}
    file = write_model(tmp_path / "b.gguf", SCALED_SPEC, types=types, shapes={**shapes})
    with pytest.raises(
        ModelError, match=rf"tensor {router}\.scale: is a scale of all of {router}\.weight, which is NVFP4; only"
    ):
        check_tensors(open_gguf(file), SCALED_SPEC)
    unknown: dict[str, tuple[int, ...]] = {"blk.1.exp_probs_b.bias.scale": (1,), "blk.9.ffn_up.scale": (1,)}
    check_tensors(open_gguf(write_model(tmp_path / "c.gguf", SCALED_SPEC, shapes={**unknown})), SCALED_SPEC)


def test_a_table_of_single_rows_does_not_load_their_neighbours(tmp_path: Path) -> None:
    """The system marks the pages of the tensor, and no others, as read in no order (rr)."""
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "a"}, {"first": (64, 1024), "table": (64, 1024)})
    model = open_gguf(path)
    model.expect_single_rows("table")
    size = model.tensors["table"].num_bytes
    smaps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    of_file = [each for each in smaps if str(path) in each]
    marked = [each for each in of_file if re.search(r"^VmFlags:.* rr\b", each, re.MULTILINE)]
    num_bytes = [int(end, 16) - int(begin, 16) for begin, end in (each.split()[0].split("-") for each in marked)]
    assert size - 2 * mmap.PAGESIZE < sum(num_bytes) <= size
    assert len(of_file) > len(marked)
