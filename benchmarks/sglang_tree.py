"""The Rust tree core of SGLang under the interface of trees.py.

Owns: loading it out of its wheel, without installing SGLang, and how SGLang's cache calls it. Must
not know: scenarios.

The wheel's extension module and the adapter around it are real; what else the adapter's module
imports is replaced by empty stand-ins, for none of it takes part. Slots come from nowhere here: an
allocator, which SGLang needs too, is not timed.
"""

from __future__ import annotations

import array
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import time
import types
import zipfile
from dataclasses import dataclass
from typing import Any

from benchmarks.trees import PAGE
from radixserve.plan import Int32

_CACHE = "sglang.srt.mem_cache"
_CORE = f"{_CACHE}.rust_tree_core"
_REAL = {
    f"{_CORE}.adapter",
    f"{_CACHE}.base_prefix_cache",
    f"{_CACHE}.radix_cache",
    f"{_CACHE}.unified_cache.cache_action",
    f"{_CACHE}.unified_cache.component_type",
    f"{_CACHE}.unified_cache.unified_tree_core_interface",
}


class PeerAbsent(Exception):
    """SGLang's tree cannot be loaded; the message says why."""


@dataclass(frozen=True, slots=True)
class Package:
    """The modules that are called: the adapter, its parameters, its keys; and the bare core."""

    adapter: Any
    params: Any
    keys: Any
    core: Any


class AdapterTree:
    """The core as SGLang's cache calls it: through the adapter, parameters and results included."""

    def __init__(self, package: Package, tokens: int) -> None:
        self._params = package.params
        self._key_class = package.keys.RadixKey
        self._capacity = tokens
        self._used = 0
        component = package.adapter.ComponentType
        self._full = component.FULL
        self._tree = package.adapter.RustUnifiedTreeCore(_settings(component.FULL))
        self._root = self._tree.root_node_handle()
        import torch

        self._slots = torch.arange(2**16)

    def key(self, ids: Int32) -> Any:
        return self._key_class(array.array("q", ids.tolist()), None)

    def match(self, key: Any) -> int:
        found = self._tree.match_prefix(self._params.MatchPrefixParams(key=key))
        return int(found.device_prefix_len)

    def request(self, key: Any) -> tuple[int, int]:
        tree, params, n = self._tree, self._params, len(key)
        t0 = time.perf_counter_ns()
        found = tree.match_prefix(params.MatchPrefixParams(key=key))
        node, matched = found.last_device_node, found.device_prefix_len
        if matched:
            tree.collect_full_device_indices(node, self._root)
        lock = tree.inc_lock_ref(node)
        short = self._used + n - matched - self._capacity
        if short > 0:
            self._free(short)
        t1 = time.perf_counter_ns()
        value = self._slots[:n]
        given = params.InsertParams(key=key, value=value, prev_prefix_len=matched, priority=0)
        step = tree.begin_insert(given)
        while step.result is None:
            step = tree.resume_insert()
        tree.end_insert()
        t2 = time.perf_counter_ns()
        tree.dec_lock_ref(node, lock.to_dec_params())
        t3 = time.perf_counter_ns()
        self._used += n - matched
        return t1 - t0 + t3 - t2, t2 - t1

    def evict(self, pages: int) -> int:
        before = self._used
        t0 = time.perf_counter_ns()
        self._free(pages * PAGE)
        t1 = time.perf_counter_ns()
        assert self._used <= before - pages * PAGE, "too little was evicted"
        return t1 - t0

    def _free(self, tokens: int) -> None:
        tree, full = self._tree, self._full
        tracker = {full: 0}
        tree.evict_device_start(full, tokens)
        while True:
            found = tree.evict_device_next_node(full, tracker)
            tracker[full] += _drained(found, full)
            if found.node_id is not None:
                tracker[full] += _drained(tree.evict_device_leaf(found.node_id, False), full)
            elif not found.made_progress:
                break
        tree.evict_device_end(full)
        self._used -= tracker[full]


class BareTree(AdapterTree):
    """The same, but match() calls the core without the adapter: the least that it can cost."""

    def __init__(self, package: Package, tokens: int) -> None:
        super().__init__(package, tokens)
        self._match_class = package.core.MatchParamsBinding
        self._bare = self._tree._binding

    def match(self, key: Any) -> int:
        return int(self._bare.match_prefix(self._match_class(key.token_ids)).device_prefix_len)


def load(path: pathlib.Path) -> Package:
    """From a wheel of SGLang, or the folder it was unpacked to. Raises PeerAbsent."""
    if not path.exists():
        raise PeerAbsent(f"{path} does not exist")
    with tempfile.TemporaryDirectory() as scratch:
        folder = _unpacked(path, pathlib.Path(scratch)) if path.is_file() else path
        files = sorted(folder.glob(f"{_CORE.replace('.', '/')}/mem_cache.*.so"))
        if not files:
            raise PeerAbsent(f"{path} has no Rust tree core")
        try:
            return _import(folder, files[0])
        except (ImportError, AttributeError) as error:
            raise PeerAbsent(f"{files[0].name}: {error}") from error


def _unpacked(wheel: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith(f"{_CACHE.replace('.', '/')}/")]
            archive.extractall(folder, names)
    except zipfile.BadZipFile as error:
        raise PeerAbsent(f"{wheel} is no wheel") from error
    return folder


def _import(folder: pathlib.Path, extension: pathlib.Path) -> Package:
    # The extension needs the libraries of torch, whose folder is no place the linker looks in.
    import torch

    del torch
    spec = importlib.util.spec_from_file_location(f"{_CORE}.mem_cache", extension)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    loaded = types.ModuleType(f"{_CORE}.extension")
    loaded.__dict__["bindings"] = core
    finder = _Finder(folder)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(_CORE)
        sys.modules[loaded.__name__] = loaded
        return Package(
            adapter=importlib.import_module(f"{_CORE}.adapter"),
            params=importlib.import_module(f"{_CACHE}.base_prefix_cache"),
            keys=importlib.import_module(f"{_CACHE}.radix_cache"),
            core=core,
        )
    finally:
        sys.meta_path.remove(finder)


class _Nothing:
    def __init__(self, *args: object, **fields: object) -> None:
        del args, fields

    def __class_getitem__(cls, item: object) -> type[_Nothing]:
        del item
        return cls


class _StandIn(types.ModuleType):
    """A module that has every name: a class that takes anything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (_Nothing,), {})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real modules in the folder, and stand-ins for all others of sglang."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name in _REAL:
            file = self._folder / f"{name.replace('.', '/')}.py"
            return importlib.util.spec_from_file_location(name, file)
        if name.partition(".")[0] == "sglang":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """A stand-in has nothing to run."""


def _drained(step: Any, full: object) -> int:
    """Tokens that a step of an eviction freed. Their slots would go to the allocator here."""
    step.device_frees.clear()
    step.host_frees.clear()
    step.cache_actions.clear()
    return int(step.tracker.get(full, 0))


def _settings(full: object) -> types.SimpleNamespace:
    """What the core asks of its CacheInitParams."""
    return types.SimpleNamespace(
        tree_components=(full,),
        page_size=PAGE,
        eviction_policy="lru",
        eviction_policy_config=None,
        enable_session_radix_cache=False,
        component_registry_override=None,
        sliding_window_size=None,
        token_to_kv_pool_allocator=None,
        is_eagle=False,
        enable_kv_cache_events=False,
        dynamo_kv_event_format=False,
        kv_event_lora_names=None,
        swa_retain_window=None,
        swa_gates_prefix_match=True,
    )
