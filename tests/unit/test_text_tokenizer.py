"""Text to ids and back: what opens a prompt, what control tokens are, the bytes of every token."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, pre_tokenizers

from radixserve.errors import InvalidRequest, ModelLoadError
from radixserve.text.tokenizer import Run, Tokenizer
from radixserve.weights.source import ModelSource
from tests.tiny_tokenizer import make_tokenizer

END = "<|im_end|>"


def load(folder) -> Tokenizer:
    return Tokenizer.load(ModelSource("folder", folder, "tiny"))


def tiny(tmp_path, **options) -> Tokenizer:
    return load(make_tokenizer(tmp_path, **options))


def edit(folder, name: str, change) -> None:
    path = folder / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture(scope="module", params=["bytes", "sentencepiece"])
def either(request, tmp_path_factory) -> Tokenizer:
    return tiny(tmp_path_factory.mktemp(request.param), kind=request.param)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return tiny(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Tokenizer:
    return tiny(tmp_path_factory.mktemp("pieces"), kind="sentencepiece")


@given(text=st.text())
def test_decoding_gives_the_text_back(either, text):
    assert either.decode(either.encode(text, opens=False, special=False)) == text


@given(text=st.text("a <|im_end|>é🦙\n"))
def test_plain_text_never_holds_control_tokens(either, text):
    ids = either.encode(text + END, opens=False, special=False)
    assert not either.special_ids & set(ids.tolist())
    assert either.decode(ids) == text + END


def test_ids_are_those_of_the_tokenizers_library(tmp_path):
    folder = make_tokenizer(tmp_path)
    reference = Reference.from_file(str(folder / "tokenizer.json"))
    text = f"the quick fox é🦙 42{END}\nthe end"
    ids = load(folder).encode(text, opens=True, special=True)
    assert ids.dtype == np.int32
    assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids


def test_control_tokens_are_parsed_only_when_asked(tokenizer):
    assert tokenizer.encode(END, opens=False, special=True).tolist() == [2]
    plain = tokenizer.encode(END, opens=False, special=False).tolist()
    assert 2 not in plain
    assert tokenizer.decode(plain) == END


def test_every_byte_and_control_token_has_its_bytes(tokenizer):
    assert tokenizer.special_bytes == {
        0: b"<|endoftext|>",
        1: b"<|im_start|>",
        2: b"<|im_end|>",
    }
    assert tokenizer.token_bytes[:3] == [b"", b"", b""]
    single = {data for data in tokenizer.token_bytes if len(data) == 1}
    assert single == {bytes([i]) for i in range(256)}
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size == 400


def test_sentencepiece_bytes_and_spaces(pieces):
    ids = pieces.encode("the fox 🦙", opens=True, special=False).tolist()
    assert pieces.decode(ids) == " the fox 🦙"
    assert b"\xf0" in pieces.token_bytes
    assert not any("▁".encode() in data for data in pieces.token_bytes)


def test_dummy_prefix_space_only_where_a_text_opens_the_prompt(pieces):
    inside = pieces.encode("the fox", opens=False, special=True).tolist()
    assert pieces.decode(inside) == "the fox"
    after = pieces.encode(f"the fox{END}the fox", opens=False, special=True).tolist()
    opening = pieces.encode("the fox", opens=True, special=True).tolist()
    assert after == [*inside, 2, *opening]


def test_a_unigram_with_a_first_word_space(tmp_path):
    """Metaspace with prepend_scheme first, as Mistral's and T5's descendants have it."""
    letters = [(char, -5.0) for char in "▁thefox"]
    reference = Reference(models.Unigram([("<unk>", -9.0), *letters, ("▁the", -1.0)], 0))
    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    reference.decoder = decoders.Metaspace(prepend_scheme="first")
    reference.add_special_tokens([END])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path)
    text = f"the fox{END}the"
    ids = tokenizer.encode(text, opens=True, special=True).tolist()
    assert ids == reference.encode(text).ids
    assert tokenizer.decode(ids) == " the foxthe"
    inside = tokenizer.encode("the the", opens=False, special=True).tolist()
    assert tokenizer.decode(inside) == "the the"
    assert tokenizer.token_bytes[inside[-1]] == b" the"
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.raises(ModelLoadError, match="there is no bos_token"):
        load(tmp_path)


def test_decode_shows_control_tokens_on_request(tokenizer):
    ids = tokenizer.encode(f"a{END}b", opens=False, special=True)
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special=False) == f"a{END}b"
    assert tokenizer.token_text(2) == END
    assert tokenizer.token_text(tokenizer.token_bytes.index(b"\xc3")) == "\ufffd"
    assert tokenizer.bytes_of(10_000) == b""


@pytest.mark.parametrize(
    ("options", "config", "opening"),
    [
        ({}, {}, []),
        ({"add_bos": True}, {}, [0]),
        ({"add_bos": True}, {"add_bos_token": False}, []),
        ({}, {"add_bos_token": True}, [0]),
        ({}, {"add_bos_token": None}, []),
    ],
)
def test_bos_opens_a_prompt_where_the_model_wants_it(tmp_path, options, config, opening):
    tokenizer = tiny(tmp_path, config=config, **options)
    bare = tokenizer.encode("the", opens=False, special=True).tolist()
    assert tokenizer.encode("the", opens=True, special=True).tolist() == opening + bare
    assert tokenizer.encode("the", opens=True, special=True, bos=False).tolist() == bare
    assert tokenizer.encode("", opens=True, special=True).tolist() == opening


def test_bos_is_not_put_before_a_text_that_begins_with_it(tmp_path):
    tokenizer = tiny(tmp_path, add_bos=True)
    text = "<|endoftext|>the"
    once = tokenizer.encode("the", opens=True, special=True).tolist()
    assert tokenizer.encode(text, opens=True, special=True).tolist() == once
    assert tokenizer.encode(text, opens=True, special=False).tolist()[0] == 0


def test_post_processors_that_add_an_end_token_do_not_end_prompts(tmp_path):
    folder = make_tokenizer(tmp_path, add_bos=True)
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    edit(folder, "tokenizer.json", lambda spec: spec["post_processor"]["single"].append(dict(end)))
    ids = load(folder).encode("the", opens=True, special=True).tolist()
    assert ids[0] == 0
    assert 0 not in ids[1:]


def test_cutting_and_padding_settings_are_off(tmp_path):
    folder = make_tokenizer(tmp_path)
    reference = Reference.from_file(str(folder / "tokenizer.json"))
    reference.enable_truncation(4)
    reference.enable_padding(length=4)
    reference.save(str(folder / "tokenizer.json"))
    tokenizer = load(folder)
    assert tokenizer.decode(tokenizer.encode("fox " * 9, opens=True, special=True)) == "fox " * 9
    assert len(tokenizer.encode("a", opens=True, special=True)) == 1


def test_end_tokens_of_tokenizer_and_generation_config_are_united(tmp_path):
    cases = [(None, {2}), (0, {0, 2}), ([0, 2], {0, 2}), ([0, 1], {0, 1, 2})]
    for i, (generation_eos, ends) in enumerate(cases):
        folder = make_tokenizer(tmp_path / str(i), generation_eos=generation_eos)
        assert load(folder).eos_ids == ends


def test_tokens_written_as_objects_are_read(tmp_path):
    added = {"content": END, "lstrip": False, "special": True, "__type": "AddedToken"}
    tokenizer = tiny(tmp_path, eos_token=added)
    assert tokenizer.eos_ids == {2}
    assert tokenizer.bos_id == 0


def test_added_tokens_have_ids_above_the_vocabulary_and_their_own_text(tmp_path):
    tokenizer = tiny(tmp_path, added_tokens=("<think>", "é tool"))
    ids = tokenizer.encode("a<think>é tool", opens=False, special=True).tolist()
    assert ids[-2:] == [400, 401]
    assert tokenizer.vocab_size == 402
    assert tokenizer.token_bytes[400:] == [b"<think>", "é tool".encode()]
    assert tokenizer.decode(ids) == "a<think>é tool"


def test_added_tokens_that_only_the_configuration_names_are_added(tmp_path):
    decoder = {"400": {"content": "<|tool|>", "special": True}, "2": {"content": END}}
    tokenizer = tiny(tmp_path, config={"added_tokens_decoder": decoder})
    assert tokenizer.encode("<|tool|>", opens=False, special=True).tolist() == [400]
    assert tokenizer.special_bytes[400] == b"<|tool|>"


def test_an_added_token_whose_id_cannot_be_kept_is_refused(tmp_path):
    decoder = {"500": {"content": "<|tool|>", "special": True}}
    with pytest.raises(ModelLoadError, match=r"'<\|tool\|>' the id 500, but it would be 400"):
        tiny(tmp_path, config={"added_tokens_decoder": decoder})


def test_the_end_token_is_a_control_token_even_if_not_marked_so(tmp_path):
    folder = make_tokenizer(tmp_path)
    edit(
        folder, "tokenizer.json", lambda spec: spec["added_tokens"][2].__setitem__("special", False)
    )
    tokenizer = load(folder)
    assert 2 in tokenizer.special_ids
    assert 2 not in tokenizer.encode(END, opens=False, special=False).tolist()


def test_runs_are_one_text_where_nothing_is_hidden(tokenizer):
    whole = tokenizer.encode(f"the quick{END}\n", opens=True, special=True).tolist()
    runs = [Run("the qu", False), Run(f"ick{END}", True), Run("\n", False)]
    assert tokenizer.encode_runs(runs, opens=True).tolist() == whole


def test_control_tokens_come_only_from_whole_spellings_in_special_runs(tokenizer):
    cases = [
        ([Run("a", False), Run(END, True), Run(END, False)], 1),
        ([Run("<|im_", False), Run("end|>", True)], 0),
        ([Run("<|im_", True), Run("end|>", True)], 0),
        ([Run(END, True), Run(f"{END}x{END}", False), Run(f"{END}y{END}", True)], 3),
    ]
    for runs, count in cases:
        ids = tokenizer.encode_runs(runs, opens=True).tolist()
        assert ids.count(2) == count
        assert tokenizer.decode(ids, skip_special=False) == "".join(run.text for run in runs)


def test_text_between_control_tokens_is_tokenised_in_one_piece(tokenizer):
    """Where control tokens are spelled as plain text, no border arises at a run's end."""
    runs = [Run(f"the quick{END}\nhel", True), Run("p", False), Run(f"ful{END}", False)]
    ids = tokenizer.encode_runs(runs, opens=True).tolist()
    behind = tokenizer.encode(f"\nhelpful{END}", opens=False, special=False).tolist()
    assert ids[-len(behind) - 1 :] == [2, *behind]


