"""Chat templates of the shapes that models ship, for tests of text."""

from __future__ import annotations

from tests.tiny_tokenizer import CHATML

DEFAULT_SYSTEM = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Trims, opens with BOS, and ends blocks without a line break, as Llama 3 does.
TRIMMING = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '<|im_end|>\n\n' }}\n"
    "    {{- message['content'] | trim + '<|im_end|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant<|im_end|>\n\n' }}\n"
    "{%- endif %}\n"
)
# Alternation enforced and the system block folded into the first user block, as Mistral does.
FOLDING = (
    "{%- set system = '' %}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system = messages[0]['content'] + '\n\n' %}"
    "{%- set messages = messages[1:] %}"
    "{%- endif %}"
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate user and assistant') }}"
    "{%- endif %}"
    "{%- if message['role'] == 'user' %}"
    "{{- '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{%- else %}"
    "{{- message['content'] + '<|im_end|>' }}"
    "{%- endif %}"
    "{%- endfor %}"
)
# Thinks first: only the last assistant block keeps its thoughts, as Qwen 3 does.
REWRITING = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['role'] == 'assistant' and loop.last %}"
    "{{- '<think>\n\n</think>\n\n' }}"
    "{% endif %}"
    "{{- message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
NO_SYSTEM = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}"
    "{{- raise_exception('System role not supported') }}"
    "{%- endif %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
# Tools and calls in the manner of Hermes.
TOOLS = (
    "{%- if tools %}"
    "{{- '<|im_start|>system\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<call>' + call.function.name + ' ' + call.function.arguments | tojson + '</call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
APPENDING = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "trimming": TRIMMING,
    "folding": FOLDING,
    "no system": NO_SYSTEM,
}
ALL = APPENDING | {"rewriting": REWRITING, "tools": TOOLS}
