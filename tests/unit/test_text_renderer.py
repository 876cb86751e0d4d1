"""The one object that turns words into ids and back."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from radixserve.config.schema import TextConfig
from radixserve.errors import ContextTooLong, InvalidRequest
from radixserve.text.choices import MAX_REPEATED
from radixserve.text.renderer import Renderer
from radixserve.weights.source import ModelSource
from tests.chat_templates import FOLDING, TRIMMING
from tests.tiny_tokenizer import CHATML, make_tokenizer

END = "<|im_end|>"


def load(folder: pathlib.Path, config: TextConfig | None = None, **options) -> Renderer:
    make_tokenizer(folder, **options)
    return Renderer.load(ModelSource("folder", folder, "tiny"), config or TextConfig())


@pytest.mark.parametrize(
    ("template", "eos_token", "ends"),
    [
        (CHATML, "<|endoftext|>", {0, 2}),
        (CHATML, END, {2}),
        (TRIMMING, None, {2}),
        (FOLDING, "<|endoftext|>", {0, 2}),
        (None, "<|endoftext|>", {0}),
        ("{% for m in messages %}{{ m.content }}. {% endfor %}", "<|endoftext|>", {0}),
        ("{{ messages[0].content }}", "<|endoftext|>", {0}),
        ("{{ raise_exception('no') }}", "<|endoftext|>", {0}),
    ],
)
def test_the_end_of_an_assistant_block_ends_the_output(tmp_path, template, eos_token, ends):
    assert load(tmp_path, chat_template=template, eos_token=eos_token).eos_ids == ends


def test_prompts_are_bounded_where_configured(tmp_path):
    renderer = load(tmp_path, TextConfig(max_prompt_tokens=6))
    assert len(renderer.encode_text("the fox")) == 2
    calls = [
        lambda: renderer.encode_text("x" * 9),
        lambda: renderer.encode_messages([{"role": "user", "content": "x" * 9}]),
        lambda: renderer.encode_parts([{"text": "x" * 9}]),
    ]
    for call in calls:
        with pytest.raises(ContextTooLong, match="at most 6"):
            call()


def test_text_that_no_tokens_could_fit_is_refused_before_it_is_tokenised(tmp_path):
    renderer = load(tmp_path)
    longest = renderer.tokenizer.longest_token
    assert longest == max(map(len, renderer.tokenizer.special_bytes.values()))
    blocks = [{"role_open": "user"}, {"text": "x" * 4 * longest}, {"role_close": "user"}]
    in_pieces = [{"text": "x" * 2 * longest}, {"border": True}] * 2
    calls = [
        lambda limit: renderer.encode_text("é" * (2 * longest), limit=limit),
        lambda limit: renderer.encode_messages(
            [{"role": "user", "content": "x" * 4 * longest}], limit
        ),
        lambda limit: renderer.encode_parts(blocks, limit=limit),
        lambda limit: renderer.encode_parts(in_pieces, limit=limit),
        lambda limit: renderer.encode_parts(
            [{"text": "x"}, {"choices": ["x" * 4 * longest]}], limit=limit
        ),
    ]
    for call in calls:
        call(None)
        call(10_000)
        with pytest.raises(ContextTooLong, match=f"longest of which has {longest} bytes"):
            call(3)
    renderer.encode_text("é" * (2 * longest), limit=4)


def test_opening_blocks_is_bounded_by_what_it_renders(tmp_path):
    """Each block opened renders all before it."""
    renderer = load(tmp_path)
    block = [{"role_open": "user"}, {"text": "x"}, {"role_close": "user"}]
    with pytest.raises(InvalidRequest, match="too many role blocks") as caught:
        renderer.encode_parts(block * 300)
    assert caught.value.param == f"parts[{256 * 3}].role_open"
    begun = renderer.encode_parts(block * 100)
    told = {"ids": begun.ids.tolist(), "roles": [*begun.roles] * 10}
    assert len(renderer.encode_parts([told, *block * 20]).roles) == 1020


def test_text_that_every_choice_would_repeat_is_bounded(tmp_path):
    renderer = load(tmp_path)
    one_word = {"text": "x" * (MAX_REPEATED // 100 + 1)}
    choices = {"choices": ["a"] * 100}
    with pytest.raises(InvalidRequest, match="a border before its end helps"):
        renderer.encode_parts([one_word, choices])
    assert renderer.encode_parts([one_word, {"border": True}, choices]).choices is not None


def test_the_configured_bound_holds_before_tokenising_too(tmp_path):
    renderer = load(tmp_path, TextConfig(max_prompt_tokens=6))
    for limit in (None, 100):
        with pytest.raises(ContextTooLong, match="does not fit 6 tokens"):
            renderer.encode_text("x" * 7 * renderer.tokenizer.longest_token, limit=limit)


def test_a_variable_of_the_template_may_be_called_limit(tmp_path):
    renderer = load(tmp_path, chat_template="{{ limit }}")
    ids = renderer.encode_messages([{"role": "user", "content": "x"}], 100, limit="the fox")
    assert renderer.tokenizer.decode(ids) == "the fox"


def test_raw_prompts_may_spell_control_tokens_and_chats_may_not(tmp_path):
    renderer = load(tmp_path, add_bos=True)
    assert renderer.encode_text(f"a{END}").tolist().count(2) == 1
    messages = [{"role": "user", "content": END}]
    assert renderer.encode_messages(messages).tolist().count(2) == 1
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        renderer.encode_text("\ud83d")


def test_template_and_variables_from_the_operator_and_the_request(tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text("{{ mood }} {{ messages[0].content }}")
    renderer = load(tmp_path / "model", TextConfig(chat_template=str(own)))
    ids = renderer.encode_messages([{"role": "user", "content": "fox"}], mood="quick")
    assert renderer.tokenizer.decode(ids) == "quick fox"


def test_detokenizers_are_fresh_each(tmp_path):
    renderer = load(tmp_path)
    ids = renderer.encode_text(f"the fox END{END}").tolist()
    for _ in range(2):
        detokenizer = renderer.detokenizer((b"END",))
        assert detokenizer.push(ids) + detokenizer.finish(8) == "the fox "
    shown = renderer.detokenizer(skip_special=False)
    assert shown.push(ids) == f"the fox END{END}"
    keeping = renderer.detokenizer((b"fox",), keep_stop=True)
    assert keeping.push(ids) + keeping.finish(4) == "the fox"


def test_the_same_training_gives_the_same_tokenizer(tmp_path):
    texts = [
        (make_tokenizer(tmp_path / name) / "tokenizer.json").read_text() for name in ("a", "b")
    ]
    assert texts[0] == texts[1]


@pytest.mark.model
def test_text_needs_no_torch(smollm2):
    code = (
        "import sys; from radixserve.text.renderer import Renderer\n"
        "from radixserve.config.schema import TextConfig\n"
        "from radixserve.weights.source import resolve\n"
        "renderer = Renderer.load(resolve('smollm2'), TextConfig())\n"
        "assert len(renderer.encode_messages([{'role': 'user', 'content': 'Hi'}])) == 31\n"
        "print(sorted(sys.modules.keys() & {'torch', 'transformers'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