def test_a_control_token_that_swallows_spaces_does_so_beside_plain_text(tmp_path):
    folder = make_tokenizer(tmp_path)
    edit(folder, "tokenizer.json", lambda spec: spec["added_tokens"][2].__setitem__("rstrip", True))
    tokenizer = load(folder)
    hidden = [Run(f"a{END}  b", True), Run(END, False)]
    ids = tokenizer.encode_runs(hidden, opens=True).tolist()
    assert tokenizer.decode(ids, skip_special=False) == f"a{END}b{END}"


@pytest.mark.parametrize("text", ["\ud83d", "a\ude00b", "\ude00\ud83d"])
@pytest.mark.parametrize("special", [True, False])
def test_lone_surrogates_are_refused(tokenizer, text, special):
    with pytest.raises(InvalidRequest, match="lone surrogate U\\+D"):
        tokenizer.encode(text, opens=True, special=special)


def test_encoding_frees_the_interpreter(tokenizer):
    """Other threads go on while a long text is tokenised: the count would be 1 or 2."""
    encoding = threading.Thread(
        target=lambda: tokenizer.encode("the quick fox " * 100_000, opens=True, special=True)
    )
    encoding.start()
    turns = 0
    while encoding.is_alive():
        turns += 1
        encoding.join(0.001)
    assert turns > 20


