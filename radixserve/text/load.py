"""From a model reference to what its files say about text.

Owns: which reader serves which kind of reference. Must not know: what the files hold.
"""

from __future__ import annotations

from radixserve.text.files import TextFiles, read_folder
from radixserve.text.gguf_tokenizer import convert
from radixserve.weights.source import ModelSource


def read_files(source: ModelSource) -> TextFiles:
    """Read `source`; a GGUF file is converted first and kept in the cache folder.

    Raises ModelLoadError naming the file that is missing, broken or of an unsupported kind.
    """
    return read_folder(convert(source.path) if source.kind == "gguf" else source.path)
