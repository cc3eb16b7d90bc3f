"""The models of a server: names and versions, found on disk, loaded, replaced and unloaded.

A source is the ``.param`` or ``.onnx`` file of one model, or a folder::

    models/
        resnet/
            config.json          optional; see Entry
            1/resnet.pnnx.param  1/resnet.pnnx.bin
            2/resnet.pnnx.param  2/resnet.pnnx.bin      the default, as the highest number

A changed version is loaded beside the old one and replaces it in one step.  Requests that the old
one has accepted are answered by it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kuiper.errors import InputError, KuiperError
from kuiper.serving.failures import Refusal
from kuiper.serving.memory import check_room
from kuiper.serving.served import Options, ServedModel

__all__ = ["Entry", "Event", "Repository", "Source"]

_SUFFIXES = (".param", ".onnx")
_NAME = re.compile(r"[\w.-]+")
# The preprocessing of bundled models that differs from that of others.
_BUNDLED = {
    "squeezenet": {"preset": "caffe"},
    "u2netp": {"kind": "u2net"},
    "selfie": {"kind": "selfie"},
}
_SCHEDULING = {"batch": int, "instances": int, "max_queue": int, "delay": float}
_PICTURES = {"preset": str, "labels": str, "threshold": float, "iou": float, "kind": str}


@dataclass(frozen=True)
class Source:
    """Files that a name stands for.

    Attributes
    ----------
    path : Path
        The ``.param`` or ``.onnx`` file of one version.
    config : dict
        The content of ``config.json``: `batch`, `instances`, `max_queue` and `delay` override the
        server's; `preset`, `labels`, `threshold`, `iou` and `kind` are for pictures.
    """

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> tuple[Any, ...]:
        """What changes if a file does."""
        files = [self.path, self.path.with_suffix(".bin"), *self.path.parent.parent.glob("*.json")]
        found: list[Any] = [self.path]
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


@dataclass
class Entry:
    """A version of a model in the repository.

    Attributes
    ----------
    served : ServedModel or None
        None while it is not loaded.
    reason : str
        Why it is not.
    """

    source: Source
    signature: tuple[Any, ...]
    served: ServedModel | None = None
    reason: str = ""


@dataclass(frozen=True)
class Event:
    """What happened to a version: ``loaded``, ``reloaded``, ``unloaded`` or ``failed``."""

    kind: str
    name: str
    version: str
    seconds: float = 0.0
    message: str = ""


class Repository:
    """The models of a server.

    Any thread may ask for a model; one at a time changes them.

    Parameters
    ----------
    models : mapping of str to path, or iterable of paths
        Names and ``.param`` files; or ``.param`` files, whose names follow from theirs,
        ``NAME=FILE``, names of bundled models, and folders.
    options : Options
    max_memory : int, optional
        Bytes of the process, beyond which no model is loaded.

    Raises
    ------
    InputError
        If a path is none of these, or two models have one name.
    OSError
        If a file does not exist.
    """

    def __init__(
        self,
        models: Mapping[str, Any] | Iterable[Any],
        options: Options,
        max_memory: int | None = None,
    ) -> None:
        self.options, self._max_memory = options, max_memory
        self._folders: list[Path] = []
        self._files: dict[str, Source] = {}
        if isinstance(models, Mapping):
            for name, path in models.items():
                self._add_file(str(name), str(path))
        else:
            for path in models:
                self._add(str(path))
        self._entries: dict[tuple[str, str], Entry] = {}
        self._unloaded: set[str] = set()  # by request; a change on disk does not load them
        self._seen: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._changing = threading.Lock()

    def _add(self, text: str) -> None:
        name, equals, rest = text.partition("=")
        if Path(text).is_dir():
            self._folders.append(Path(text))
        elif equals and not Path(text).exists():
            self._add_file(name, rest)
        else:
            name = Path(text).name
            for suffix in (*_SUFFIXES, ".pnnx"):
                name = name.removesuffix(suffix)
            self._add_file(name, text)

    def _add_file(self, name: str, text: str) -> None:
        path, config = Path(text), {}
        if path.suffix not in _SUFFIXES:
            from kuiper.vision.model_zoo import find_model

            path, config = find_model(text), _BUNDLED.get(text, {})
        if not path.is_file():
            raise FileNotFoundError(2, "No such file", str(path))
        if path.suffix not in _SUFFIXES:
            raise InputError(f"{path}: neither a .param or .onnx file nor a folder of models")
        if not _NAME.fullmatch(name):
            raise InputError(
                f"a model cannot be called '{name}'; letters, digits, - _ and . can be in a name: "
                f"NAME={path}"
            )
        if name in self._files:
            raise InputError(
                f"two models are called '{name}': {self._files[name].path} and {path}; name one "
                f"of them: NAME={path}"
            )
        self._files[name] = Source(path, config)

    # -- the disk --------------------------------------------------------------------------

    def find(self) -> dict[tuple[str, str], Source]:
        """Return the versions on disk, by name and version."""
        found = {(name, "1"): source for name, source in self._files.items()}
        for folder in self._folders:
            for home in sorted(p for p in folder.iterdir() if p.is_dir()):
                config = _read_config(home / "config.json")
                for version in sorted(p for p in home.iterdir() if p.is_dir()):
                    if version.name.isdecimal():
                        files = [p for p in sorted(version.iterdir()) if p.suffix in _SUFFIXES]
                        if len(files) == 1:
                            found[home.name, version.name] = Source(files[0], config)
        return found

    # -- changes ---------------------------------------------------------------------------

    def load_all(self) -> list[Event]:
        """Load what is on disk.

        Raises
        ------
        KuiperError, OSError
            If a model does not load, or there is none.
        """
        events = []
        with self._changing:
            found = self.find()
            if not found:
                folders = ", ".join(map(str, self._folders))
                raise InputError(f"{folders}: no model; expected NAME/VERSION/*.pnnx.param")
            for key, source in found.items():
                events.append(self._load(key, source))
        return events

    def refresh(self) -> list[Event]:
        """Load what has been added or changed on disk, unload what has been removed.

        Files count as changed once they stay the same from one call to the next, as a copy may be
        in progress.  A version that does not load leaves the one before in service.
        """
        events = []
        with self._changing:
            found = self.find()
            for key, source in found.items():
                if key[0] in self._unloaded:
                    continue
                signature = source.signature
                settled = self._seen.get(key) == signature
                self._seen[key] = signature
                entry = self._entries.get(key)
                if settled and (entry is None or entry.signature != signature):
                    events.append(self._try_load(key, source))
            for key in [key for key in self._entries if key not in found]:
                entry = self._entries.pop(key)
                if entry.served is not None:
                    events.append(Event("unloaded", *key))
        return events

    def load(self, name: str) -> list[Event]:
        """Load or reload all versions of a model.

        Raises
        ------
        Refusal
            If there is no such model on disk, or a version does not load.
        """
        with self._changing:
            found = {key: source for key, source in self.find().items() if key[0] == name}
            if not found:
                raise Refusal("unknown", f"the repository has no model '{name}'")
            self._unloaded.discard(name)
            events = [self._try_load(key, source) for key, source in found.items()]
        for event in events:
            if event.kind == "failed":
                raise Refusal("invalid", f"failed to load '{name}': {event.message}")
        return events

    def unload(self, name: str) -> list[Event]:
        """Unload all versions of a model.

        Raises
        ------
        Refusal
            If there is no such model.
        """
        with self._changing:
            keys = [key for key in self._entries if key[0] == name]
            if not keys:
                raise Refusal("unknown", f"the repository has no model '{name}'")
            self._unloaded.add(name)
            events = []
            for key in keys:
                entry = self._entries[key]
                if entry.served is not None:
                    events.append(Event("unloaded", *key))
                self._entries[key] = replace(entry, served=None, reason="unloaded")
        return events

    def _load(self, key: tuple[str, str], source: Source) -> Event:
        begin = time.monotonic()
        signature = source.signature
        options = replace(
            self.options, **{k: v for k, v in source.config.items() if k in _SCHEDULING}
        )
        check_room(self._max_memory, source.path)
        served = ServedModel(*key, source.path, options, source.config)
        old = self._entries.get(key)
        self._entries[key] = Entry(source, signature, served)
        kind = "reloaded" if old is not None and old.served is not None else "loaded"
        return Event(kind, *key, time.monotonic() - begin)

    def _try_load(self, key: tuple[str, str], source: Source) -> Event:
        signature = source.signature
        try:
            return self._load(key, source)
        except (KuiperError, OSError, MemoryError) as error:
            message = self.without_paths(str(error))
            old = self._entries.get(key)
            # The signature is kept, so that the same files are not tried again and again.
            served = old.served if old is not None else None
            self._entries[key] = Entry(source, signature, served, message)
            return Event("failed", *key, message=message)

    def limit_runs(self, n_bytes: int) -> None:
        """Limit the bytes of a run, of models that are loaded and of those that will be."""
        self.options = replace(self.options, max_memory=n_bytes)
        for served in self.loaded():
            served.model.max_memory = n_bytes

    # -- questions -------------------------------------------------------------------------

    def get(self, name: str, version: str = "") -> ServedModel:
        """Return a model that is loaded.

        Parameters
        ----------
        name : str
        version : str
            Empty for the highest number.

        Raises
        ------
        Refusal
            If there is none.
        """
        if version:
            entry = self._entries.get((name, version))
            if entry is not None and entry.served is not None:
                return entry.served
        else:
            loaded = self.versions(name)
            if loaded:
                served = self._entries[name, loaded[-1]].served
                if served is not None:
                    return served
        what = f"model '{name}'" + (f" version {version}" if version else "")
        known = sorted({key[0] for key in self._entries})
        if name in known and not version:
            raise Refusal("unavailable", f"{what} is not loaded", 1.0)
        loaded = self.versions(name)
        hint = f"its versions: {', '.join(loaded)}" if loaded else f"models: {', '.join(known)}"
        raise Refusal("unknown", f"{what} does not exist; {hint}")

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are loaded, ascending."""
        found = [
            key[1]
            for key, entry in list(self._entries.items())
            if key[0] == name and entry.served is not None
        ]
        return sorted(found, key=int)

    def loaded(self) -> list[ServedModel]:
        """Return all versions that are loaded."""
        entries = list(self._entries.values())
        return [entry.served for entry in entries if entry.served is not None]

    def index(self) -> list[dict[str, str]]:
        """Return names, versions and states in the protocol's form."""
        return [
            {
                "name": name,
                "version": version,
                "state": "READY" if entry.served is not None else "UNAVAILABLE",
                "reason": entry.reason,
            }
            for (name, version), entry in sorted(self._entries.items())
        ]

    def without_paths(self, message: str) -> str:
        """Return a message without the folders of the server."""
        folders = {*self._folders} | {source.path.parent for source in self._files.values()}
        for folder in sorted({str(f) for f in folders} | {str(f.resolve()) for f in folders}):
            if folder not in (".", "/"):
                message = message.replace(f"{folder}/", "")
        return message


def _read_config(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    config = _checked_config(config, str(path))
    if "labels" in config:
        config["labels"] = str(path.parent / config["labels"])
    return config


def _checked_config(config: Any, where: str) -> dict[str, Any]:
    known = {**_SCHEDULING, **_PICTURES}
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: expected an object with some of {', '.join(known)}")
    for key, value in config.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}, expected some of {', '.join(known)}")
        accepted = (int, float) if known[key] is float else (known[key],)
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise InputError(f"{where}: {key} is {value!r}, expected {known[key].__name__}")
    return dict(config)