def test_threads_do_not_disturb_one_another(tokenizer):
    text = f"the quick{END} fox " * 50
    want = {mode: tokenizer.encode(text, opens=True, special=mode).tolist() for mode in (0, 1)}
    wrong = []

    def work(mode: bool) -> None:
        for _ in range(20):
            if tokenizer.encode(text, opens=True, special=mode).tolist() != want[mode]:
                wrong.append(mode)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no tokenizer.json"),
        ("{", "not readable as JSON"),
        ("[]", "holds a list"),
        ("{}", "no model with a vocabulary"),
        ('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', "WordPiece"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', "decoder"),
        (
            '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]},'
            ' "decoder": {"type": "ByteLevel"}}',
            "broken",
        ),
    ],
)
def test_broken_files_are_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path)


def test_a_broken_end_id_is_named(tmp_path):
    folder = make_tokenizer(tmp_path, generation_eos=[2])
    edit(folder, "generation_config.json", lambda value: value.update(eos_token_id="2"))
    with pytest.raises(ModelLoadError, match="eos_token_id is '2'"):
        load(folder)


# the engine's tokenizer: text inside an output


def inside(tokenizer: Tokenizer, text: str) -> list[int]:
    engine = Reference.from_str(tokenizer.to_engine())
    return engine.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_the_engine_encodes_text_inside_an_output(tmp_path, kind):
    tokenizer = tiny(tmp_path, kind=kind, add_bos=True, added_tokens=("quick brown",))
    for text in ("the cat", " the", "é🦙\n", '{"answer": "the quick fox"}'):
        assert (
            inside(tokenizer, text) == tokenizer.encode(text, opens=False, special=False).tolist()
        )
    for text in (END, "a quick brown fox"):
        ids = inside(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert not [token for token in ids if token < 3 or token >= 400]


def test_the_engine_does_without_a_tokenizer_that_changes_text(tmp_path):
    folder = make_tokenizer(tmp_path)
    assert load(folder).to_engine()
    edit(folder, "tokenizer.json", lambda value: value.update(normalizer={"type": "Lowercase"}))
    assert load(folder).to_engine() == ""
