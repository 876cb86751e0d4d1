"""Tokenizers from GGUF metadata: SmolLM2's own, and the kinds that are told apart by name."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Reference

from radixserve.errors import ModelLoadError
from radixserve.text.load import read_files
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.vocabulary import byte_alphabet
from radixserve.weights.gguf import GgufFile
from radixserve.weights.source import ModelSource

WORDS = ["Ġ t", "h e", "Ġt he", "1 2", "12 3", "Ġ 1", "Ġ ĠĠ", "Ġ Ġ"]


def write_gguf(
    path,
    *,
    pre: str | None = "gpt-2",
    model: str = "gpt2",
    merges: list[str] = WORDS,
    eos: int = 0,
    eot: int | None = None,
    add_bos: bool | None = None,
    templates: str | list[dict[str, str]] | None = None,
) -> ModelSource:
    """A GGUF file that holds a tokenizer and one number: 256 bytes, WORDS, then a control token,
    an unused and a user-defined one."""
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in WORDS)]
    types = [1] * len(tokens) + [3, 5, 4]
    tokens += ["<|end|>", "[PAD9]", "<tool>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_eos_token_id(eos)
    if eot is not None:
        writer.add_eot_token_id(eot)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if templates is not None:
        writer.add_chat_template(templates)
    writer.add_tensor("output_norm.weight", np.ones(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource("gguf", path, "tiny")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, request):
    """Converted tokenizers go to a folder of the test's own; the real model is found as always."""
    if request.node.get_closest_marker("model") is None:
        monkeypatch.setenv("RADIXSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, opens=False, special=True).tolist()
    return [tokenizer.token_text(token) for token in ids]


@pytest.mark.parametrize(
    ("pre", "digits", "spaces"),
    [
        ("gpt-2", ["123", "4"], ["  ", " t"]),
        ("smollm", ["1", "2", "3", "4"], ["  ", " t"]),
        ("llama-bpe", ["123", "4"], ["  ", " t"]),
        ("qwen2", ["1", "2", "3", "4"], ["  ", " t"]),
    ],
)
def test_the_named_pre_tokenizer_decides_the_pieces(tmp_path, pre, digits, spaces):
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "t.gguf", pre=pre))
    assert tokens_of(tokenizer, "1234") == digits
    assert tokens_of(tokenizer, "   t") == spaces


def test_digits_join_the_space_before_them_only_in_gpt2(tmp_path):
    for pre, pieces in (("gpt-2", [" 1"]), ("smollm", [" ", "1"]), ("qwen2", [" ", "1"])):
        tokenizer = Tokenizer.load(write_gguf(tmp_path / f"{pre}.gguf", pre=pre))
        assert tokens_of(tokenizer, " 1") == pieces


def test_control_unused_and_user_defined_tokens(tmp_path):
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "t.gguf", eos=264, eot=0))
    assert tokenizer.special_bytes == {264: b"<|end|>"}
    assert tokenizer.token_bytes[264:] == [b"", b"", b"<tool>"]
    assert tokens_of(tokenizer, "<|end|><tool>") == ["<|end|>", "<tool>"]
    assert len(tokens_of(tokenizer, "[PAD9]")) == 6
    assert tokenizer.eos_ids == {264, 0}
    assert tokenizer.bos_id == 264


@pytest.mark.parametrize(
    ("pre", "add_bos", "opens"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True)],
)
def test_bos_as_the_file_says_or_the_kind_implies(tmp_path, pre, add_bos, opens):
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "t.gguf", pre=pre, add_bos=add_bos))
    ids = tokenizer.encode("t", opens=True, special=True).tolist()
    assert (264 in ids) is opens


def test_templates_by_name(tmp_path):
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    assert read_files(write_gguf(tmp_path / "a.gguf", templates="A")).templates == {"default": "A"}
    files = read_files(write_gguf(tmp_path / "b.gguf", templates=named))
    assert files.templates == {"default": "A", "tool_use": "B"}
    assert read_files(write_gguf(tmp_path / "c.gguf")).templates == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pre": "poro-chat"}, "tokenizer.ggml.pre 'poro-chat' is not supported; known are gpt-2"),
        ({"pre": None}, "tokenizer.ggml.pre None is not supported"),
        ({"merges": ["Ġt"]}, "holds an entry that is no pair"),
        ({"model": "llama"}, "tokenizer.ggml.model 'llama' is not supported"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.load(write_gguf(tmp_path / "t.gguf", **options))


def test_converted_once_for_each_state_of_the_file(tmp_path, cache):
    source = write_gguf(tmp_path / "t.gguf")
    first = read_files(source)
    (folder,) = (cache / "tokenizers").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    stamp = (folder / "tokenizer.json").stat().st_mtime_ns
    assert read_files(source) == first
    assert (folder / "tokenizer.json").stat().st_mtime_ns == stamp
    write_gguf(tmp_path / "t.gguf", pre="smollm", templates="changed")
    assert read_files(source).templates == {"default": "changed"}
    assert len(list((cache / "tokenizers").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_named(tmp_path, cache):
    cache.write_text("a file where a folder should be")
    with pytest.raises(ModelLoadError, match="cannot keep the tokenizer"):
        Tokenizer.load(write_gguf(tmp_path / "t.gguf"))


@pytest.fixture(scope="module")
def smollm(smollm2) -> Tokenizer:
    return Tokenizer.load(smollm2)


@pytest.fixture(scope="module")
def by_hand(smollm2) -> Reference:
    """SmolLM2's vocabulary under a pattern of our own: single digits, else GPT-2's words."""
    metadata = GgufFile(smollm2.path).metadata
    vocab = {text: i for i, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    reference = Reference(models.BPE(vocab, merges))
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.Split(Regex(gpt2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return reference


@pytest.mark.model
def test_smollm2_ids_known_by_heart(smollm):
    def ids(text: str) -> list[int]:
        return smollm.encode(text, opens=True, special=True).tolist()

    assert ids("🦙") == [10813, 116, 243]
    assert ids("12345") == [33, 34, 35, 36, 37]
    assert ids("<|im_start|>user\nHi<|im_end|>\n") == [1, 4093, 198, 26843, 2, 198]
    assert smollm.vocab_size == 49152
    assert len(smollm.special_ids) == 17
    assert smollm.eos_ids == {2}


@pytest.mark.model
@given(text=st.text() | st.text("ab 019'st\n\t.,é½²日🦙"))
def test_smollm2_ids_are_those_of_a_tokenizer_built_by_hand(smollm, by_hand, text):
    assert smollm.encode(text, opens=True, special=False).tolist() == by_hand.encode(text).ids


@pytest.mark.model
@given(text=st.text())
def test_smollm2_gives_the_text_back(smollm, text):
    """All but the bytes it has no token for: some control characters, and 0xF1 and 0xF2, with
    which no assigned character begins."""
    single = {data for data in smollm.token_bytes if len(data) == 1}
    assert len(single) == 256 - 21
    kept = [bytes([byte]) for byte in text.encode() if bytes([byte]) in single]
    for special in (False, True):
        ids = smollm.encode(text, opens=True, special=special).tolist()
        assert b"".join(smollm.bytes_of(token, False) for token in ids) == b"".join(kept)
        assert smollm.decode(ids, skip_special=False) == b"".join(kept).decode("utf-8", "replace")
